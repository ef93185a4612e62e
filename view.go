package etcdlock

import (
	"context"
	"errors"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// How a waiter reads the queue, and keeps its view of it.

// viewLimit is how many keys a read asks for at first: a writer's own two, and two each of the
// writers that are near, and of one more.
const viewLimit = 2 + 2*(queue.Lookahead+1)

// load reads what blocks the entry, and whether the entry is in the queue there.
func (w *waiter) load(ctx context.Context) error {
	from, to := keyspace.Blocking(w.name, w.mode.kind())
	for ; ; w.readLimit = 0 {
		reads := []etcd.Read{etcd.ReadRange(from, to, clientv3.WithMaxCreateRev(w.rev),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(w.readLimit))}
		if w.mode == readMode {
			reads = append(reads, etcd.ReadKey(w.key)) // which lies outside of that range
		}
		got, at, err := w.s.read(ctx, w.s.leaseCtx, w.viewRev, reads...)
		if err != nil {
			return err
		}
		if own := queue.Entries(got[len(got)-1].Kvs); !slices.Contains(own, queue.Entry{Key: w.key, Rev: w.rev}) {
			return errEntryGone
		}
		if v, known := queue.Blockers(w.name, w.mode.kind(), w.rev, queue.Entries(got[0].Kvs), !got[0].More); known {
			w.View, w.viewKnown, w.unconfirmed = v, true, false
			w.At, w.Size = at, got[0].Count
			return nil
		}
		// Readers or foreign keys stand next below: list all, from now on.
	}
}

// invalidate makes the waiter read the queue again, at revision at, or with 0 at present.
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
// Near the front it is a range that reaches to the own key. If nothing can be left when the blockers
// have gone, no read comes before the grant, so the same watch, in which events keep their order, has
// to tell whether the own entry was still there then. There is little else to hear in it, for nearly
// all the others are behind. That of a reader reaches to the keys of all readers, so it is the same
// for all that wait for the same writer, and one watch serves them.
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
		_, to = keyspace.Shareds(w.name)
	}
	return from, to
}

// verifyBlockers verifies that the blockers were there when the watch began; and if the watch on them
// has to tell of the own entry, that too.
func (w *waiter) verifyBlockers(ctx context.Context) error {
	if w.watch.first != nil && !w.unconfirmed {
		if there := w.watch.first(ctx, w.s); there != nil {
			if len(w.Next) == 0 && !there[queue.Entry{Key: w.key, Rev: w.rev}] {
				return errEntryGone
			}
			w.dropBlockers(w.watch.at, func(q queue.Entry) bool { return !there[q] })
			return nil
		}
	}
	if len(w.Next) == 0 {
		w.viewRev = max(w.At, w.watch.at) // not below, if the member that watches lags
		return w.refresh(ctx)
	}
	got, at, err := w.s.read(ctx, w.s.leaseCtx, w.watch.at, etcd.ReadKey(w.Blockers[0].Key))
	if err != nil {
		return err
	}
	there := queue.Entries(got[0].Kvs)
	w.dropBlockers(at, func(q queue.Entry) bool { return !slices.Contains(there, q) })
	return nil
}

// refresh reads the queue again, and keeps the watch if it covers what it has to.
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

// dropBlockers drops the blockers that were gone at revision at. If none is left but something else
// may be, what is said to be next is probably all; or else it remains to read that revision.
func (w *waiter) dropBlockers(at int64, gone func(queue.Entry) bool) {
	w.Blockers = slices.DeleteFunc(w.Blockers, gone)
	switch {
	case len(w.Blockers) > 0 || w.Last:
	case len(w.Next) > 0:
		w.unwatch()
		w.View, w.unconfirmed = queue.View{At: at, Size: w.Size, Blockers: w.Next}, true
	default:
		w.invalidate(at)
	}
}

// recheck asks etcd, linearizably, whether the queue is as the waiter thinks. If etcd does not
// answer, things stay as they are.
func (w *waiter) recheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*etcd.AttemptMin)
	defer cancel()
	w.viewRev = 0
	err := w.refresh(ctx)
	w.recheckTimer.Reset(w.s.recheckInterval())
	if errors.Is(err, errEntryGone) || err != nil && etcd.Refused(err) {
		return err
	}
	return nil
}
