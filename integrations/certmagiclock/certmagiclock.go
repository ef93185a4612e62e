// Package certmagiclock has certmagic, and so Caddy, take its locks on etcd: with a storage that several servers share
// and that has no good locks of its own, such as an object store or a file system on the network.
//
//	config := certmagic.NewDefault()
//	config.Storage = certmagiclock.Wrap(storage, certmagiclock.New(locks, "certmagic/"))
package certmagiclock

import (
	"context"
	"errors"

	"github.com/caddyserver/certmagic"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// A Locker is certmagic's Locker and TryLocker on etcd. It is safe for concurrent use. It renews its locks by itself,
// for as long as the process lives: so it has no RenewLockLease.
type Locker struct {
	locks  *etcdlock.Client
	prefix string
	holds  hold.ByName
}

var (
	_ certmagic.Locker    = (*Locker)(nil)
	_ certmagic.TryLocker = (*Locker)(nil)
)

// New makes a Locker. It makes no request. A lock of certmagic has the name prefix + name in etcd.
func New(locks *etcdlock.Client, prefix string) *Locker {
	return &Locker{locks: locks, prefix: prefix}
}

// Lock waits for the lock, until ctx ends or etcd refuses. Nothing is left behind after an error.
func (l *Locker) Lock(ctx context.Context, name string) error {
	h, err := l.locks.Mutex(l.prefix + name).Lock(ctx)
	if err != nil {
		return err
	}
	l.holds.Add(name, h)
	return nil
}

// TryLock takes the lock, or returns false if somebody has it or waits for it. It waits only for etcd's answer.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	h, err := l.locks.Mutex(l.prefix + name).TryLock(ctx)
	switch {
	case errors.Is(err, etcdlock.ErrLocked):
		return false, nil
	case err != nil:
		return false, err
	}
	l.holds.Add(name, h)
	return true, nil
}

// Unlock releases the lock. It waits until etcd has confirmed that, the lease must have expired, or ctx ends; the
// release goes on then. Certmagic has no way to tell an operation that its lock was lost, so Unlock tells: its error is
// etcdlock.ErrLost, which certmagic logs. Then another server may have done the same work at the same time.
func (l *Locker) Unlock(ctx context.Context, name string) error { return l.holds.Unlock(ctx, name) }

// Wrap returns the storage with the locks of l in the place of its own.
func Wrap(storage certmagic.Storage, l *Locker) certmagic.Storage { return &wrapped{storage, l} }

// wrapped has no RenewLockLease, also if the storage has one: that would renew another lock.
type wrapped struct {
	certmagic.Storage
	locker *Locker
}

func (w *wrapped) Lock(ctx context.Context, name string) error { return w.locker.Lock(ctx, name) }

func (w *wrapped) TryLock(ctx context.Context, name string) (bool, error) {
	return w.locker.TryLock(ctx, name)
}

func (w *wrapped) Unlock(ctx context.Context, name string) error { return w.locker.Unlock(ctx, name) }
