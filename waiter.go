package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A waiter waits, from the txn that put its entry into the queue, until the entry has the lock:
//
//  0. Behind others that wait on the same client and are not near the front, wait until one of
//     them is (see lineUp).
//  1. Read what blocks the entry, unless the txn has shown it already. Near the front that is all
//     that is left below, otherwise the last entry but two.
//  2. Watch that from now, and verify that it was there when the watch began. If not, go to 4.
//  3. Wait for the deletion of the blockers, or for another of the ends in wait.
//  4. If nothing can be left below, the entry has the lock. If the blocker was the last but two,
//     the last two block now: go to 2, and verify there what is left. Else read the queue at the
//     revision of the deletion: nothing is left, or go to 2.
//
// Near the front it watches its own entry too, in the same watch. A waiter that is deeper learns
// that its entry was removed from the rechecks, or when it comes near.
//
// Invariant (I1): an entry has the lock only after a revision at which it was in the queue and
// nothing that blocks it was below. Nothing is ever added below an entry, so what was true there
// stays true.
//
// Invariant (I3): the queue is judged only at a revision at which the entry is in it. A read below
// that shows a queue without us, and a read of a member that lags may miss what the watch has missed
// too; so reads are pinned, or linearizable.
type waiter struct {
	*entry
	queue.View  // what it waits for, if viewKnown
	viewKnown   bool
	unconfirmed bool   // View is to be confirmed by a read behind the watch
	viewRev     int64  // if not viewKnown: the revision to read, 0 for the present
	readLimit   int64  // of a read, in keys; 0 for none
	crowded     bool   // it shares a watch on all of the queue
	watch       *watch // on the blockers, in the range from..to
	from, to    string
	retry       etcd.Backoff // after an error that passes
	outage      outage       // for the log
	// From start to stop:
	recheckTimer *time.Timer
	unbind       func() // the ctx of the wait from the session
	in           *crowd
	// In the line of its crowd:
	before   *waiter       // the waiter that it waits for there, nil if it asks etcd
	passed   bool          // it is not in line any more
	passedAt int64         // its view's revision then, 0 for none
	turn     chan struct{} // made for the waiter behind, and closed when this one has passed
}

func newWaiter(e *entry, v queue.View, known bool) *waiter {
	return &waiter{entry: e, View: v, viewKnown: known, viewRev: v.At, outage: outage{e: e}, readLimit: viewLimit}
}

// errEntryGone: the entry is not in the queue anymore.
var errEntryGone = errors.New("entry gone")

// wait blocks until the entry is held, or ctx or the session ends, or somebody else removes the
// entry, or etcd refuses. After an error the entry is still to be abandoned.
//
// Keep the blocking path under 1,248 bytes of stack, callers included: a goroutine then keeps
// 4 KiB, not 8.
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
		// An outage of etcd keeps the place in the queue; the rest ends the wait.
		if err := w.handleErr(ctx, err); err != nil {
			return err
		}
	}
}

func (w *waiter) start(ctx context.Context) context.Context {
	ctx, w.unbind = etcd.Bind(ctx, w.s.ctx)
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
		// Correctness depends on no event: now and then, ask.
		return w.recheck(ctx)
	}
}

// awaitTurn blocks until the one before it in line has passed. It is not a case of await, which has
// an event on its stack: most waiters of a long queue block here.
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

// handleEvent takes note of what the watch tells: a blocker left, or the own entry; or the watch
// ended (no leader, compacted, closed) and may have missed that.
func (w *waiter) handleEvent(wr *clientv3.WatchResponse, ok bool) error {
	w.dropBlockers(etcd.Latest(wr), func(q queue.Entry) bool { return etcd.Deleted(wr, q.Key, w.At) })
	switch {
	case etcd.Deleted(wr, w.key, w.rev):
		return errEntryGone
	case w.viewKnown && len(w.Blockers) == 0:
		return nil // it has the lock, whatever becomes of the watch
	}
	return etcd.Broken(wr, ok)
}

// prepare brings the waiter to the point of waiting: the blockers are watched and were there after
// the watch began. On the way it may find that none is left.
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
		w.retry.Reset()
		if w.unconfirmed || w.watch.at > w.At { // otherwise nothing can have gone before the watch
			if err := w.verifyBlockers(ctx); err != nil {
				return err
			}
		}
	}
	w.outage.stop(true)
	return nil
}

// handleErr returns the error that ends the wait, or nil, after a pause if err passes; then the
// waiter reads the present.
func (w *waiter) handleErr(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return w.s.waitError(ctx)
	case errors.Is(err, errEntryGone):
		w.s.confirmLease(ctx)
		if ctx.Err() != nil {
			return w.s.waitError(ctx)
		}
		return cmp.Or(w.s.Err(), ErrLost)
	case !errors.Is(err, etcd.ErrWatch) && etcd.Refused(err), errors.Is(err, ErrSessionExpired):
		return err
	}
	w.outage.start(ctx, err)
	_ = w.retry.Wait(ctx) // ctx is looked at next
	w.invalidate(0)
	return nil
}

// grant makes the entry held, unless its owner does not want it anymore, or it can't be vouched
// for.
func (e *entry) grant(ctx context.Context) error {
	if ctx.Err() != nil {
		return e.s.waitError(ctx)
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
