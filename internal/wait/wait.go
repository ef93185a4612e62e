// Package wait has entries of waitlists wait for their locks: it makes the requests and opens the watches that a
// list asks for, until the entry has its lock or the wait ends. It knows nothing of sessions, leases and holds.
package wait

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// A waiter waits, from the txn that put its entry into the queue, until the entry has the lock. It does what the
// waitlist of the entry says, which decides all of this (waitlist.Entry.Next):
//
//  1. If two entries of the list wait before it, it asks etcd nothing, since it has to wait for them anyway. There is
//     one exception: while entries of the list hand the lock to each other, the third one reads in advance.
//  2. The first two read what blocks them, unless the list knows that. If writers of at most waitlist.Lookahead
//     sessions are before it, the entry waits for all of them; otherwise for the entry whose removal leaves Lookahead sessions ahead.
//  3. They open a watch on these blockers from now, and verify that the blockers were there when the watch began. In a
//     short queue the watch is on all of it. That one stays for the entries to come, and so does one on a single key.
//     An entry that finds the watch that it needs opens and verifies nothing.
//  4. When the blockers are gone, and nothing else is below, the entry has the lock. If an entry of the same list
//     has the lock before it, it has the lock as soon as that one gives it back.
//
// A waiter with few before it watches its own entry too, in the same watch. One with more before it learns that its
// entry was removed when somebody tells the list, or when fewer are before it.
//
// Invariant (I1): an entry has the lock only after a revision at which it was in the queue and nothing that blocks
// it was below. Entries of its own list do not count that were released with no fence in use (see doc.go), or were
// given up before they had the lock. The list keeps this invariant.
//
// Invariant (I3): the queue is judged only at a revision at which the entry is in it. A read at an older revision
// does not show the entry. A member that lags may show a blocker whose deletion came before the watch. So reads are
// pinned, or linearizable.
type waiter struct {
	*Waits
	own    *waitlist.Entry
	retry  etcd.Backoff  // after an error that passes
	outage outage.Outage // for the log
	unbind func()        // ends the ctx of the wait
	// guard fires when the entry has waited for holders of its own list for GuardAfter.
	guard <-chan time.Time
	asked int       // how often it has asked etcd without a pause, or a second in between
	last  time.Time // when it did
}

// Waits are those of a client of etcd. The fields are set before the first wait.
type Waits struct {
	Client *etcd.Client
	// Life ends the waits, and the watches: a list may keep one for longer than the wait that has opened it.
	Life    context.Context
	Outages *outage.Source
	// GuardAfter is how long an entry waits for others of its list until it watches them: see waitlist.Entry.Guard.
	GuardAfter time.Duration
	// Go runs f in the background, or returns false if Life is about to end.
	Go     func(f func(ctx context.Context)) bool
	Opened func() // is called when a watch was opened
	// Gone reports whether an entry is gone that is taken together with this one.
	Gone     func(own *waitlist.Entry) bool
	EndError func(ctx context.Context) error // the error of a wait whose ctx has ended
	// Lost is told of entries that had the lock and were not in etcd at revision at.
	Lost func(entries []*waitlist.Entry, at int64)
}

// ErrGone says that an entry is not in the queue any more.
var ErrGone = errors.New("entry gone")

// Wait blocks until the entry has the lock, or ctx or Life ends (the error is EndError), or somebody else removes
// the entry (ErrGone), or etcd refuses, or its client is closed. After an error the entry is still to be given up.
//
// Keep the blocking path under 1,248 bytes of stack, callers included: a goroutine then keeps 4 KiB, not 8.
func (ws *Waits) Wait(ctx context.Context, own *waitlist.Entry) error {
	w, ctx := ws.start(ctx, own)
	defer w.stop()
	for {
		granted, err := w.advance(ctx)
		switch {
		case err != nil:
		case granted:
			return nil
		default:
			err = w.await(ctx)
		}
		if err == nil {
			continue
		}
		if err = w.handleErr(ctx, err); err != nil {
			return err
		}
	}
}

// handleErr returns the error of the wait if err ends it. If not, it pauses before the next attempt.
func (w *waiter) handleErr(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return w.EndError(ctx) // before stop: the error says why etcd is away, as this wait's outage knows
	case errors.Is(err, ErrGone), errors.Is(err, etcd.ErrClientClosed),
		etcd.Refused(err) && !errors.Is(err, etcd.ErrWatch): // if a watch is refused, the next read is too
		return err
	}
	// An outage of etcd keeps the place in the queue. The waiter then reads the present.
	w.outage.Start(ctx, err)
	w.own.Fail()
	w.pause(ctx)
	w.asked = 0
	return nil
}

