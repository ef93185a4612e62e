package gocronlock

import (
	"context"
	"errors"
	"sync"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/hold"
)

// An Elector is gocron's Elector on etcd. It is safe for concurrent use.
type Elector struct {
	elector *etcdlock.Elector

	mu    sync.Mutex
	term  *etcdlock.Held  // nil while this process does not lead
	ctx   context.Context // ends with the term, and when Run's ctx ends
	tasks sync.WaitGroup  // those that began in the term; mu is held to add one
}

// NewElector makes an Elector. It makes no request: Run does.
func NewElector(locks *etcdlock.Client, name string, opts ...etcdlock.ElectorOption) *Elector {
	return &Elector{elector: locks.Elector(name, opts...)}
}

// Run campaigns, leads until ctx ends, and campaigns again after the loss of a term. It is for a goroutine of its own,
// beside the scheduler. It blocks until ctx has ended, no function of [Elector.Task] runs, and etcd has confirmed the
// resignation, or until etcd refuses for good. It is nil if ctx has ended.
//
// Jobs that are not made by Task may go on when Run has returned: wait for the scheduler's Shutdown before ctx ends.
func (e *Elector) Run(ctx context.Context) error {
	err := e.elector.Run(ctx, func(ctx context.Context, term *etcdlock.Held) error {
		e.set(ctx, term)
		<-ctx.Done()
		e.set(ctx, nil)
		e.tasks.Wait() // so nobody else leads before they have returned, unless the term was lost
		return nil
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (e *Elector) set(ctx context.Context, term *etcdlock.Held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ctx, e.term = ctx, term
}

// ErrNotLeader is what IsLeader returns while this process does not lead.
var ErrNotLeader = errors.New("gocronlock: this process does not lead")

// IsLeader is nil while this process leads. It makes no request.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leadsLocked()
}

func (e *Elector) leadsLocked() error {
	if e.term == nil || !e.term.Valid() {
		return ErrNotLeader
	}
	return nil
}

// Task makes a task of fn whose ctx ends also with the term in which it began, and when Run's ctx ends: gocron asks
// IsLeader before a job, and not again. If this process does not lead, it returns ErrNotLeader and does not call fn.
func (e *Elector) Task(fn Task) Task {
	return func(ctx context.Context) error {
		e.mu.Lock()
		if err := e.leadsLocked(); err != nil {
			e.mu.Unlock()
			return err
		}
		e.tasks.Add(1)
		ctx, cancel := hold.Join(ctx, e.ctx)
		e.mu.Unlock()
		defer e.tasks.Done()
		defer cancel()
		return fn(ctx)
	}
}
