// What the watches tell: that entries were deleted, and that there is a waiter.

package holdwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
)

// A watch looks after the hold of one key, or after those of a directory.
type watch[H comparable] struct {
	ws       *Watches[H]
	dir      *dir[H]
	from, to string          // to is empty for one key
	label    string          // for the log
	ctx      context.Context // ends with the last hold
	end      context.CancelFunc
	// What follows is guarded by ws.mu.
	holds  map[string]H  // by key
	unseen []H           // may have been removed before the watch told
	upTo   int64         // each deletion up to this revision was told; 0 before the watch is open
	wake   chan struct{} // there are unseen ones; nil for one hold, which is there from the start
}

// run watches until the last hold has left, or the session ends.
func (w *watch[H]) run(context.Context) {
	out := w.ws.Outages.Outage(w.label)
	defer out.Stop(false)
	refusals := 0
	for pauses := (pauses{}); w.ctx.Err() == nil; {
		began := time.Now()
		err := w.watch(&out)
		lasted := time.Since(began)
		out.Start(w.ctx, err)
		if !errors.Is(err, errNotOpened) {
			refusals = 0
		} else {
			failed := w.ws.verify(w.ctx, w.all(), 0)
			answers := failed == nil || etcd.Refused(failed)   // in the second case etcd denies the rights on one of the holds, perhaps
			if answers && !errors.Is(err, etcd.ErrWatchLate) { // which says that a member hangs, while others answer
				if refusals++; refusals == 2 { // etcd may not let us watch that much
					w.split()
				}
			}
			if failed != nil {
				err = failed
				out.Start(w.ctx, err) // which may say more
			}
		}
		pauses.pause(w.ctx, lasted, err)
	}
	w.giveUp()
}

// errNotOpened: there is no watch.
var errNotOpened = errors.New("the watch was not opened")

// watch looks after the holds until the watch ends.
func (w *watch[H]) watch(out *outage.Outage) error {
	own, err := w.ws.open(w.ctx, w.from, w.to, clientv3.WithFilterPut())
	if err != nil {
		return fmt.Errorf("%w: %w", errNotOpened, err) // in one line, for the log
	}
	defer own.Close()
	w.ws.mu.Lock()
	w.upTo = own.At
	w.unseen = nil // this watch judges those, too, that came while none was open: its member may lag behind them (I3)
	for _, h := range w.holds {
		w.checkLocked(h)
	}
	w.ws.mu.Unlock()
	for {
		if err := w.verifyUnseen(); err != nil {
			return err
		}
		out.Stop(true)
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-w.wake:
		case wr, ok := <-own.C:
			own.Heard(&wr)
			w.heard(&wr)
			if err := etcd.Broken(&wr, ok); err != nil {
				return err
			}
		}
	}
}

