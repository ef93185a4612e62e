// Package gocronlock has the jobs of gocron run in one replica, by an election or by a lock for each job.
//
// With an [Elector] one replica runs all jobs, until it ends or loses its term. With a [Locker] each run of a job goes to
// the replica that is first, so the work is spread, and each run costs two requests.
package gocronlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// A Task is a function of a job. Gocron gives it the job's ctx.
type Task = func(ctx context.Context) error

// A Locker is gocron's Locker on etcd. It is safe for concurrent use.
type Locker struct {
	locks   *etcdlock.Client
	prefix  string
	holdFor time.Duration

	mu    sync.Mutex
	holds map[string]*etcdlock.Held // by the job's name: those that no Task has taken
}

// NewLocker makes a Locker. It makes no request. The lock of a job has the name prefix + the job's name: give each job
// one, by gocron.WithName.
//
// A job that is quick ends before the clock of the next replica strikes, and would run there again. So the Locker keeps a
// lock for at least the time holdFor from its grant: choose more than the clocks differ, and less than the time between two
// runs. With 0 a quick job runs in every replica, one after the other. But no lock outlives its session: if a process ends
// within holdFor after a quick job, a replica whose clock is behind may run the job again.
func NewLocker(locks *etcdlock.Client, prefix string, holdFor time.Duration) *Locker {
	return &Locker{locks: locks, prefix: prefix, holdFor: holdFor, holds: map[string]*etcdlock.Held{}}
}

// Lock takes the lock of a job, or returns etcdlock.ErrLocked: then another replica runs the job, and gocron skips it
// here, as it does for any other error. It waits for etcd's answer, for 5 s at most.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	h, err := hold.Try(ctx, l.locks.Mutex(l.prefix+key))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[key] = h
	return &lock{h, time.Now(), l, key}, nil
}

// Task makes a task of fn, for the job of that name, whose ctx ends also when the lock of the job is lost: gocron itself
// tells a job nothing of that. Without the lock it returns etcdlock.ErrNotHeld, and does not call fn.
func (l *Locker) Task(key string, fn Task) Task {
	return func(ctx context.Context) error {
		h := l.take(key, nil)
		if h == nil {
			return etcdlock.ErrNotHeld
		}
		ctx, cancel := hold.Join(ctx, h.Context())
		defer cancel()
		err := fn(ctx)
		if lost := h.Err(); errors.Is(lost, etcdlock.ErrLost) && !errors.Is(err, etcdlock.ErrLost) {
			err = errors.Join(lost, err)
		}
		return err
	}
}

// take removes the hold of a job, so that no other run of the job takes it for its own. If only is not nil, it removes
// that hold alone.
func (l *Locker) take(key string, only *etcdlock.Held) *etcdlock.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holds[key]
	if only == nil || h == only {
		delete(l.holds, key)
	}
	return h
}

type lock struct {
	held    *etcdlock.Held
	granted time.Time
	locker  *Locker
	key     string
}

// Unlock releases the lock, or has it released when it was held for long enough. Its error is etcdlock.ErrLost if the
// lock was lost; gocron drops that.
func (l *lock) Unlock(ctx context.Context) error {
	l.locker.take(l.key, l.held)
	return hold.UnlockAfter(ctx, l.held, l.granted, l.locker.holdFor)
}
