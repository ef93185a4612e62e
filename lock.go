// The ways to take a lock of any kind: lock, try, enqueue, adopt.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/loan"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

func newLock(from source, name string, kind keyspace.Kind) *lock {
	return &lock{from: from, queues: []keyspace.Queue{{Name: name, Kind: kind}}, err: checkName(name, from != nil && from.slash())}
}

// made is l. The zero value of a Mutex has none, and each call of it fails.
func (l *lock) made() *lock {
	if l == nil {
		return &lock{err: errors.New("the lock was not made by a Client, or with NewMutex, NewRWMutex or NewMulti")}
	}
	return l
}

func (l *lock) lock(ctx context.Context, op string) (*Held, error) {
	return acquire(ctx, l, op, ErrWouldDeadlock, lockEntry)
}

func (l *lock) try(ctx context.Context, op string) (*Held, error) {
	return acquire(ctx, l, op, ErrLocked, tryEntry)
}

func (l *lock) enqueue(ctx context.Context, op string) (*Ticket, error) {
	return acquire(ctx, l, op, ErrWouldDeadlock, enqueueEntry)
}

// acquire takes the lock by the given way in a session of its source, and again in the next one if the source says
// that only the session failed. Under a ctx of Do that holds the lock already, it returns errNested.
func acquire[T any](ctx context.Context, l *lock, op string, errNested error, way func(context.Context, *Held) (T, error)) (got T, err error) {
	l = l.made()
	for asked, pause := time.Now(), (etcd.Backoff{}); ; _ = pause.Wait(ctx) { // each session may be lost at once
		h, err := l.start(ctx, asked, errNested)
		if err == nil {
			got, err = way(ctx, h)
		}
		if err == nil || h == nil || !l.from.goesOn(ctx, h.s, err) {
			if _, own := l.from.(*Session); own && errors.Is(err, ErrSessionExpired) {
				err = fmt.Errorf("%w (make another session, or the locks with New, which does)", err)
			}
			return got, l.wrap(op, err)
		}
	}
}

// start makes an acquisition, unless the name is not valid, ctx runs under this lock already, or there is no session.
func (l *lock) start(ctx context.Context, asked time.Time, errNested error) (*Held, error) {
	nested := l.loanIn(ctx)
	switch {
	case l.err != nil:
		return nil, l.err
	case nested != nil:
		return nil, cmp.Or(nested.Hold.Err(), errNested) // after a loss nobody of this process has the lock
	}
	s, err := l.from.sessionFor(ctx, l, asked)
	if err == nil && ctx.Err() != nil {
		err = etcd.CtxError(ctx, nil)
	}
	if err != nil {
		return nil, err
	}
	return newAcquisition(ctx, s, l, asked), nil
}

// loanIn is the hold of this name, or of one of the names, that ctx runs under: nil if it was released.
func (l *lock) loanIn(ctx context.Context) *loan.Loan[*Held] {
	from := any(l.from)
	if s, ok := from.(*Session); ok && s != nil {
		from = s.lender()
	}
	return loan.In(ctx, from, l.names, func(h *Held) bool { return !errors.Is(h.Err(), ErrNotHeld) })
}

// newAcquisition makes an acquisition of the lock: the Held that its caller gets if it is granted.
func newAcquisition(ctx context.Context, s *Session, l *lock, asked time.Time) *Held {
	h := &Held{acquisition{s: s, multi: l.multi, report: s.newReport(ctx, l, asked), pending: &pending{lock: l}}}
	if len(l.queues) > 1 {
		many := make([]part, len(l.queues))
		h.many = &many
	}
	for i := range l.queues {
		h.parts()[i].Owner, h.parts()[i].Queue = &h.acquisition, &l.queues[i]
	}
	return h
}

func lockEntry(ctx context.Context, h *Held) (*Held, error) { return h.conclude(h.take(ctx)) }

// take enqueues the acquisition, and waits until it is granted.
func (h *Held) take(ctx context.Context) error {
	if err := h.join(ctx); err != nil {
		return err
	}
	return h.wait(ctx)
}

func enqueueEntry(ctx context.Context, h *Held) (*Ticket, error) {
	if err := h.join(ctx); err != nil {
		h.abandon(err, false)
		return nil, err
	}
	return newTicket(h)
}

// Adopt takes over a lock from the process before, whose lease this session has adopted with WithLease: the oldest
// entry of that name which hangs on the lease and is not yet the session's, with its keys and Token, of a [Multi]
// with all its names. So a process that is restarted within its TTL goes on with what it had. If there is no such
// entry the error is ErrNotFound: then Lock. A Lock of that name waits behind the entry. If such a Lock is under way, Adopt
// waits until etcd has answered its request. The caller must ensure that the process before has ended, or that its Orphan has
// returned: nobody else can tell, and otherwise both would believe that they hold the lock.
//
// If the entry has the lock, Adopt costs two requests, one more for a Multi, and an error leaves the entry as it was. If there is no
// entry, Adopt costs one request. If the entry waits, Adopt waits in its place as Lock does, and gives the place up when ctx ends.
// The fence of the hold is in use. A guard that the process before gave out stays true, so nobody may act on such a guard any more.
//
// A write lock that was downgraded comes as a read hold, whose Key is <name>/r<lease>. So does a write lock whose
// exclusive key somebody has removed: etcd has the same keys then, so look at Key before you write.
func (s *Session) Adopt(ctx context.Context, name string) (*Held, error) {
	return acquire(ctx, newLock(s, name, writing), "adopt", ErrWouldDeadlock, adoptEntry)
}

func adoptEntry(ctx context.Context, h *Held) (*Held, error) {
	h, err := takeOver(ctx, h)
	if h == nil {
		return nil, err
	}
	return h.conclude(err)
}

// takeOver adopts an entry. If it returns an acquisition together with an error, the caller must give the acquisition up.
func takeOver(ctx context.Context, h *Held) (*Held, error) {
	s, asked := h.s, time.Now()
	bound, stop := etcd.Bind(ctx, s.lease.Ctx)
	defer stop()
	a, err := s.keys.Adopt(bound, h.parts()[0].Name, maxParts, func(name string, rev int64) (own bool) {
		return slices.ContainsFunc(s.parts(), func(p *waitlist.Part) bool { return p.List().Name == name && acquisitionOf(p).rev == rev })
	})
	switch {
	case err != nil:
		return nil, cmp.Or(s.Err(), s.lease.Translate(err))
	case a == nil:
		return nil, ErrNotFound
	}
	h = newAcquisition(ctx, s, &lock{multi: a.Multi, elect: h.pending.lock.elect, queues: a.Queues()}, asked)
	for i, p := range a.Parts {
		h.parts()[i].Rekey(p.Key, p.SharedKey)
	}
	// A request of the process before may be on its way still, so the keys are settled when the hold is over.
	h.fenced, h.ambiguous = true, true
	h.enlist()
	h.enter(a.Rev, a.At, a.Seen()...)
	h.notifyEnqueued()
	if a.Holds && s.lease.Valid() && h.becomeHeld() { // there is nothing to wait for, so ctx does not matter
		return h, nil
	}
	if err = h.wait(ctx); err != nil && a.Holds && !errors.Is(err, ErrLost) {
		return nil, h.leaveToAdopt(a, err)
	}
	return h, err
}
