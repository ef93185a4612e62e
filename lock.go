// The ways to take a lock of any kind: lock, try, enqueue.

package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/loan"
)

// A lock is a name in the sessions of a source: what a Mutex and an RWMutex are made of. A Multi's has parts instead
// of a name.
type lock struct {
	from  source
	name  string
	parts []Part
	err   error // of every call
	elect bool  // it is an Elector's

	published *published // by its entries, or nil
}

func newLock(from source, name string) lock {
	return lock{from: from, name: name, err: checkName(name, from != nil && from.slash())}
}

func (l *lock) lock(ctx context.Context, op string, m mode) (*Held, error) {
	return acquire(ctx, l, op, m, ErrWouldDeadlock, lockEntry)
}

func (l *lock) try(ctx context.Context, op string, m mode) (*Held, error) {
	return acquire(ctx, l, op, m, ErrLocked, tryEntry)
}

func (l *lock) enqueue(ctx context.Context, op string, m mode) (*Ticket, error) {
	return acquire(ctx, l, op, m, ErrWouldDeadlock, enqueueEntry)
}

// acquire takes the lock by the given way in a session of its source, and again in the next one if the source says
// that only the session failed. Under a ctx of Do that holds the lock already, it returns errNested.
func acquire[T any](ctx context.Context, l *lock, op string, m mode, errNested error, way func(context.Context, *Held) (T, error)) (got T, err error) {
	for {
		h, err := l.start(ctx, m, errNested)
		if err == nil {
			got, err = way(ctx, h)
		}
		if err == nil || h == nil || !l.from.retryable(ctx, h.s, err) {
			if _, own := l.from.(*Session); own && errors.Is(err, ErrSessionExpired) {
				err = fmt.Errorf("%w (make another session, or the locks with New, which does)", err)
			}
			return got, l.wrap(op, err)
		}
	}
}

// start makes an acquisition, unless there is a reason not to begin an acquisition.
func (l *lock) start(ctx context.Context, m mode, errNested error) (*Held, error) {
	if l.loanIn(ctx) != nil {
		return nil, errNested
	}
	s, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	return l.acquisition(ctx, s, m), nil
}

// loanIn is the hold of this name, or of one of the names, that ctx runs under: nil if it was released.
func (l *lock) loanIn(ctx context.Context) *loan.Loan[*Held] {
	return loan.In(ctx, any(l.from), l.names(), func(h *Held) bool { return !errors.Is(h.Err(), ErrNotHeld) })
}

func (l *lock) acquisition(ctx context.Context, s *Session, m mode) *Held {
	names := l.parts
	if names == nil {
		names = []Part{{l.name, m}}
	}
	return newAcquisition(s, l.parts != nil, names, acquiring{trace: s.newTrace(ctx, names, l.elect), published: l.published})
}

// newAcquisition makes an acquisition of these names.
func newAcquisition(s *Session, multi bool, names []Part, with acquiring) *Held {
	h := &Held{acquisition{s: s, multi: multi, acquiring: &with}}
	if h.parts = h.one[:]; len(names) > 1 {
		h.parts = make([]part, len(names))
	}
	for i, n := range names {
		h.parts[i] = part{of: &h.acquisition, name: n.name, mode: n.mode}
	}
	return h
}

// session is the one to begin an acquisition in, unless there is a reason not to.
func (l *lock) session(ctx context.Context) (*Session, error) {
	switch {
	case l.err != nil:
		return nil, l.err
	case l.from == nil:
		return nil, errors.New("the lock was not made by a Client, or with NewMutex, NewRWMutex or NewMulti")
	}
	s, err := l.from.session(ctx)
	if err == nil && ctx.Err() != nil {
		err = etcd.CtxError(ctx, nil)
	}
	return s, err
}

func lockEntry(ctx context.Context, h *Held) (*Held, error) {
	err := h.join(ctx)
	if err == nil {
		err = h.wait(ctx)
	}
	return h.result(err)
}

func enqueueEntry(ctx context.Context, h *Held) (*Ticket, error) {
	if err := h.join(ctx); err != nil {
		h.abandon(err)
		return nil, err
	}
	return newTicket(h)
}

func (l *lock) wrap(op string, err error) error { return wrapNames(op, l.names, err) }

func (l *lock) names() []string {
	if l.parts == nil {
		return []string{l.name}
	}
	var names []string
	for _, p := range l.parts {
		names = append(names, p.name)
	}
	return names
}
