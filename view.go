// How a waiter makes the requests that its list asks for.

package etcdlock

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// advance does what the list says until the entry has the lock or has to wait.
func (w *waiter) advance(ctx context.Context) (granted bool, err error) {
	for {
		if w.goneBeside() {
			return false, errEntryGone
		}
		step := w.own.Next()
		switch step.Do {
		case waitlist.Grant:
			return true, nil
		case waitlist.Gone:
			return false, errEntryGone
		case waitlist.Read:
			err = w.read(ctx, &step)
		case waitlist.Open:
			err = w.open(ctx, &step)
		case waitlist.Drop:
			w.unwatch(false)
		case waitlist.Adopt:
			if w.watch != nil {
				w.watch.Close()
			}
			w.watch = step.Keep.Owner.(*etcd.Watch)
		case waitlist.Wait:
			w.outage.Stop(true)
			switch {
			case !step.Guard:
				w.guard = nil
			case w.guard == nil:
				w.guard = time.After(w.s.guardAfter)
			}
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

func (w *waiter) read(ctx context.Context, step *waitlist.Step) error {
	got, at, err := w.s.lease.Read(ctx, w.s.lease.Gone, step.At, readsOf(step)...)
	if err == nil {
		w.saw(step, at, got)
	}
	return err
}

func readsOf(step *waitlist.Step) (reads []etcd.Read) {
	if step.From != "" {
		opts := []clientv3.OpOption{clientv3.WithLimit(step.Limit)}
		if step.Upward {
			opts = append(opts, clientv3.WithMinCreateRev(step.Min), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		} else {
			opts = append(opts, clientv3.WithMaxCreateRev(step.Max), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
		}
		reads = append(reads, etcd.ReadRange(step.From, step.To, opts...))
	}
	for _, key := range step.Keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	return reads
}

// saw takes note of what was read for a step, at revision at. got begins with it; saw returns the rest.
func (e *entry) saw(step *waitlist.Step, at int64, got []*pb.RangeResponse) []*pb.RangeResponse {
	var ranged, keys []queue.Entry
	more, size := false, int64(0)
	if step.From != "" {
		ranged, more, size, got = queue.Entries(got[0].Kvs), got[0].More, got[0].Count, got[1:]
	}
	for _, g := range got[:len(step.Keys)] {
		keys = append(keys, queue.Entries(g.Kvs)...)
	}
	markAllLost(e.own.Saw(step, step.Listing(at, ranged, more, size, keys)), at)
	return got[len(step.Keys):]
}

// open opens a watch in place of the one that there is.
func (w *waiter) open(ctx context.Context, step *waitlist.Step) error {
	w.unwatch(false)
	watch, err := w.s.etcd.OpenWatch(ctx, w.s.lease.Ctx, step.From, step.To, clientv3.WithFilterPut())
	if err != nil {
		return err
	}
	w.watch = watch
	w.s.attend()
	w.retry.Reset()
	w.own.Opened(&waitlist.Watch{From: step.From, To: step.To, At: watch.At, Owner: watch})
	return nil
}

func (w *waiter) unwatch(broken bool) {
	closeAll(w.own.Close(broken))
	w.watch = nil
}

func closeAll(watches []*waitlist.Watch) {
	for _, c := range watches {
		c.Owner.(*etcd.Watch).Close()
	}
}
