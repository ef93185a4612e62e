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

func (a *agent) read(ctx context.Context, step *waitlist.Step) error {
	got, at, err := a.Client.ReadAt(ctx, a.Life, step.At, readsOf(step)...)
	if err == nil {
		a.saw(a.l, step, at, got)
	}
	return err
}

// Survey reads, in one request, what blocks those parts of an acquisition that still wait. While they waited for another
// part, much of what blocked them has probably left. If the read fails, the agents ask.
func (ws *Waits) Survey(ctx context.Context, parts ...*waitlist.Part) {
	var steps []waitlist.Step
	var reads []etcd.Read
	for _, p := range parts {
		if step, ok := p.Look(); ok {
			steps, reads = append(steps, step), append(reads, readsOf(&step)...)
		}
	}
	if len(reads) == 0 {
		return
	}
	got, at, err := ws.Client.ReadAt(ctx, ws.Life, 0, reads...)
	for i := range steps {
		if l := steps[i].For.List(); err != nil {
			l.Fail(&steps[i], nil)
		} else {
			got = ws.saw(l, &steps[i], at, got)
		}
	}
}

func readsOf(step *waitlist.Step) (reads []etcd.Read) {
	listing := etcd.ReadByAge(clientv3.SortAscend, step.From, step.To)
	if !step.Upward {
		listing = etcd.ReadByAge(clientv3.SortDescend, step.From, step.To, clientv3.WithMaxCreateRev(step.Max))
	}
	reads = append(reads, listing.Limit(step.Limit))
	for _, key := range step.Keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	return reads
}

// saw takes note of what was read for a step, at revision at. got begins with the replies for the step; saw returns the rest.
func (ws *Waits) saw(l *waitlist.List, step *waitlist.Step, at int64, got []*pb.RangeResponse) []*pb.RangeResponse {
	n := 1 + len(step.Keys)
	var keys []queue.Entry
	for _, g := range got[1:n] {
		keys = append(keys, queue.Entries(g.Kvs)...)
	}
	ws.Lost(l.Saw(step, step.Listing(at, queue.Entries(got[0].Kvs), got[0].More, got[0].Count, keys)))
	return got[n:]
}
