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

// Recheck reads whether what the entries of these lists are watching for is still there, as far as that fits into a
// few requests: give it the lists in any order, so that in time all of them have their turn.
func (ws *Waits) Recheck(ctx context.Context, lists []*waitlist.List) {
	type awaited struct {
		l   *waitlist.List
		key string
	}
	var all []awaited
	for _, l := range lists {
		for _, key := range l.Awaited() {
			all = append(all, awaited{l, key})
		}
	}
	all = all[:min(len(all), recheckRequests*etcd.Batch)]
	for some := range slices.Chunk(all, etcd.Batch) {
		var reads []etcd.Read
		for _, a := range some {
			reads = append(reads, etcd.ReadKey(a.key))
		}
		got, at, err := ws.Client.ReadAt(ctx, ws.Life, 0, reads...)
		if err != nil {
			return
		}
		for i, a := range some {
			ws.Lost(a.l.Saw(&waitlist.Listing{At: at, Low: 1, Asked: []string{a.key}, Keys: queue.Entries(got[i].Kvs)}), at)
		}
	}
}
