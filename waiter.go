// Waiting for the lock, from the place in the queue to the grant.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// A waiter waits, from the txn that put its entry into the queue, until the entry has the lock. It
// does what the waitlist of its session says:
//
//  1. As long as two entries of the list wait before it, it asks etcd nothing: it has to wait for
//     them anyway, and can't be near the front before they are. (While the lock goes from one entry
//     of the list to the next, one of those behind the two reads ahead.)
//  2. The front-most two read what blocks them, unless that is known already. Near the front that
//     is all that is left below, otherwise the last entry but two.
//  3. They watch that from now, and verify that it was there when the watch began.
//  4. When the blockers are gone, and nothing can be left below, the entry has the lock. If an
//     entry of the list was before it, it has the lock as soon as that is given back.
//
// Near the front it watches its own entry too, in the same watch. A waiter that is deeper learns
// that its entry was removed when the session asks, or when it comes near.
//
// Invariant (I1): an entry has the lock only after a revision at which it was in the queue and
// nothing that blocks it was below, but for entries of its session that were given back, or given up
// before they had the lock, and whose fence is not in use. The list keeps it.
//
// Invariant (I3): the queue is judged only at a revision at which the entry is in it. A read at
// an older revision does not show the entry itself, and a member that lags may miss the event that
// the watch has missed; so reads are pinned, or linearizable.
type waiter struct {
	*entry
	watch  *etcd.Watch
	retry  etcd.Backoff  // after an error that passes
	outage outage.Outage // for the log
	unbind func()        // the ctx of the wait from the session
	// guard is when to watch those of the session that the entry waits for.
	guard   <-chan time.Time
	explain bool // whom it has waited for, if it is given up
}

func newWaiter(e *entry, explain bool) *waiter {
	return &waiter{entry: e, outage: e.s.lease.Outages.Outage(e.name), explain: explain}
}

// errEntryGone: the entry is not in the queue anymore.
var errEntryGone = errors.New("entry gone")

// wait blocks until the entry may have the lock, or ctx or the session ends, or somebody else removes the
// entry, or etcd refuses. After an error the entry is still to be abandoned.
//
// Keep the blocking path under 1,248 bytes of stack, callers included: a goroutine then keeps
// 4 KiB, not 8.
func (w *waiter) wait(ctx context.Context) error {
	ctx = w.start(ctx)
	defer w.stop()
	for {
		granted, err := w.advance(ctx)
		switch {
		case err != nil:
		case granted:
			return nil
		case w.watch != nil:
			err = w.await(ctx)
		default:
			err = w.awaitTurn(ctx)
		}
		// An outage of etcd keeps the place in the queue; the rest ends the wait.
		if err := w.handleErr(ctx, err); err != nil {
			return err
		}
	}
}

func (w *waiter) start(ctx context.Context) context.Context {
	ctx, w.unbind = etcd.Bind(ctx, w.s.lease.Ctx)
	if w.explain {
		w.s.whom.Enter(w.name, w.rev)
	}
	return ctx
}

func (w *waiter) stop() {
	w.outage.Stop(false)
	closeAll(w.own.Stop())
	if w.explain {
		w.s.whom.Leave(w.name)
	}
	w.unbind()
}

// await blocks until something has happened, and takes note of it.
func (w *waiter) await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		// The caller's ctx, or the session's end.
		return ctx.Err()
	case <-w.own.Wake():
		return nil
	case wr, ok := <-w.watch.C:
		w.watch.Heard()
		return w.handleEvent(&wr, ok)
	case <-w.guard:
		w.guard = nil
		w.own.Guard()
		return nil
	}
}

// awaitTurn blocks until the list has something to do for the entry. It is not a case of await, which has
// an event on its stack: most waiters of a long queue block here.
func (w *waiter) awaitTurn(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.own.Wake():
		return nil
	case <-w.guard:
		w.guard = nil
		w.own.Guard()
		return nil
	}
}

// handleEvent takes note of what the watch tells: keys were deleted; or the watch ended (no leader,
// compacted, closed) and may have missed that.
func (w *waiter) handleEvent(wr *clientv3.WatchResponse, ok bool) error {
	if len(wr.Events) > 0 {
		deletions := make([]waitlist.Deletion, 0, len(wr.Events))
		for _, ev := range wr.Events {
			deletions = append(deletions, waitlist.Deletion{Key: string(ev.Kv.Key), Rev: ev.Kv.ModRevision})
		}
		markAllLost(w.own.Heard(deletions), etcd.Latest(wr))
	}
	err := etcd.Broken(wr, ok)
	if err != nil && w.own.Granted() {
		return nil // whatever becomes of the watch
	}
	return err
}

// handleErr returns the error that ends the wait. If err is temporary, it pauses and returns nil, and
// the waiter then reads the present.
func (w *waiter) handleErr(ctx context.Context, err error) error {
	if final := w.ending(ctx, err); err == nil || final != nil {
		return final
	}
	w.outage.Start(ctx, err)
	w.unwatch(true)
	w.own.Fail()
	w.pause(ctx)
	return nil
}

// ending is the error that ends the wait, nil if err is none or passes.
func (w *waiter) ending(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && w.explain && w.s.Err() == nil:
		return w.s.whom.Explain(w.s.lease.WaitError(ctx), w.name, w.mode.kind(), w.rev)
	case ctx.Err() != nil:
		return w.s.lease.WaitError(ctx)
	case errors.Is(err, errEntryGone):
		return w.s.goneError(ctx)
	case !errors.Is(err, etcd.ErrWatch) && etcd.Refused(err), errors.Is(err, ErrSessionExpired):
		return err
	}
	return nil
}

// pause waits before the next attempt, unless the lock is handed over meanwhile. ctx is looked at next.
func (w *waiter) pause(ctx context.Context) {
	over := time.NewTimer(w.retry.Next())
	defer over.Stop()
	for !w.own.Granted() {
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-w.own.Wake():
		}
	}
}

// goneError is the error of a wait whose entry is gone: it says whether the lease has taken it.
func (s *Session) goneError(ctx context.Context) error {
	s.lease.Confirm(ctx)
	if ctx.Err() != nil {
		return s.lease.WaitError(ctx)
	}
	return cmp.Or(s.Err(), ErrLost)
}

// grant makes the entry held, unless its owner does not want it anymore, or it can't be vouched
// for.
func (e *entry) grant(ctx context.Context) error {
	for {
		switch {
		case ctx.Err() != nil:
			return e.s.lease.WaitError(ctx)
		case e.s.Err() != nil:
			return e.s.Err()
		}
		if e.s.lease.Valid() {
			break
		}
		// The wall clock was set forward, or a renewal is late: the place is kept until there is one.
		if err := e.s.lease.Refresh(ctx); err != nil {
			return err
		}
	}
	e.mu.Lock()
	lost := false // already
	for p := range e.all() {
		lost = lost || p.own != nil && !p.own.Granted()
	}
	if !lost && e.transition(held) && !e.ambiguous && e.mode != writeMode && e.acquiring.trace == nil && e.first == nil {
		e.acquiring = nil
	}
	e.mu.Unlock()
	if lost {
		return e.s.goneError(ctx)
	}
	return nil
}
