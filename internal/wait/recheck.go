// What waits ask together when no watch tells anything: their events may never come.

package wait

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// recheckRequests bounds how many requests one recheck makes.
const recheckRequests = 8

// Recheck reads whether the entries that these lists wait for are still there, as far as that fits into a few requests:
// give it the lists in another order each time, so that all of them have their turn. An entry is its key and its revision,
// since the key may have been written anew, behind the waiter. A list that has missed something reads the present, whatever
// its agent is doing. Recheck returns true if it has found all of the entries.
func (ws *Waits) Recheck(ctx context.Context, lists []*waitlist.List) (all bool) {
	type awaited struct {
		l *waitlist.List
		queue.Entry
	}
	var awaiting []awaited
	for _, l := range lists {
		for _, q := range l.Awaited() {
			awaiting = append(awaiting, awaited{l, q})
		}
	}
	now := awaiting[:min(len(awaiting), recheckRequests*etcd.Batch)]
	missed := map[*waitlist.List]bool{}
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
			if !missed[a.l] && (refused || !slices.Contains(queue.Entries(got[i].Kvs), a.Entry)) {
				missed[a.l] = true
				a.l.Refresh()
			}
		}
	}
	return len(missed) == 0 && len(now) == len(awaiting)
}
