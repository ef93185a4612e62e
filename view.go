package etcdlock

import (
	"context"
	"errors"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a waiter reads the queue, and keeps its view of it.

// lookLimit is how many keys a look reads at first: a writer's own two, and the
// two each of the writers that are near, and of one more.
const viewLimit = 2 + 2*(lookahead+1)

// look reads what blocks the entry, and whether it is in the queue there.
func (w *waiter) load(ctx context.Context) error {
	from, to := w.mode.blockingRange(w.name)
	for ; ; w.readLimit = 0 {
		reads := []reading{readRange(from, to, clientv3.WithMaxCreateRev(w.rev),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(w.readLimit))}
		if w.mode == readMode {
			reads = append(reads, readKey(w.key)) // which lies outside of that range
		}
		got, at, err := w.s.get(ctx, w.viewRev, reads...)
		if err != nil {
			return err
		}
		if own := toQueue(got[len(got)-1].Kvs); !slices.Contains(own, queued{w.key, w.rev}) {
			return errEntryGone
		}
		if v, ok := blocker(w.name, w.mode.kind(), w.rev, toQueue(got[0].Kvs), !got[0].More); ok {
			w.view, w.viewKnown, w.unconfirmed = v, true, false
			w.view.At, w.view.Size = at, got[0].Count
			return nil
		}
		// Readers or foreign keys stand next below: list all, from now on.
	}
}

func (w *waiter) invalidate(at int64) {
	w.unwatch()
	w.viewKnown, w.viewRev = false, at
}

func (w *waiter) unwatch() {
	if w.watch != nil {
		w.watch.close()
		w.watch = nil
	}
}

// target is what to watch for the blockers to leave.
//
// Near the front it is a range that reaches to the own key. Where nothing can be
// left when the blockers have gone, no read comes before the grant, so the same
// watch, in which events keep their order, has to tell whether the own entry was
// still there then. There is little else to hear in it, for nearly all the others
// are behind. That of a reader reaches to the keys of all readers, so that it is the
// same for all who wait for the same writer, and one watch serves them.
func (w *waiter) target() (from, to string) {
	if len(w.Next) > 0 {
		return w.Blockers[0].Key, w.Blockers[0].Key + "\x00"
	}
	from, to = w.key, w.key+"\x00"
	for _, q := range w.Blockers {
		from, to = min(from, q.Key), max(to, q.Key+"\x00")
	}
	switch {
	case w.mode == readMode, // as all readers
		w.unconfirmed: // for the other keys of write locks
		_, to = sharedRange(w.name)
	}
	return from, to
}

// still sees to it that the blockers, and where the watch on them is to tell
// of it the own entry, were there when the watch began.
func (w *waiter) verifyBlockers(ctx context.Context) error {
	if w.watch.first != nil && !w.unconfirmed {
		if there := w.watch.first(ctx, w.s); there != nil {
			if len(w.Next) == 0 && !there[queued{w.key, w.rev}] {
				return errEntryGone
			}
			w.dropBlockers(w.watch.at, func(q queued) bool { return !there[q] })
			return nil
		}
	}
	if len(w.Next) == 0 {
		w.viewRev = max(w.At, w.watch.at) // not below, where the member that watches lags
		return w.refresh(ctx)
	}
	got, at, err := w.s.get(ctx, w.watch.at, readKey(w.Blockers[0].Key))
	if err != nil {
		return err
	}
	there := toQueue(got[0].Kvs)
	w.dropBlockers(at, func(q queued) bool { return !slices.Contains(there, q) })
	return nil
}

// relook looks again, and keeps the watch if it covers what it has to.
func (w *waiter) refresh(ctx context.Context) error {
	if err := w.load(ctx); err != nil {
		return err
	}
	if len(w.Blockers) > 0 {
		if from, to := w.target(); from < w.from || to > w.to {
			w.unwatch()
		}
	}
	return nil
}

// strike strikes off the blockers that were gone at revision at. If none is
// left but something else may be, what is said to be next is probably all; or else
// it remains to look at that revision.
func (w *waiter) dropBlockers(at int64, gone func(queued) bool) {
	w.Blockers = slices.DeleteFunc(w.Blockers, gone)
	switch {
	case len(w.Blockers) > 0 || w.Last:
	case len(w.Next) > 0:
		w.unwatch()
		w.view, w.unconfirmed = view{At: at, Size: w.Size, Blockers: w.Next}, true
	default:
		w.invalidate(at)
	}
}

// recheck asks etcd, linearizably, whether the queue is as the waiter thinks.
// Where etcd does not answer, things stay as they are.
func (w *waiter) recheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptMin)
	defer cancel()
	w.viewRev = 0
	err := w.refresh(ctx)
	w.recheckTimer.Reset(w.s.recheckInterval())
	if errors.Is(err, errEntryGone) || err != nil && refused(err) {
		return err
	}
	return nil
}