// start begins a wait, whose ctx ends with Life too. It is a function of its own so that the waiter is not on the
// stack.
func (ws *Waits) start(ctx context.Context, own *waitlist.Entry) (*waiter, context.Context) {
	own.Begin()
	ctx, unbind := etcd.Bind(ctx, ws.Life)
	return &waiter{Waits: ws, own: own, outage: ws.Outages.Outage(own.Name()), unbind: unbind}, ctx
}

func (w *waiter) stop() {
	w.outage.Stop(false)
	w.own.Stop()
	w.unbind()
}

// advance does what the list says until the entry has the lock or has to wait.
func (w *waiter) advance(ctx context.Context) (granted bool, err error) {
	for err == nil {
		if w.Gone(w.own) {
			return false, ErrGone
		}
		step := w.own.Next()
		switch step.Do {
		case waitlist.Grant:
			return true, nil
		case waitlist.Gone:
			return false, ErrGone
		case waitlist.Read, waitlist.Open:
			err = w.ask(ctx, &step)
		case waitlist.Pause:
			err = step.Err
		case waitlist.Wait:
			w.outage.Stop(true)
			switch {
			case !step.Guard:
				w.guard = nil
			case w.guard == nil:
				w.guard = time.After(w.GuardAfter)
			}
			return false, nil
		}
	}
	return false, err
}

// maxAsked is how often a waiter asks etcd without a pause. One that needs more than a few answers has a list that
// etcd's answers do not satisfy, as after a restore that nobody has noticed yet.
const maxAsked = 32

// ask asks etcd what the list wants, unless it takes a pause first: then the list may want something else.
func (w *waiter) ask(ctx context.Context, step *waitlist.Step) error {
	if now := time.Now(); now.Sub(w.last) > 2*etcd.RetryMax { // more than any pause
		w.asked = 0
	}
	if w.asked == maxAsked {
		w.pause(ctx)
		w.asked--
		return nil
	}
	w.asked++
	defer func() { w.last = time.Now() }()
	if step.Do == waitlist.Open {
		return w.open(ctx, step)
	}
	return w.read(ctx, step)
}

// await blocks until Next may say something else. Most waiters of a long queue block here.
func (w *waiter) await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.own.Wake():
		return nil
	case <-w.guard:
		w.own.Guard()
		return nil
	}
}

// pause waits before the next attempt, unless the lock is handed over meanwhile. ctx is looked at next.
func (w *waiter) pause(ctx context.Context) {
	over := time.After(w.retry.Next())
	for !w.own.Granted() {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-w.own.Wake(): // advance looks at the rest again
		}
	}
}

// open opens a watch, for this entry and for those to come.
func (w *waiter) open(ctx context.Context, step *waitlist.Step) error {
	on, err := w.Client.OpenWatch(ctx, w.Life, step.From, step.To, clientv3.WithFilterPut())
	if err != nil {
		return err
	}
	w.Opened()
	w.retry.Reset()
	watch := &waitlist.Watch{From: step.From, To: step.To, At: on.At, Close: on.Close}
	w.own.Opened(watch)
	w.Go(func(context.Context) { w.follow(on, watch) }) // or Life is about to end, and the watch with it
	return nil
}

// follow tells the list what a watch tells: keys were deleted, the only events that open asks for; or the watch ended
// (no leader, compacted, closed) and may have missed some. It ends with the watch, which its list closes, or Life.
func (ws *Waits) follow(on *etcd.Watch, watch *waitlist.Watch) {
	defer on.Close()
	for {
		var wr clientv3.WatchResponse
		var ok bool
		select {
		case wr, ok = <-on.C:
		case <-on.Closed:
		}
		if ok {
			on.Heard(&wr)
		}
		if len(wr.Events) > 0 {
			deletions := make([]waitlist.Deletion, 0, len(wr.Events))
			for _, ev := range wr.Events {
				deletions = append(deletions, waitlist.Deletion{Key: string(ev.Kv.Key), Rev: ev.Kv.ModRevision})
			}
			ws.Lost(watch.Heard(deletions), etcd.Latest(&wr))
		}
		if err := etcd.Broken(&wr, ok); err != nil {
			watch.Broke(err)
			return
		}
	}
}
