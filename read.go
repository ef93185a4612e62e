package etcdlock

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A reading is a key, or a range of keys, to get.
type reading struct {
	key  string
	opts []clientv3.OpOption
}

func readKey(key string) reading { return reading{key, []clientv3.OpOption{clientv3.WithKeysOnly()}} }

// readRange reads the keys, without values, from from to before to.
func readRange(from, to string, opts ...clientv3.OpOption) reading {
	return reading{from, append(opts, clientv3.WithRange(to), clientv3.WithKeysOnly())}
}

// get reads the state at revision rev, which is the same on every member, so
// that any of them can answer; one that has not come so far, or has compacted
// rev away, or does not answer, is passed over by a linearizable read of the
// present. With rev 0 it is that from the start. at is the revision that
// all of got shows. It is one request, however many reads.
func (s *Session) get(ctx context.Context, rev int64, reads ...reading) (got []*pb.RangeResponse, at int64, err error) {
	if rev > 0 {
		attempt, cancel := context.WithCancel(ctx)
		got, _, err := race(attempt, cancel, hedges, s.pace.late(), attemptMin, func(ctx context.Context) ([]*pb.RangeResponse, error) {
			got, _, err := s.getOnce(ctx, reads, clientv3.WithRev(rev), clientv3.WithSerializable())
			return got, err
		})
		cancel()
		if err == nil {
			return got, rev, nil
		}
	}
	type reply struct {
		got []*pb.RangeResponse
		at  int64
	}
	now, _, err := hedged(ctx, s.leaseCtx, s, func(ctx context.Context) (now reply, err error) {
		now.got, now.at, err = s.getOnce(ctx, reads)
		return now, err
	})
	if err != nil {
		return nil, 0, err
	}
	s.etcdAnswered()
	return now.got, now.at, nil
}

// present reads the present for a caller: it ends with ctx, or the session.
func (s *Session) present(ctx context.Context, reads ...reading) (got []*pb.RangeResponse, at int64, err error) {
	ctx, stop := s.bind(ctx)
	defer stop()
	return s.get(ctx, 0, reads...)
}

// readKeys reads what there is under the entry's keys. It is seldom needed: an Else
// in the txn that writes them would make each uncontended cycle 0.9 % longer.
func (e *entry) readKeys(ctx context.Context) (there []*mvccpb.KeyValue, at int64, err error) {
	var reads []reading
	for _, key := range e.keys() {
		reads = append(reads, reading{key: key})
	}
	got, at, err := e.s.present(ctx, reads...)
	for _, g := range got {
		there = append(there, g.Kvs...)
	}
	return there, at, err
}

func (s *Session) getOnce(ctx context.Context, reads []reading, how ...clientv3.OpOption) (got []*pb.RangeResponse, at int64, err error) {
	opts := func(r reading) []clientv3.OpOption { return slices.Concat(r.opts, how) }
	if len(reads) == 1 {
		resp, err := s.client.Get(ctx, reads[0].key, opts(reads[0])...)
		if err != nil {
			return nil, 0, err
		}
		return []*pb.RangeResponse{(*pb.RangeResponse)(resp)}, resp.Header.Revision, nil
	}
	ops := make([]clientv3.Op, len(reads))
	for i, r := range reads {
		ops[i] = clientv3.OpGet(r.key, opts(r)...)
	}
	resp, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, 0, err
	}
	for _, r := range resp.Responses {
		got = append(got, r.GetResponseRange())
	}
	return got, resp.Header.Revision, nil
}

func toQueue(kvs []*mvccpb.KeyValue) []queued {
	q := make([]queued, len(kvs))
	for i, kv := range kvs {
		q[i] = queued{string(kv.Key), kv.CreateRevision}
	}
	return q
}
