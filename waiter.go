package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A waiter waits, from the txn that put its entry into the queue, until the
// entry has the lock:
//
//  0. Behind others that wait on the same client and are not near the front, wait
//     until one of them is (see lineUp).
//  1. Look what blocks the entry, unless the txn has shown it already. Near the
//     front that is all that is left below, else the last but two.
//  2. Watch that from now, and see whether it was there when the watch was. If
//     not, go to 4.
//  3. Wait for the blockers' deletion, or for another of the ends in wait.
//  4. If nothing can be left below, the entry has the lock. If the blocker was
//     the last but two, the last two block now: go to 2, and look there what is
//     left. Else look at the revision of the deletion: nothing is left, or go to 2.
//
// Near the front it watches its own entry too, in the same watch. Who is deeper
// learns that it was removed from the rechecks, or when it comes near.
//
// Invariant (I1): an entry has the lock only after a revision at which it was
// in the queue and nothing that blocks it was below. Nothing is ever added
// below an entry, so what was true there stays true.
//
// Invariant (I3): the queue is judged only at a revision at which the entry is
// in it. A read below that shows a queue without us, a read of a member that
// lags may miss what the watch has missed too; so reads are pinned, or
// linearizable.
type waiter struct {
	*entry
	view               // what it waits for, if looked
	viewKnown   bool   // view is known
	unconfirmed bool   // view is to be confirmed by a look behind the watch
	viewRev     int64  // if not: the revision to look at, 0 for the present
	readLimit   int64  // of a look, in keys; 0 for none
	crowded     bool   // it shares a watch on all of the queue
	watch       *watch // on the blockers, in the range from..to
	from, to    string
	retryDelay  time.Duration // after the next trouble
	outage      outage        // for the log
	// From begin to end:
	recheckTimer *time.Timer
	unbind       func() // the ctx of the wait from the session
	in           *crowd
	// In the line of its crowd:
	before   *waiter       // whom it waits for there, nil if it asks etcd
	passed   bool          // it is not in line any more
	passedAt int64         // its view's revision then, 0 for none
	turn     chan struct{} // made for one who waits for it, and closed when it has passed
}

func newWaiter(e *entry, v view, looked bool) *waiter {
	return &waiter{entry: e, view: v, viewKnown: looked, viewRev: v.At, outage: outage{e: e}, readLimit: viewLimit, retryDelay: retryMin}
}

// errGone: the entry is not in the queue anymore.
var errEntryGone = errors.New("entry gone")

// wait blocks until the entry is held, or ctx or the session ends, or somebody
// else removes the entry, or etcd refuses. After an error the entry is still to
// be abandoned.
//
// What is below it on the stack as it blocks is kept small: while it is less than
// 1,248 bytes deep, and its callers count, a goroutine has 4 KiB and not 8.
func (w *waiter) wait(ctx context.Context) error {
	if w.viewKnown && len(w.Blockers) == 0 {
		return w.grant(ctx)
	}
	ctx = w.start(ctx)
	defer w.stop()
	for {
		err := w.prepare(ctx)
		switch {
		case err != nil:
		case w.before != nil:
			err = w.awaitTurn(ctx)
		case len(w.Blockers) == 0:
			return w.grant(ctx)
		default:
			err = w.await(ctx)
		}
		// Trouble with etcd keeps the place in the queue; the rest ends.
		if err := w.handleErr(ctx, err); err != nil {
			return err
		}
	}
}

func (w *waiter) start(ctx context.Context) context.Context {
	ctx, w.unbind = w.s.bind(ctx)
	w.recheckTimer = time.NewTimer(w.s.recheckInterval())
	w.in = w.joinCrowd()
	w.crowded = w.in.key.crowded(0, w.Size) // it stays so when others have gone
	return ctx
}

func (w *waiter) stop() {
	w.outage.stop(false)
	w.unwatch()
	w.passOn()
	w.in.leave()
	w.recheckTimer.Stop()
	w.unbind()
}

// await blocks until something has happened, and takes note of it.
func (w *waiter) await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		// The caller's ctx, or the session's end.
		return ctx.Err()
	case wr, ok := <-w.watch.events():
		return w.handleEvent(&wr, ok)
	case <-w.recheckTimer.C:
		// Correctness hangs on no event: now and then, ask.
		return w.recheck(ctx)
	}
}

// awaitTurn blocks until the one before it in line has passed. It is not a case of await,
// which has room for an event on its stack: most of a long queue stand here.
func (w *waiter) awaitTurn(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.before.turn:
		if w.viewRev > 0 { // else it is the present
			w.viewRev = max(w.viewRev, w.before.passedAt)
		}
		return nil
	case <-w.recheckTimer.C:
		return w.recheck(ctx)
	}
}

// heard takes note of what the watch tells: a blocker left, or the own entry; or
// the watch ended (no leader, compacted, closed) and may have missed that.
func (w *waiter) handleEvent(wr *clientv3.WatchResponse, ok bool) error {
	w.dropBlockers(latest(wr), func(q queued) bool { return deleted(wr, q.Key, w.At) })
	switch {
	case deleted(wr, w.key, w.rev):
		return errEntryGone
	case w.viewKnown && len(w.Blockers) == 0:
		return nil // it has the lock, whatever becomes of the watch
	}
	return broken(wr, ok)
}

// prepare brings the waiter to the point of waiting: the blockers are watched and
// were there after the watch was. On the way it may find that none is left.
func (w *waiter) prepare(ctx context.Context) (err error) {
	for w.before = nil; !w.viewKnown || len(w.Blockers) > 0 && w.watch == nil; {
		if w.before = w.lineUp(); w.before != nil {
			return nil
		}
		if !w.viewKnown {
			if err := w.load(ctx); err != nil {
				return err
			}
			continue
		}
		w.from, w.to = w.target()
		if w.watch, err = w.watchBlockers(ctx); err != nil {
			return err
		}
		w.retryDelay = retryMin
		if w.unconfirmed || w.watch.at > w.At { // otherwise nothing can have gone before the watch
			if err := w.verifyBlockers(ctx); err != nil {
				return err
			}
		}
	}
	w.outage.stop(true)
	return nil
}

// overcome returns the error that ends the wait, or nil, after a pause if err is
// trouble that passes; then the waiter looks again at the present.
func (w *waiter) handleErr(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return w.s.waitError(ctx, nil)
	case errors.Is(err, errEntryGone):
		w.s.confirmLease(ctx)
		if ctx.Err() != nil {
			return w.s.waitError(ctx, nil)
		}
		return cmp.Or(w.s.Err(), ErrLost)
	case !errors.Is(err, errWatch) && refused(err), errors.Is(err, ErrSessionExpired):
		return err
	}
	w.outage.start(ctx, err)
	_ = sleep(ctx, w.retryDelay/2+rand.N(w.retryDelay)) // ctx is looked at next
	w.retryDelay = min(2*w.retryDelay, retryMax)
	w.invalidate(0)
	return nil
}

// grant makes the entry held, unless its owner does not want it anymore, or it
// can't be vouched for.
func (e *entry) grant(ctx context.Context) error {
	if ctx.Err() != nil {
		return e.s.waitError(ctx, nil)
	}
	if !e.s.valid() {
		return cmp.Or(e.s.Err(), ErrSessionExpired)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.transition(held) && !e.ambiguous && e.mode != writeMode && e.acquiring.trace == nil {
		e.acquiring = nil
	}
	return nil
}
