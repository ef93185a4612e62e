// Package gooselock has goose migrate a database in one process at a time, also where the database has no locks that
// goose knows (it knows those of Postgres and MySQL).
//
//	provider, err := goose.NewProvider(dialect, db, migrations, goose.WithLocker(gooselock.New(locks, "migrations/shop")))
//
// Goose takes the lock only if there is something to migrate, but it does not stop a migration whose lock is lost. To
// have it stopped, leave this package out and call the provider under the lock, with its ctx:
//
//	err := locks.Mutex("migrations/shop").Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
//		_, err := provider.Up(ctx)
//		return err
//	})
package gooselock

import (
	"context"
	"database/sql"

	"github.com/pressly/goose/v3/lock"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// A Locker is goose's Locker and SessionLocker on etcd, for goose.WithLocker or goose.WithSessionLocker. It makes no use
// of the database. It is safe for concurrent use.
type Locker struct {
	locks *etcdlock.Client
	name  string
	holds hold.ByName
}

var (
	_ lock.Locker        = (*Locker)(nil)
	_ lock.SessionLocker = (*Locker)(nil)
)

// New makes a Locker. It makes no request. Give each database a name of its own.
func New(locks *etcdlock.Client, name string) *Locker { return &Locker{locks: locks, name: name} }

// Lock waits for the lock, until ctx ends or etcd refuses. Nothing is left behind after an error.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	h, err := l.locks.Mutex(l.name).Lock(ctx)
	if err != nil {
		return err
	}
	l.holds.Add(l.name, h)
	return nil
}

// Unlock releases the lock. It waits until etcd has confirmed that, the lease must have expired, or ctx ends; the
// release goes on then. Its error is etcdlock.ErrLost if the lock was lost: then another process may have migrated at
// the same time. Goose returns the error from Up and its like.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error { return l.holds.Unlock(ctx, l.name) }

// SessionLock is Lock.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.Lock(ctx, nil) }

// SessionUnlock is Unlock.
func (l *Locker) SessionUnlock(ctx context.Context, _ *sql.Conn) error { return l.Unlock(ctx, nil) }
