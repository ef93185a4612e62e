package etcdlock

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/settle"
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
const maxAllocs = 38

func TestLock_Allocations(t *testing.T) {
	s := newFakeEtcd().bareSession(5)
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
		_, err := c.Txn(ctx).If(settle.CreatedAt("a/5", 0)).Then(
			clientv3.OpGet("a/0", clientv3.WithRange("a/g"), clientv3.WithKeysOnly(), clientv3.WithLimit(enqueueReadLimit)),
			clientv3.OpPut("a/5", "", clientv3.WithLease(5))).Commit()
		if err == nil {
			_, err = c.Txn(ctx).If(settle.CreatedAt("a/5", 5)).Then(clientv3.OpDelete("a/5")).Commit()
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
