// Package hold has what several integrations share: holds that are found by their name, holds that last at least for a
// while, and a ctx that ends with one.
package hold

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
)

// ByName keeps the holds of a locker that is told to unlock a name. It is safe for concurrent use.
type ByName struct {
	mu    sync.Mutex
	holds map[string][]*etcdlock.Held
}

// Add keeps a hold until Unlock.
func (b *ByName) Add(name string, h *etcdlock.Held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds == nil {
		b.holds = map[string][]*etcdlock.Held{}
	}
	b.holds[name] = append(b.holds[name], h)
}

// Unlock releases a hold of the name. There are several if a hold was lost and another goroutine has the next one: then
// the caller is unknown. The oldest hold is the right one to release, since a caller that is not its owner leaves the
// newer hold to that owner, and no hold is released before its own holder is done.
func (b *ByName) Unlock(ctx context.Context, name string) error {
	h := b.take(name)
	if h == nil {
		return fmt.Errorf("unlock %q: %w", name, etcdlock.ErrNotHeld)
	}
	return h.Unlock(ctx)
}

func (b *ByName) take(name string) *etcdlock.Held {
	b.mu.Lock()
	defer b.mu.Unlock()
	holds := b.holds[name]
	if len(holds) == 0 {
		return nil
	}
	if len(holds) == 1 {
		delete(b.holds, name)
	} else {
		b.holds[name] = holds[1:]
	}
	return holds[0]
}

// UnlockAfter releases the hold: now, and waits for etcd, if it was granted at least that long ago. Else it returns at
// once, and releases the hold when that time has passed.
func UnlockAfter(ctx context.Context, h *etcdlock.Held, granted time.Time, holdFor time.Duration) error {
	if rest := holdFor - time.Since(granted); rest > 0 && h.Err() == nil {
		time.AfterFunc(rest, h.Release)
		return nil
	}
	return h.Unlock(ctx)
}

// Join returns ctx, but it ends also when the other ctx does, with its cause.
func Join(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}
