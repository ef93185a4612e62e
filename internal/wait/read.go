// The readings that a list asks for.

package wait

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// read makes the readings of these steps, in one request at revision at, 0 for the present, and tells their lists.
func (ws *Waits) read(ctx context.Context, at int64, steps ...waitlist.Step) error {
	var reads []etcd.Read
	for _, step := range steps {
		listing := etcd.ReadByAge(clientv3.SortAscend, step.From, step.To)
		if !step.Upward {
			listing = etcd.ReadByAge(clientv3.SortDescend, step.From, step.To, clientv3.WithMaxCreateRev(step.Max))
		}
		reads = append(reads, listing.Limit(step.Limit))
		for _, key := range step.Keys {
			reads = append(reads, etcd.ReadKey(key))
		}
	}
	got, at, err := ws.Client.ReadAt(ctx, ws.Life, at, reads...)
	if err != nil {
		return err
	}
	for _, step := range steps {
		n := 1 + len(step.Keys)
		var keys []queue.Entry
		for _, g := range got[1:n] {
			keys = append(keys, queue.Entries(g.Kvs)...)
		}
		seen := step.Listing(at, queue.Entries(got[0].Kvs), got[0].More, got[0].Count, keys)
		ws.Lost(step.For.List().Saw(&step, seen))
		got = got[n:]
	}
	return nil
}

// Survey reads, in one request, what blocks those parts of an acquisition that still wait. While they waited for another
// part, much of what blocked them has probably left. If the read fails, the agents ask.
func (ws *Waits) Survey(ctx context.Context, parts ...*waitlist.Part) {
	var steps []waitlist.Step
	for _, p := range parts {
		if step, ok := p.Look(); ok {
			steps = append(steps, step)
		}
	}
	if len(steps) == 0 || ws.read(ctx, 0, steps...) == nil {
		return
	}
	for _, step := range steps {
		step.For.List().Fail(&step, nil)
	}
}
