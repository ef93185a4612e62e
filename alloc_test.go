package etcdlock

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// An answerer carries out each transaction at once, in memory.
type answerer struct {
	pb.KVClient
	rev int64
}

func (a *answerer) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	a.rev++
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: a.rev}, Succeeded: true}
	for _, op := range r.Success {
		reply := &pb.ResponseOp{}
		switch {
		case op.GetRequestPut() != nil:
			reply.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}
		case op.GetRequestDeleteRange() != nil:
			reply.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: 1}}
		default:
			reply.Response = &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Header: resp.Header}}
		}
		resp.Responses = append(resp.Responses, reply)
	}
	return resp, nil
}

// maxAllocs is how many allocations Lock and Unlock of a free lock may make beyond those of the two bare transactions.
const maxAllocs = 5

func TestLock_Allocations(t *testing.T) {
	s := newFakeEtcd().bareSession(5)
	s.etcd.NeverHedge() // the machine may stall, and an answerer takes one request at a time
	c, m, ctx := s.etcd.Client, NewMutex(s, "a"), context.Background()
	c.KV = clientv3.NewKVFromKVClient(&answerer{}, c)
	// Other goroutines of the process allocate too, so the least of some runs counts.
	least := func(f func() error) float64 {
		n := math.Inf(1)
		for range 10 {
			n = min(n, testing.AllocsPerRun(100, func() { require.NoError(t, f()) }))
		}
		return n
	}
	bare := least(func() error {
		resp, err := c.Txn(ctx).If(removal.CreatedAt("a/5", 0)).Then(
			clientv3.OpGet("a/0", clientv3.WithRange("a/g"), clientv3.WithKeysOnly(), clientv3.WithLimit(enqueueReadLimit)),
			clientv3.OpPut("a/5", "", clientv3.WithLease(5))).Commit()
		if err == nil {
			_, err = c.Txn(ctx).If(removal.CreatedAt("a/5", resp.Header.Revision)).Then(clientv3.OpDelete("a/5")).Commit()
		}
		return err
	})
	cycle := least(func() error {
		h, err := m.Lock(ctx)
		if err == nil {
			err = h.Unlock(ctx)
		}
		return err
	})
	t.Logf("bare: %v, Lock and Unlock: %v", bare, cycle)
	require.LessOrEqual(t, cycle, bare+maxAllocs)
}

// maxHeldBytes is how much heap a lock takes that is held and that nobody else wants.
const maxHeldBytes = 376

func TestHeld_Memory(t *testing.T) {
	const n = 10_000
	s := newFakeEtcd().bareSession(5)
	s.etcd.NeverHedge() // the machine may stall, and an answerer takes one request at a time
	s.etcd.KV = clientv3.NewKVFromKVClient(&answerer{}, s.etcd.Client)
	locks, holds := make([]*Mutex, n), make([]*Held, n)
	for i := range locks {
		locks[i] = NewMutex(s, fmt.Sprintf("held/%d", i))
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what the first one takes out of pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// Other goroutines of the process allocate too, so the least of some runs counts.
	each := int64(math.MaxInt64)
	for range 5 {
		before := heap()
		for i := range locks {
			var err error
			holds[i], err = locks[i].Lock(t.Context())
			require.NoError(t, err)
		}
		each = min(each, (heap()-before)/n)
		for _, h := range holds {
			require.NoError(t, h.Unlock(t.Context()))
		}
		clear(holds)
		s.lists, s.keys = map[string]*waitlist.List{}, settle.New(s.lease.Gone, s.etcd, 5, "o", s.lease.Go) // maps do not shrink
	}
	t.Logf("%d B", each)
	require.Positive(t, each)
	require.LessOrEqual(t, each, int64(maxHeldBytes))
}
