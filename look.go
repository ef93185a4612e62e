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
const lookLimit = 2 + 2*(near+1)

// look reads what blocks the entry, and whether it is in the queue there.
func (w *waiter) look(ctx context.Context) error {
	from, to := w.wants.blocking(w.name)
	for ; ; w.limit = 0 {
		reads := []reading{readRange(from, to, clientv3.WithMaxCreateRev(w.rev),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(w.limit))}
		if w.wants == readHold {
			reads = append(reads, readKey(w.key)) // which lies outside of that range
		}
		got, at, err := w.s.get(ctx, w.lookAt, reads...)
		if err != nil {
			return err
		}
		if own := toQueue(got[len(got)-1].Kvs); !slices.Contains(own, queued{w.key, w.rev}) {
			return errGone
		}
		if v, ok := blocker(w.name, w.wants.kind(), w.rev, toQueue(got[0].Kvs), !got[0].More); ok {
			w.view, w.looked, w.guessed = v, true, false
			w.view.at, w.view.size = at, got[0].Count
			return nil
		}
		// Readers or foreign keys stand next below: list all, from now on.
	}
}

func (w *waiter) lookAgain(at int64) {
	w.unwatch()
	w.looked, w.lookAt = false, at
}

func (w *waiter) unwatch() {
	if w.on != nil {
		w.on.close()
		w.on = nil
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
	if len(w.next) > 0 {
		return w.blockers[0].key, w.blockers[0].key + "\x00"
	}
	from, to = w.key, w.key+"\x00"
	for _, q := range w.blockers {
		from, to = min(from, q.key), max(to, q.key+"\x00")
	}
	switch {
	case w.wants == readHold, // as all readers
		w.guessed: // for the other keys of write locks
		_, to = sharedRange(w.name)
	}
	return from, to
}

// still sees to it that the blockers, and where the watch on them is to tell
// of it the own entry, were there when the watch began.
func (w *waiter) still(ctx context.Context) error {
	if w.on.first != nil && !w.guessed {
		if there := w.on.first(ctx, w.s); there != nil {
			if len(w.next) == 0 && !there[queued{w.key, w.rev}] {
				return errGone
			}
			w.strike(w.on.at, func(q queued) bool { return !there[q] })
			return nil
		}
	}
	if len(w.next) == 0 {
		w.lookAt = max(w.at, w.on.at) // not below, where the member that watches lags
		return w.relook(ctx)
	}
	got, at, err := w.s.get(ctx, w.on.at, readKey(w.blockers[0].key))
	if err != nil {
		return err
	}
	there := toQueue(got[0].Kvs)
	w.strike(at, func(q queued) bool { return !slices.Contains(there, q) })
	return nil
}

// relook looks again, and keeps the watch if it covers what it has to.
func (w *waiter) relook(ctx context.Context) error {
	if err := w.look(ctx); err != nil {
		return err
	}
	if len(w.blockers) > 0 {
		if from, to := w.target(); from < w.from || to > w.to {
			w.unwatch()
		}
	}
	return nil
}

// strike strikes off the blockers that were gone at revision at. If none is
// left but something else may be, what is said to be next is probably all; or else
// it remains to look at that revision.
func (w *waiter) strike(at int64, gone func(queued) bool) {
	w.blockers = slices.DeleteFunc(w.blockers, gone)
	switch {
	case len(w.blockers) > 0 || w.last:
	case len(w.next) > 0:
		w.unwatch()
		w.view, w.guessed = view{at: at, size: w.size, blockers: w.next}, true
	default:
		w.lookAgain(at)
	}
}

// recheck asks etcd, linearizably, whether the queue is as the waiter thinks.
// Where etcd does not answer, things stay as they are.
func (w *waiter) recheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptMin)
	defer cancel()
	w.lookAt = 0
	err := w.relook(ctx)
	w.rechecks.Reset(w.s.untilRecheck())
	if errors.Is(err, errGone) || err != nil && refused(err) {
		return err
	}
	return nil
}
