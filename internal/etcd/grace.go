// A ctx that ends later than another one.

package etcd

import (
	"context"
	"time"
)

// grace is how long the answer to a request is worth waiting for when its caller's ctx has ended.
const grace = 250 * time.Millisecond

// Grace returns a ctx that ends a moment later than ctx.
func Grace(ctx context.Context) (context.Context, func()) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = Sleep(later, grace)
		cancel(context.Cause(ctx))
	})
	return later, func() { stop(); cancel(nil) }
}
