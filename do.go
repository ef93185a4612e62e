// Do, and what a ctx knows of the hold that it runs under.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/loan"
)

// lend returns ctx with the hold, which is found by all locks of its lender. outer is the caller's ctx, which ctx is made of.
func (h *Held) lend(ctx, outer context.Context, lead bool) (context.Context, *loan.Loan[*Held]) {
	return loan.Lend(loan.Ending(ctx, outer, &h.acquisition), h, lead, h.names(), h.s.lender())
}

// lender is the session, or its Client: a Client's hold is its caller's own whatever session the next acquisition would be in.
func (s *Session) lender() any { return cmp.Or(s.config.client, any(s)) }

func (l *lock) do(ctx context.Context, op string, fn func(context.Context, *Held) error) error {
	l = l.made()
	if n := l.loanIn(ctx); n != nil && l.err == nil {
		switch err := n.Hold.Err(); {
		case err != nil:
			return l.wrap(op, err)
		case n.Lead || !n.Hold.nests(l):
			return l.wrap(op, ErrWouldDeadlock)
		case fn != nil:
			return l.run(ctx, op, n.Hold, fn, ErrLost, ErrNotHeld)
		}
	}
	if fn == nil {
		return l.wrap(op, errors.New("fn is nil"))
	}
	h, err := l.lock(ctx, op)
	if err != nil {
		return err
	}
	lent, n := h.lend(ctx, ctx, false)
	defer n.End()
	defer func() { _ = h.Unlock(ctx) }()  // when fn panics; else it is done
	err = l.run(lent, op, h, fn, ErrLost) // not ErrNotHeld: fn has unlocked
	// If ctx ends, the release goes on. Etcd may say only with it that the hold was lost.
	later, cancel := etcd.Grace(ctx)
	defer cancel()
	uerr := h.unlock(later)
	if lost := errors.Is(uerr, ErrLost); lost && !errors.Is(err, ErrLost) || uerr != nil && !lost && !errors.Is(uerr, ErrNotHeld) && ctx.Err() == nil {
		err = loan.Join(l.wrap(op, uerr), err)
	}
	return err
}

// run runs fn under h, with a ctx that ends with h. If h has ended with one of the errors, that is its error.
func (l *lock) run(ctx context.Context, op string, h *Held, fn func(context.Context, *Held) error, ends ...error) error {
	inner, stop := etcd.Bind(ctx, h.Context())
	defer stop()
	err := fn(inner, h)
	ended := h.Err()
	for _, end := range ends {
		if errors.Is(ended, end) && !errors.Is(err, end) { // else a Do inside has said it
			err = loan.Join(l.wrap(op, ended), err)
		}
	}
	return err
}

// nests reports whether a Do of l may run inside the hold. The hold must have exactly l's names, and write what l would write.
func (h *Held) nests(l *lock) bool {
	h.mu.Lock() // for the kinds
	defer h.mu.Unlock()
	n := 0
	for p := range h.all() {
		if slices.Contains(l.queues, *p.Queue) || slices.Contains(l.queues, keyspace.Queue{Name: p.Name, Kind: reading}) {
			n++
		}
	}
	return l.multi == h.multi && n == len(l.queues) && n == len(h.parts())
}
