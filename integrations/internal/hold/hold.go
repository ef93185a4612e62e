// Package hold has what several integrations share: holds that are found by their name, the lock of a job, and a ctx that
// ends with another one.
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

// answer is how long Try waits for etcd.
const answer = 5 * time.Second

// Try takes the lock of a job if it is free. If etcd does not answer within a few seconds, the job must not run: else its
// runs would pile up while etcd is away, and all begin when it is back.
func Try(ctx context.Context, m *etcdlock.Mutex) (*etcdlock.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return m.TryLock(ctx)
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
