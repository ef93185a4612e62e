// Reads at a revision, or of the present.

package etcd

import (
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Batch is how many keys one request reads or removes where there are many: etcd allows 128 operations in a txn.
const Batch = 32

// A Read is a key, or a range of keys, to get.
type Read struct {
	key   string
	opts  []clientv3.OpOption
	limit int64 // 0 for all keys
	// order is that of a range by create revision, SortNone for key order.
	order clientv3.SortOrder
	// orKeys: a value that is too large for the client is left out.
	orKeys bool
}

// one makes the read of one key that of a range of one key. The KV of clientv3/leasing answers a read of a key that is no range from a
// cache, which shows an earlier revision, and does not know what other clients do without it.
func one(key string) clientv3.OpOption { return clientv3.WithRange(key + "\x00") }

// ReadValue reads a key and its value.
func ReadValue(key string) Read { return Read{key: key, opts: []clientv3.OpOption{one(key)}, limit: 1} }

// ReadKey reads whether there is a key.
func ReadKey(key string) Read {
	return Read{key: key, opts: []clientv3.OpOption{one(key), clientv3.WithKeysOnly()}, limit: 1}
}

// ReadKeys reads whether each of the keys is there.
func ReadKeys(keys []string) []Read {
	reads := make([]Read, len(keys))
	for i, key := range keys {
		reads[i] = ReadKey(key)
	}
	return reads
}

// ReadRange reads the keys, without values, from from to before to.
func ReadRange(from, to string, opts ...clientv3.OpOption) Read {
	return ReadRangeValues(from, to, append(opts, clientv3.WithKeysOnly())...)
}

// ReadRangeValues is ReadRange with the keys' values and leases.
func ReadRangeValues(from, to string, opts ...clientv3.OpOption) Read {
	return Read{key: from, opts: append(opts, clientv3.WithRange(to))}
}

// ReadRangeLeases is ReadRange with the keys' leases, and so with their values: etcd 3.7 leaves the lease out, too, if it is asked for
// keys only. If a value is too large for the client, the lease may be UnknownLease.
func ReadRangeLeases(from, to string) Read {
	return Read{key: from, opts: []clientv3.OpOption{clientv3.WithRange(to)}, orKeys: true}
}

// UnknownLease is no lease's ID.
const UnknownLease = -1

// ReadByAge is ReadRange in the order of the keys' create revisions.
func ReadByAge(order clientv3.SortOrder, from, to string, opts ...clientv3.OpOption) Read {
	r := ReadRange(from, to, append(opts, clientv3.WithSort(clientv3.SortByCreateRevision, order))...)
	r.order = order
	return r
}

// Limit is the Read of the first n keys, of all for 0.
func (r Read) Limit(n int64) Read {
	r.opts, r.limit = append(slices.Clone(r.opts), clientv3.WithLimit(n)), n
	return r
}

// ReadAt reads the state at revision rev, which is the same on every member, so any of them can
// answer. If the member that is asked has not come so far, has compacted rev away or does not
// answer, a linearizable read of the present follows. With rev 0 the first read is linearizable. at
// is the revision that all of got shows. ReadAt makes one request, however many reads, unless the request or the reply is
// too large for the client, or the reads are too many for etcd's --max-txn-ops: then it makes some more.
func (c *Client) ReadAt(ctx, life context.Context, rev int64, reads ...Read) (got []*pb.RangeResponse, at int64, err error) {
	if rev > 0 {
		got, _, err = c.readOrSplit(ctx, Policy{Life: life, Hedge: true, Once: true}, reads, clientv3.WithRev(rev), clientv3.WithSerializable())
		if err == nil {
			return got, rev, nil
		}
	}
	for {
		got, at, err = c.readOrSplit(ctx, Policy{Life: life, Hedge: true}, reads)
		if !RevisionGone(err) { // that of the first piece, before the last one
			return got, at, err
		}
	}
}

// readOrSplit makes the reads by one request, or in pieces if the request or the reply is too large, or the reads too many.
func (c *Client) readOrSplit(ctx context.Context, p Policy, reads []Read, how ...clientv3.OpOption) ([]*pb.RangeResponse, int64, error) {
	r, _, err := Do(ctx, c, p, func(ctx context.Context) (reply, error) { return c.read(ctx, reads, how...) })
	switch {
	case !TooLarge(err), len(reads) == 1 && !ReplyTooLarge(err):
		return r.got, r.at, err
	case len(reads) == 1:
		return c.readPages(ctx, p, reads[0], how...)
	}
	some, at, err := c.readOrSplit(ctx, p, reads[:len(reads)/2], how...)
	if err != nil {
		return nil, 0, err
	}
	if len(how) == 0 {
		how = []clientv3.OpOption{clientv3.WithRev(at)}
	}
	rest, _, err := c.readOrSplit(ctx, p, reads[len(reads)/2:], how...)
	return append(some, rest...), at, err
}

// maxPage is how many keys readPages reads at once, at first.
const maxPage = 256

// readPages makes one read, of a range, in pages. It reads in key order, since a read can go on from any key in that order. What
// etcd would have sorted and cut off, readPages sorts and cuts off itself.
func (c *Client) readPages(ctx context.Context, p Policy, of Read, how ...clientv3.OpOption) (got []*pb.RangeResponse, at int64, err error) {
	op := clientv3.OpGet(of.key, of.opts...)
	all, from, limit := &pb.RangeResponse{}, of.key, of.limit
	page, bare := int64(maxPage), false
	if of.order == clientv3.SortNone && limit > 0 {
		page = min(page, max(1, limit/2))
	}
	for {
		one := Read{key: from, opts: append(slices.Clone(of.opts), clientv3.WithSort(clientv3.SortByKey, clientv3.SortNone), clientv3.WithLimit(page))}
		r, _, err := Do(ctx, c, p, func(ctx context.Context) (reply, error) { return c.read(ctx, []Read{one}, how...) })
		if ReplyTooLarge(err) && page > 1 && len(op.RangeBytes()) > 0 {
			page /= 2
			continue
		}
		if ReplyTooLarge(err) && of.orKeys && !bare {
			bare, page, of.opts = true, maxPage, append(slices.Clone(of.opts), clientv3.WithKeysOnly())
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		if at == 0 {
			at, all.Header, all.Count = r.at, r.got[0].Header, r.got[0].Count
			if len(how) == 0 { // else how has the revision, and the header a later one
				how = []clientv3.OpOption{clientv3.WithRev(at)}
			}
		}
		if bare {
			for _, kv := range r.got[0].Kvs {
				kv.Lease = cmp.Or(kv.Lease, UnknownLease)
			}
		}
		all.Kvs = append(all.Kvs, r.got[0].Kvs...)
		enough := of.order == clientv3.SortNone && limit > 0 && int64(len(all.Kvs)) >= limit
		if all.More = r.got[0].More; !all.More || enough {
			break
		}
		from = string(r.got[0].Kvs[len(r.got[0].Kvs)-1].Key) + "\x00"
	}
	slices.SortStableFunc(all.Kvs, func(a, b *mvccpb.KeyValue) int {
		switch of.order {
		case clientv3.SortAscend:
			return cmp.Compare(a.CreateRevision, b.CreateRevision)
		case clientv3.SortDescend:
			return cmp.Compare(b.CreateRevision, a.CreateRevision)
		}
		return 0
	})
	if limit > 0 && int64(len(all.Kvs)) > limit {
		all.Kvs, all.More = all.Kvs[:limit], true
	}
	return []*pb.RangeResponse{all}, at, nil
}

// ReadValues reads the present of keys: those that are there.
func (c *Client) ReadValues(ctx, life context.Context, keys ...string) (kvs []*mvccpb.KeyValue, err error) {
	for some := range slices.Chunk(keys, 2*Batch) { // most are those of write locks, two each
		var reads []Read
		for _, key := range some {
			reads = append(reads, ReadValue(key))
		}
		got, _, err := c.ReadAt(ctx, life, 0, reads...)
		if err != nil {
			return nil, err
		}
		for _, g := range got {
			kvs = append(kvs, g.Kvs...)
		}
	}
	return kvs, nil
}

type reply struct {
	got []*pb.RangeResponse
	at  int64
}

func (c *Client) read(ctx context.Context, reads []Read, how ...clientv3.OpOption) (reply, error) {
	ops := make([]clientv3.Op, len(reads))
	for i, r := range reads {
		ops[i] = clientv3.OpGet(r.key, slices.Concat(r.opts, how)...)
	}
	resp, err := c.reads(ctx, ops...)
	if err != nil {
		return reply{}, err
	}
	var got []*pb.RangeResponse
	for _, r := range resp.Responses {
		got = append(got, r.GetResponseRange())
	}
	return reply{got, resp.Header.Revision}, nil
}
