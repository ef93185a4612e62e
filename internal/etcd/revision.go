// Whether etcd has gone back to an earlier state, since a snapshot was restored.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrRestored says that etcd has lost what it has shown before.
var ErrRestored = errors.New("a snapshot was restored, or etcd has lost its data")

// shown is what etcd has shown to a Client. A revision that any reply shows was committed, so it stays, unless
// somebody restores a snapshot. Two signs prove that:
//
//   - A reply shows another cluster ID. A restore keeps the ID only if the members have the URLs and the token of
//     the first start.
//   - The reply to a linearizable request shows a lower revision than one that was shown before the request was
//     sent; or not a higher one, if the request wrote. Linearizable are transactions that write, those that read
//     linearizably, such reads, and grants of leases.
//
// A serializable read, a watch, a renewal, and a lease's time to live show the revision of the member that answers,
// which may lag. So a lower revision there is a hint only, and the Client asks.
//
// The Raft term is no sign, although it starts anew too: a member that was sent a snapshot by its leader shows its
// old term until the next entry (etcd 3.7). So if a restored etcd has the same cluster ID, and was written to beyond
// all that was shown before, a Client that asks only then finds no sign.
type shown struct {
	cluster  atomic.Uint64
	revision atomic.Int64 // the highest
	asking   atomic.Bool
}

// Shown is the highest revision that etcd has shown. What is written from now on has a higher one.
func (c *Client) Shown() int64 { return c.shown.revision.Load() }

// Get reads a key or a range: see reads.
func (c *Client) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := c.reads(ctx, clientv3.OpGet(key, opts...))
	if err != nil {
		return nil, err
	}
	got := resp.Responses[0].GetResponseRange()
	got.Header = resp.Header
	return (*clientv3.GetResponse)(got), nil
}

// reads makes reads by one txn, also one alone. The client's own Get would repeat a read every 25 ms for as long as
// something answers Unavailable, where Do pauses for up to RetryMax.
func (c *Client) reads(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	before := c.shown.revision.Load()
	resp, err := c.Client.Txn(ctx).Then(ops...).Commit()
	switch {
	case err != nil:
		return nil, err
	case ops[0].IsSerializable(): // then all are
		c.hints(resp.Header, before)
	default:
		c.proves(resp.Header, before)
	}
	return resp, nil
}

// Txn sends a transaction that writes, or reads linearizably. One that only compares does neither.
func (c *Client) Txn(ctx context.Context, build func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	before := c.shown.revision.Load()
	resp, err := build(c.Client.Txn(ctx)).Commit()
	if err == nil {
		if puts(resp.Responses) {
			before++
		}
		c.proves(resp.Header, before)
	}
	return resp, err
}

// puts reports whether something was put, by the transaction itself or by one in it.
func puts(replies []*pb.ResponseOp) bool {
	return slices.ContainsFunc(replies, func(r *pb.ResponseOp) bool {
		return r.GetResponsePut() != nil || puts(r.GetResponseTxn().GetResponses())
	})
}

// TimeToLive asks after a lease, and with keys after the keys that hang on the lease.
func (c *Client) TimeToLive(ctx context.Context, id clientv3.LeaseID, keys bool) (*clientv3.LeaseTimeToLiveResponse, error) {
	before := c.shown.revision.Load()
	resp, err := c.timeToLiveOnce(ctx, id, keys)
	if err == nil {
		c.hintsOfLease(ctx, resp.ResponseHeader, before, resp.GrantedTTL == 0)
	}
	return resp, err
}

// proves takes note of the reply to a linearizable request. before is the least revision that the reply must show.
func (c *Client) proves(h *pb.ResponseHeader, before int64) {
	c.sameCluster(h)
	if rev := h.GetRevision(); rev < before {
		c.restored(fmt.Errorf("etcd's revision went back from %d to %d: %w", c.shown.revision.Load(), rev, ErrRestored))
	}
	c.shows(h.GetRevision())
}

// hints takes note of the reply of a member that may lag. before is what was shown before the member was asked.
func (c *Client) hints(h *pb.ResponseHeader, before int64) {
	c.sameCluster(h)
	c.shows(h.GetRevision())
	if h.GetRevision() < before {
		c.askRevision()
	}
}

// hintsOfLease is hints for a reply about a lease. If the lease is gone, all data may have gone with it: so hintsOfLease asks
// etcd at once, for half a second at most. Then Restored is told before anybody is told of the reply.
func (c *Client) hintsOfLease(ctx context.Context, h *pb.ResponseHeader, before int64, gone bool) {
	if gone && h.GetRevision() < before {
		ctx, cancel := context.WithTimeout(ctx, RetryMax)
		c.prove(ctx)
		cancel()
	}
	c.hints(h, before)
}

// askRevision asks etcd for its revision, in the background.
func (c *Client) askRevision() {
	if c.Background == nil || !c.shown.asking.CompareAndSwap(false, true) {
		return
	}
	ok := c.Background(func(ctx context.Context) {
		defer c.shown.asking.Store(false)
		c.prove(ctx) // after an error the next hint has it asked again
	})
	if !ok {
		c.shown.asking.Store(false)
	}
}

// prove asks etcd once for its revision. The txn does nothing, so it needs no rights, and is linearizable, since etcd takes
// a txn within a txn for a write.
func (c *Client) prove(ctx context.Context) {
	_, _, _ = Do(ctx, c, Policy{Once: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(clientv3.OpTxn(nil, nil, nil)) })
	})
}

// shows takes note of a revision that was committed.
func (c *Client) shows(rev int64) {
	for {
		was := c.shown.revision.Load()
		if rev <= was || c.shown.revision.CompareAndSwap(was, rev) {
			return
		}
	}
}

func (c *Client) sameCluster(h *pb.ResponseHeader) {
	id := h.GetClusterId() // 0 of a proxy
	if id == 0 || c.shown.cluster.CompareAndSwap(0, id) {
		return
	}
	if was := c.shown.cluster.Load(); was != id {
		c.restored(fmt.Errorf("etcd's cluster ID changed from %x to %x: another etcd answers, or %w", was, id, ErrRestored))
	}
}

func (c *Client) restored(err error) {
	if c.Restored != nil {
		c.Restored(err)
	}
}