// checkLocked has the watch read whether the entry of a hold is there. If the member that watches has not reached the entry's
// revision yet, no read is needed: nothing can have been missed, and the member's queue would not show the entry (I3).
func (w *watch[H]) checkLocked(h H) {
	if w.upTo > w.ws.Rev(h) {
		w.unseen = append(w.unseen, h)
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// verifyUnseen reads whether holds are there whose loss the watch may have told before they were looked after.
func (w *watch[H]) verifyUnseen() error {
	w.ws.mu.Lock()
	unseen, at := w.unseen, w.upTo
	w.unseen = nil
	w.ws.mu.Unlock()
	if len(unseen) == 0 {
		return nil
	}
	return w.ws.verify(w.ctx, unseen, at)
}

// heard ends the holds whose entries were deleted. Deletions up to an entry's revision are those of earlier uses
// of its key, which a watch on a member that lags may still deliver.
func (w *watch[H]) heard(wr *clientv3.WatchResponse) {
	gone := make(map[H]*clientv3.Event)
	w.ws.mu.Lock()
	for _, ev := range wr.Events {
		if h, ok := w.holds[string(ev.Kv.Key)]; ok && ev.Kv.ModRevision > w.ws.Rev(h) {
			gone[h] = ev
		}
	}
	w.upTo = max(w.upTo, etcd.Latest(wr))
	w.ws.mu.Unlock()
	for h, ev := range gone {
		w.ws.Deleted(h, string(ev.Kv.Key))
	}
}

// split gives each hold of a shared watch one of its own.
func (w *watch[H]) split() {
	var singles []*watch[H]
	w.ws.mu.Lock()
	if w.dir.shared == w { // else it is for one hold, or the last one has left
		w.dir.refused, w.dir.shared = true, nil
		for key, h := range w.holds {
			single, _ := w.ws.joinLocked(key, h)
			singles = append(singles, single)
		}
		w.holds = nil
		w.end()
	}
	w.ws.mu.Unlock()
	for _, single := range singles {
		if !w.ws.Go(single.run) {
			single.giveUp()
		}
	}
}

// giveUp says of the holds that nobody looks after them any more.
func (w *watch[H]) giveUp() {
	for _, h := range w.all() {
		w.ws.Ended(h)
	}
}

func (w *watch[H]) all() []H {
	w.ws.mu.Lock()
	defer w.ws.mu.Unlock()
	return slices.Collect(maps.Values(w.holds))
}

// AwaitWaiter returns true when an entry of a kind that is excluded is in the queue of name behind revision rev,
// false when ctx or the session ends before.
func (ws *Watches[H]) AwaitWaiter(ctx context.Context, name string, rev int64, excludes func(keyspace.Kind) bool) bool {
	ctx, unbind := etcd.Bind(ctx, ws.Ctx)
	defer unbind()
	out := ws.Outages.Outage(name)
	defer out.Stop(false)
	for pauses := (pauses{}); ctx.Err() == nil; {
		began := time.Now()
		err := ws.findWaiter(ctx, name, rev, excludes, &out)
		if err == nil {
			return true
		}
		out.Start(ctx, err)
		pauses.pause(ctx, time.Since(began), err)
	}
	return false
}

// findWaiter blocks until there is such an entry, or the watch ends. The watch comes first and the read after it,
// so that nobody is missed in between. It reads even if no watch can be had.
func (ws *Watches[H]) findWaiter(ctx context.Context, name string, rev int64, excludes func(keyspace.Kind) bool, out *outage.Outage) error {
	from, to := keyspace.Exclusives(name)
	if excludes(keyspace.Shared) {
		_, to = keyspace.Shareds(name)
	}
	w, notOpened := ws.open(ctx, from, to, clientv3.WithFilterDelete())
	if notOpened == nil {
		defer w.Close()
	}
	waits := func(kv *mvccpb.KeyValue) bool { return excludes(keyspace.KindOf(name, string(kv.Key))) }
	var seen int64
	look := func() (found bool, err error) {
		done, err := turn(ctx, ws.reading)
		if err != nil {
			return false, err
		}
		defer done()
		// At the present: the member that watches may lag, and show waiters that have gone.
		got, at, err := ws.Etcd.ReadAt(ctx, ws.Ctx, 0, etcd.ReadRange(from, to, clientv3.WithMinCreateRev(rev+1)))
		seen = at
		return err == nil && slices.ContainsFunc(got[0].Kvs, waits), err
	}
	refresh := ws.refreshed()
	switch found, err := look(); {
	case found || err != nil:
		return err
	case notOpened != nil:
		return notOpened
	}
	out.Stop(true)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-refresh:
			refresh = ws.refreshed()
			if found, err := look(); found || err != nil {
				return err
			}
		case wr, ok := <-w.C:
			w.Heard(&wr)
			for _, ev := range wr.Events {
				if ev.Kv.CreateRevision > seen && waits(ev.Kv) {
					return nil
				}
			}
			if err := etcd.Broken(&wr, ok); err != nil {
				return err
			}
		}
	}
}
