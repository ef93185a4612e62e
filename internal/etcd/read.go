// Reads at a revision, or of the present.

package etcd

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Batch is how many keys one request reads or removes where there are many: etcd allows 128 operations in a txn.
const Batch = 32

// A Read is a key, or a range of keys, to get.
type Read struct {
	key  string
	opts []clientv3.OpOption
}

// ReadValue reads a key and its value.
func ReadValue(key string) Read { return Read{key: key} }

// ReadKey reads whether there is a key.
func ReadKey(key string) Read { return Read{key, []clientv3.OpOption{clientv3.WithKeysOnly()}} }

// ReadRange reads the keys, without values, from from to before to.
func ReadRange(from, to string, opts ...clientv3.OpOption) Read {
	return Read{from, append(opts, clientv3.WithRange(to), clientv3.WithKeysOnly())}
}

// ReadAt reads the state at revision rev, which is the same on every member, so any of them can
// answer. If the member that is asked has not come so far, has compacted rev away or does not
// answer, a linearizable read of the present follows. With rev 0 it is that from the start. at
// is the revision that all of got shows. It is one request, however many reads.
func (c *Client) ReadAt(ctx, life context.Context, rev int64, reads ...Read) (got []*pb.RangeResponse, at int64, err error) {
	if rev > 0 {
		r, _, err := Do(ctx, c, Policy{Life: life, Hedge: true, Once: true}, func(ctx context.Context) (reply, error) {
			return c.read(ctx, reads, clientv3.WithRev(rev), clientv3.WithSerializable())
		})
		if err == nil {
			return r.got, rev, nil
		}
	}
	r, _, err := Do(ctx, c, Policy{Life: life, Hedge: true}, func(ctx context.Context) (reply, error) {
		return c.read(ctx, reads)
	})
	return r.got, r.at, err
}

type reply struct {
	got []*pb.RangeResponse
	at  int64
}

func (c *Client) read(ctx context.Context, reads []Read, how ...clientv3.OpOption) (reply, error) {
	opts := func(r Read) []clientv3.OpOption { return slices.Concat(r.opts, how) }
	if len(reads) == 1 {
		resp, err := c.Get(ctx, reads[0].key, opts(reads[0])...)
		if err != nil {
			return reply{}, err
		}
		return reply{[]*pb.RangeResponse{(*pb.RangeResponse)(resp)}, resp.Header.Revision}, nil
	}
	ops := make([]clientv3.Op, len(reads))
	for i, r := range reads {
		ops[i] = clientv3.OpGet(r.key, opts(r)...)
	}
	var resp *clientv3.TxnResponse
	var err error
	if len(how) > 0 {
		resp, err = c.txnPinned(ctx, ops)
	} else {
		resp, err = c.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(ops...) })
	}
	if err != nil {
		return reply{}, err
	}
	var got []*pb.RangeResponse
	for _, r := range resp.Responses {
		got = append(got, r.GetResponseRange())
	}
	return reply{got, resp.Header.Revision}, nil
}
