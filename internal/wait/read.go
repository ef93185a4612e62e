// The readings that a list asks for.

package wait

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

func (w *waiter) read(ctx context.Context, step *waitlist.Step) error {
	got, at, err := w.Client.ReadAt(ctx, w.Life, step.At, readsOf(step)...)
	if err == nil {
		w.saw(w.own, step, at, got)
	}
	return err
}

// Survey is for an acquisition of several locks, whose entries are parts. It reads, in one request, what blocks those
// that still wait: while they waited for another part, much of that has probably gone. If it fails, their waits ask.
func (ws *Waits) Survey(ctx context.Context, parts ...*waitlist.Entry) {
	var asking []*waitlist.Entry
	var steps []waitlist.Step
	var reads []etcd.Read
	for _, p := range parts {
		if step, ok := p.Look(); ok {
			asking, steps, reads = append(asking, p), append(steps, step), append(reads, readsOf(&step)...)
		}
	}
	if len(reads) == 0 {
		return
	}
	got, at, err := ws.Client.ReadAt(ctx, ws.Life, 0, reads...)
	for i, p := range asking {
		if err != nil {
			p.Fail()
		} else {
			got = ws.saw(p, &steps[i], at, got)
		}
	}
}

func readsOf(step *waitlist.Step) (reads []etcd.Read) {
	if step.From != "" {
		order, within := clientv3.SortDescend, clientv3.WithMaxCreateRev(step.Max)
		if step.Upward {
			order, within = clientv3.SortAscend, clientv3.WithMinCreateRev(step.Min)
		}
		reads = append(reads, etcd.ReadByAge(order, step.From, step.To, clientv3.WithLimit(step.Limit), within))
	}
	for _, key := range step.Keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	return reads
}

// saw takes note of what was read for a step of the entry, at revision at. got begins with it; saw returns the rest.
func (ws *Waits) saw(own *waitlist.Entry, step *waitlist.Step, at int64, got []*pb.RangeResponse) []*pb.RangeResponse {
	var ranged, keys []queue.Entry
	more, size := false, int64(0)
	if step.From != "" {
		ranged, more, size, got = queue.Entries(got[0].Kvs), got[0].More, got[0].Count, got[1:]
	}
	for _, g := range got[:len(step.Keys)] {
		keys = append(keys, queue.Entries(g.Kvs)...)
	}
	ws.Lost(own.Saw(step, step.Listing(at, ranged, more, size, keys)), at)
	return got[len(step.Keys):]
}
