package main

import (
	"context"

	"github.com/etcdlock/etcdlock"
)

// Import is the code to be tested. It imports rows until there are no more. Only one
// process may import rows at a time.
func Import(ctx context.Context, session *etcdlock.Session, rows <-chan int) error {
	return etcdlock.NewMutex(session, "jobs/import").Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
		for {
			select {
			case _, more := <-rows:
				if !more {
					return nil
				}
			case <-ctx.Done(): // a test must fail if this line is missing
				return context.Cause(ctx)
			}
		}
	})
}
