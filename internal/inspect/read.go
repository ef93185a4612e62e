// Package inspect reads the queues of locks from outside, and follows them. It knows nothing of sessions,
// and needs read rights only.
package inspect

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Page is how many keys are read at once, or fewer if the reply is too large for the client.
const Page = 1000

// Read reads the queue of a lock as it is at present, linearizably, in pages of one revision.
func Read(ctx context.Context, client *etcd.Client, name string) (*queue.Snapshot, error) {
	for {
		s := queue.NewSnapshot(name)
		err := readPages(ctx, client, s)
		if !etcd.RevisionGone(err) { // between two pages
			return s, err
		}
	}
}

func readPages(ctx context.Context, client *etcd.Client, s *queue.Snapshot) error {
	from, to := keyspace.All(s.Name)
	for page := int64(Page); ; {
		resp, _, err := etcd.Do(ctx, client, etcd.Policy{}, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(page), clientv3.WithRev(s.Rev))
		})
		if etcd.ReplyTooLarge(err) && page > 1 {
			page /= 2
			continue
		}
		if err != nil {
			return err
		}
		if s.Rev == 0 {
			s.Rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			s.Put(kv)
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// A TTL is for how long a lease lives, if nobody renews it, and after a renewal.
type TTL struct{ Left, Granted time.Duration }

// TTLs asks after the leases of entries, a request for each lease, eight at a time. set is told of each entry whose lease
// is there, one after the other.
func TTLs[E any](ctx context.Context, client *etcd.Client, entries []E, lease func(E) clientv3.LeaseID, set func(e *E, ttl TTL)) error {
	of := make(map[clientv3.LeaseID][]*E)
	for i := range entries {
		if id := lease(entries[i]); id != clientv3.NoLease {
			of[id] = append(of[id], &entries[i])
		}
	}
	var mu sync.Mutex // held while set is called
	some, ctx := errgroup.WithContext(ctx)
	some.SetLimit(8)
	for id, entries := range of {
		some.Go(func() error {
			resp, _, err := etcd.Do(ctx, client, etcd.Policy{}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
				return client.TimeToLive(ctx, id, false)
			})
			if err == nil && resp.TTL >= 0 {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range entries {
					set(e, TTL{time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second})
				}
			}
			return err
		})
	}
	return some.Wait()
}

// Vacant returns, for each queue, a revision at which nothing in the queue blocked an entry. got are some of the keys of
// each with their leases, as they were at revision at. It returns nil if something blocks, and then what an error should add, if it should.
// read reads the present of ranges.
func Vacant(queues []keyspace.Queue, at int64, got []*pb.RangeResponse, read func(...etcd.Read) ([]*pb.RangeResponse, int64, error)) (since []int64, why string, err error) {
	for i, p := range queues {
		at, got := at, got[i]
		blocked := func() bool { return queue.Blocked(p.Name, p.Kind, queue.MaxRev, queue.Entries(got.Kvs)) }
		if !blocked() && got.Count > int64(len(got.Kvs)) {
			all, now, err := read(etcd.ReadRangeLeases(p.Blocking()))
			if err != nil {
				return nil, "", err
			}
			got, at = all[0], now
		}
		if blocked() {
			if key := queue.WithoutLease(p.Name, got.Kvs); key != "" {
				why = ": " + key + " has no lease, so it may be data; keep data and lock names apart"
			}
			return nil, why, nil
		}
		since = append(since, at)
	}
	return since, "", nil
}
