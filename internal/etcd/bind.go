// A ctx that ends with two others.

package etcd

import (
	"context"
	"fmt"
	"sync"
)

// Bind returns a ctx that ends with ctx and with life, whichever ends first, and has its cause. It ends with ctx at once, and a
// moment after life, unless WithEnd has made life.
func Bind(ctx, life context.Context) (context.Context, func()) {
	if e, ok := life.(*endsAll); ok {
		return e.bind(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// WithEnd is context.WithCancelCause for a parent that does not end. When end returns, all ctxs have ended that Bind has made with
// ctx as their life. Without that, each of them would end on a goroutine of its own: of 2,000 the last one 300 ms later.
func WithEnd(parent context.Context) (ctx context.Context, end context.CancelCauseFunc) {
	own, cancel := context.WithCancelCause(parent)
	e := &endsAll{Context: own}
	return e, func(cause error) {
		cancel(cause)
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, cancel := range e.bound {
			cancel(context.Cause(e))
		}
	}
}

// endsAll is a ctx that knows which ctxs end with it.
type endsAll struct {
	context.Context
	mu    sync.Mutex
	bound map[context.Context]context.CancelCauseFunc // nil before the first
}

// String is for whoever prints ctxs: fmt would read what mu guards.
func (e *endsAll) String() string { return fmt.Sprint(e.Context) }

// bind is Bind. The ctx that it is given may be the caller's own code, which cancel would ask, with mutexes of the package held. So
// a ctx stands in between, which is all that cancel asks.
func (e *endsAll) bind(ctx context.Context) (context.Context, func()) {
	between, leave := context.WithCancel(ctx)
	bound, cancel := context.WithCancelCause(between)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bound == nil {
		e.bound = make(map[context.Context]context.CancelCauseFunc)
	}
	e.bound[bound] = cancel
	if e.Err() != nil {
		cancel(context.Cause(e))
	}
	return bound, func() { e.unbind(bound); leave() }
}

func (e *endsAll) unbind(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.bound, ctx)
}
