// What is read: the readings that a list asks for, and what all lists ask together, since events may never come.

package wait

import (
	"context"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// maxReading is how many agents read the present at a time. If etcd has no leader, the watches of all lists end, and all agents read, and
// send again what is late. What etcd would only queue waits here, where it is in nobody else's way.
const maxReading = 256

// turn waits until few enough agents read. The turn ends with ctx too: the request of an agent that was replaced may never return.
func (ws *Waits) turn(ctx context.Context) (done func(), err error) {
	select {
	case ws.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	over := sync.OnceFunc(func() { <-ws.reading })
	stop := context.AfterFunc(ctx, over)
	return func() { stop(); over() }, nil
}

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
	if at == 0 { // which all want at once, and which needs a leader
		done, err := ws.turn(ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	got, at, err := ws.Client.ReadAt(ctx, ws.Life, at, reads...)
	if err != nil {
		return err
	}
	for _, step := range steps {
		n := 1 + len(step.Keys)
		ws.Lost(step.For.List().Saw(&step, step.Listing(at, got[:n]...)))
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

// RecheckMost is how many lists one recheck asks for, in eight requests.
const RecheckMost = 8 * etcd.Batch

// Recheck reads, for each of these lists, whether an entry that it waits for is still there, as far as that fits into a few
// requests: give it the lists in another order each time, so that all of them have their turn. An entry is its key and its
// revision, since the key may have been written anew, behind the waiter. A list that has missed something reads the present,
// whatever its agent is doing. Recheck returns true if it has found all of the entries.
func (ws *Waits) Recheck(ctx context.Context, lists []*waitlist.List) (all bool) {
	type awaited struct {
		l *waitlist.List
		queue.Entry
	}
	var awaiting []awaited
	for _, l := range lists {
		if q, ok := l.Awaited(); ok {
			awaiting = append(awaiting, awaited{l, q})
		}
	}
	now := awaiting[:min(len(awaiting), RecheckMost)]
	all = len(now) == len(awaiting)
	for some := range slices.Chunk(now, etcd.Batch) {
		var reads []etcd.Read
		for _, a := range some {
			reads = append(reads, etcd.ReadKey(a.Key))
		}
		got, _, err := ws.Client.ReadAt(ctx, ws.Life, 0, reads...)
		refused := etcd.Refused(err) // some of them, and each list finds out by itself
		if err != nil && !refused {
			return false
		}
		for i, a := range some {
			if refused || !slices.Contains(queue.Entries(got[i].Kvs), a.Entry) {
				all = false
				a.l.Refresh()
			}
		}
	}
	return all
}
