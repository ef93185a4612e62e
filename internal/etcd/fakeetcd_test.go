package etcd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

// A side is an etcd, and what its replies said.
type side struct {
	client *clientv3.Client
	base   int64 // what its revisions begin at
	said   []string
}

// note notes a reply: what it says of keys, and of revisions from base on.
func (s *side) note(what string, succeeded bool, rev int64, reads ...*pb.RangeResponse) {
	line := fmt.Sprintf("%s: %v at %d", what, succeeded, rev-s.base)
	for _, r := range reads {
		line += fmt.Sprintf("; %d keys, more %v:", r.Count, r.More)
		for _, kv := range r.Kvs {
			line += s.key(kv)
		}
	}
	s.said = append(s.said, line)
}

func (s *side) key(kv *mvccpb.KeyValue) string {
	return fmt.Sprintf(" %s=%s (%d, %d)", kv.Key, kv.Value, kv.CreateRevision-s.base, kv.ModRevision-s.base)
}

// step makes one random request. The same r makes the same request.
func (s *side) step(ctx context.Context, r *rand.Rand, rev int64) error {
	key := func() string { return fmt.Sprintf("a/%d", r.IntN(6)) }
	read := func() clientv3.Op {
		opts := []clientv3.OpOption{clientv3.WithRange(key()), clientv3.WithLimit(r.Int64N(4))}
		if r.IntN(2) == 0 {
			opts = append(opts, clientv3.WithSort(clientv3.SortByCreateRevision, []clientv3.SortOrder{clientv3.SortAscend, clientv3.SortDescend}[r.IntN(2)]))
		}
		if r.IntN(2) == 0 {
			opts = append(opts, clientv3.WithMaxCreateRev(s.base+r.Int64N(rev+2)))
		}
		if r.IntN(2) == 0 {
			opts = append(opts, clientv3.WithMinCreateRev(s.base+r.Int64N(rev+2)))
		}
		if r.IntN(3) == 0 {
			opts = append(opts, clientv3.WithRev(s.base+1+r.Int64N(rev)))
		}
		return clientv3.OpGet("a/", opts...)
	}
	if r.IntN(3) == 0 {
		resp, err := s.client.Do(ctx, read())
		if err == nil {
			s.note("read", true, resp.Get().Header.Revision, (*pb.RangeResponse)(resp.Get()))
		}
		return err
	}
	k := key()
	compare := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(k), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(k), "=", s.base+r.Int64N(rev+1)),
		clientv3.Compare(clientv3.ModRevision(k), "<", s.base+r.Int64N(rev+1)),
		clientv3.Compare(clientv3.CreateRevision("a/"), "=", 0).WithRange("a/3"),
	}[r.IntN(4)]
	then := []clientv3.Op{read(), clientv3.OpPut(k, fmt.Sprint(r.IntN(100)))}
	if r.IntN(2) == 0 {
		then = []clientv3.Op{clientv3.OpDelete(k), clientv3.OpPut("b", "")}
	}
	resp, err := s.client.Txn(ctx).If(compare).Then(then...).Else(clientv3.OpGet(k), clientv3.OpDelete(key())).Commit()
	if err != nil {
		return err
	}
	var reads []*pb.RangeResponse
	for _, op := range resp.Responses {
		if got := op.GetResponseRange(); got != nil {
			reads = append(reads, got)
		}
	}
	s.note("txn", resp.Succeeded, resp.Header.Revision, reads...)
	return nil
}

// The fake says what etcd says to the same requests, and its watches show the same deletions.
func TestLikeEtcd(t *testing.T) {
	own := etcdtest.Start(t)
	ctx := t.Context() // thousands of requests may take their time
	first, err := own.Client(t).Get(ctx, "a/")
	require.NoError(t, err)
	real := &side{client: own.Client(t), base: first.Header.Revision - 1}
	fake := &side{client: fakeetcd.New().Client(nil)}
	deletions := map[*side]clientv3.WatchChan{}
	for _, s := range []*side{real, fake} {
		ch := s.client.Watch(ctx, "a/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		require.True(t, (<-ch).Created)
		deletions[s] = ch
	}
	for seed := range uint64(2000) {
		resp, err := real.client.Get(ctx, "a/")
		require.NoError(t, err)
		rev := resp.Header.Revision - real.base
		for _, s := range []*side{real, fake} {
			require.NoError(t, s.step(ctx, rand.New(rand.NewPCG(seed, 1)), rev))
		}
		require.Equal(t, real.said[seed], fake.said[seed], "seed %d", seed)
	}
	seen := map[*side][]string{}
	for _, s := range []*side{real, fake} {
		_, err := s.client.Txn(ctx).Then(clientv3.OpPut("a/last", "")).Commit()
		require.NoError(t, err)
		_, err = s.client.Txn(ctx).Then(clientv3.OpDelete("a/last")).Commit()
		require.NoError(t, err)
		for last := ""; last != "a/last"; {
			wr, open := <-deletions[s]
			require.True(t, open)
			require.NoError(t, wr.Err())
			for _, ev := range wr.Events {
				last = string(ev.Kv.Key)
				seen[s] = append(seen[s], fmt.Sprintf("%s %d", last, ev.Kv.ModRevision-s.base))
			}
		}
	}
	require.Greater(t, len(seen[real]), 100)
	require.Equal(t, seen[real], seen[fake])
}
