// Package tuslock lets several replicas of tusd, behind one load balancer, share their uploads.
//
//	composer := handler.NewStoreComposer()
//	store.UseIn(composer)
//	tuslock.New(locks, "uploads/").UseIn(composer)
//
// A client that has lost its connection asks another replica for its upload, while the first replica still reads from
// the dead connection and has the lock. Tusd's interface has a function for that: the holder is asked to let go when
// somebody else wants the lock. Here that is [etcdlock.Held.Contended], so the second request waits for milliseconds.
package tuslock

import (
	"context"
	"errors"
	"fmt"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// A Locker is tusd's Locker on etcd. It is safe for concurrent use.
type Locker struct {
	locks  *etcdlock.Client
	prefix string
}

// New makes a Locker. It makes no request. The lock of an upload has the name prefix + ID.
func New(locks *etcdlock.Client, prefix string) *Locker { return &Locker{locks, prefix} }

// UseIn adds the Locker to the composer.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock makes the lock of an upload. It makes no request.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	return &lock{id: id, mutex: l.locks.Mutex(l.prefix + id)}, nil
}

type lock struct {
	id    string
	mutex *etcdlock.Mutex
	holds hold.ByName // one, unless a hold was lost and the lock taken again before its Unlock
}

// Lock waits for the lock. Its error is handler.ErrLockTimeout if ctx ends first, and else what etcd says.
//
// It calls requestUnlock once, in a goroutine of its own, when somebody else wants the lock, and also when the lock is
// lost: then another replica may write to the upload already, and tusd must stop. It costs what [etcdlock.Mutex.Lock]
// does, a watch of the queue and of the entry, and a read.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	h, err := l.mutex.Lock(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", handler.ErrLockTimeout, err)
	case err != nil:
		return err
	}
	l.holds.Add(l.id, h)
	go func() { // ends with the hold
		select {
		case <-h.Contended():
		case <-h.Done():
		}
		if !errors.Is(h.Err(), etcdlock.ErrNotHeld) { // else Unlock was first
			requestUnlock()
		}
	}()
	return nil
}

// Unlock releases the lock. It waits until etcd has confirmed that, or the lease must have expired. Its error is
// etcdlock.ErrLost if the lock was lost before: then another replica may have written to the upload meanwhile.
func (l *lock) Unlock() error { return l.holds.Unlock(context.Background(), l.id) }
