package etcd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// headers is an etcd whose replies have this header, and that whatever came before has written, or not.
type headers struct {
	pb.KVClient
	pb.LeaseClient
	pb.ResponseHeader
	wrote  bool
	during func() // while the request is on its way
}

func (h *headers) reply() *pb.ResponseHeader {
	if h.during != nil {
		h.during()
	}
	return &pb.ResponseHeader{ClusterId: h.ClusterId, Revision: h.Revision}
}

func (h *headers) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	resp := &pb.TxnResponse{Header: h.reply()}
	for range r.Success {
		resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}})
	}
	if h.wrote {
		resp.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}}
	}
	if len(r.Success) > 0 && r.Success[0].GetRequestTxn() != nil {
		resp.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Responses: resp.Responses}}}}
	}
	return resp, nil
}

func TestRestored(t *testing.T) {
	txn := func(c *Client) {
		_, _ = c.Txn(t.Context(), func(t clientv3.Txn) clientv3.Txn { return t.Then(clientv3.OpPut("a", "")) })
	}
	nested := func(c *Client) {
		_, _ = c.Txn(t.Context(), func(t clientv3.Txn) clientv3.Txn {
			return t.Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", "")}, nil))
		})
	}
	read := func(n int, at int64) func(*Client) {
		return func(c *Client) {
			_, _, _ = c.ReadAt(t.Context(), t.Context(), at, []Read{ReadKey("a"), ReadKey("b")}[:n]...)
		}
	}
	for _, tc := range []struct {
		name     string
		wrote    bool
		cluster  uint64
		rev      int64
		send     func(*Client)
		asks     bool
		restored string
	}{
		{"the same", false, 1, 10, txn, false, ""},
		{"a txn", false, 1, 9, txn, false, "etcd's revision went back from 10 to 9: a snapshot was restored, or etcd has lost its data"},
		{"a txn that wrote", true, 1, 11, txn, false, ""},
		{"a txn that wrote what was there", true, 1, 10, txn, false, "etcd's revision went back from 10 to 10: a snapshot was restored, or etcd has lost its data"},
		{"one in another one that wrote what was there", true, 1, 10, nested, false, "etcd's revision went back from 10 to 10: a snapshot was restored, or etcd has lost its data"},
		{"a read", false, 1, 9, read(1, 0), false, "etcd's revision went back from 10 to 9: a snapshot was restored, or etcd has lost its data"},
		{"two reads", false, 1, 9, read(2, 0), false, "etcd's revision went back from 10 to 9: a snapshot was restored, or etcd has lost its data"},
		{"a read of a member that lags", false, 1, 9, read(1, 5), true, ""},
		{"two reads of a member that lags", false, 1, 9, read(2, 5), true, ""},
		{"a read that is pinned", false, 1, 10, read(1, 5), false, ""},
		{"another cluster", false, 2, 20, read(1, 5), false, "etcd's cluster ID changed from 1 to 2: another etcd answers, or a snapshot was restored, or etcd has lost its data"},
		{"a proxy", false, 0, 20, read(1, 0), false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, kv, asked, restored := newRestored()
			txn(c)
			require.Empty(t, *restored)
			kv.ClusterId, kv.Revision, kv.wrote = tc.cluster, tc.rev, tc.wrote
			tc.send(c)
			require.Equal(t, tc.asks, len(*asked) > 0)
			if tc.restored == "" {
				require.Empty(t, *restored)
			} else {
				require.Len(t, *restored, 1)
				require.EqualError(t, (*restored)[0], tc.restored)
				require.ErrorIs(t, (*restored)[0], ErrRestored)
			}
		})
	}
}

// newRestored is a client of an etcd of cluster 1 at revision 10. asked is what it does in the background.
func newRestored() (c *Client, kv *headers, asked *[]func(context.Context), restored *[]error) {
	c, kv = newTestClient(), &headers{ResponseHeader: pb.ResponseHeader{ClusterId: 1, Revision: 10}}
	c.KV = clientv3.NewKVFromKVClient(kv, c.Client)
	asked, restored = new([]func(context.Context)), new([]error)
	c.Background = func(f func(context.Context)) bool { *asked = append(*asked, f); return true }
	c.Restored = func(err error) { *restored = append(*restored, err) }
	return c, kv, asked, restored
}

// A reply that was overtaken by a later one shows a lower revision. What counts is what was shown when it was sent.
func TestRestored_Overtaken(t *testing.T) {
	c, kv, asked, restored := newRestored()
	kv.during = func() { c.shows(12) }
	for range 2 {
		_, err := c.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Empty(t, *asked)
		if kv.during == nil {
			break
		}
		require.Empty(t, *restored)
		kv.during = nil
	}
	require.Len(t, *restored, 1, "the second was sent after revision 12 was shown")
}

func (h *headers) LeaseTimeToLive(context.Context, *pb.LeaseTimeToLiveRequest, ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return &pb.LeaseTimeToLiveResponse{Header: h.reply(), TTL: -1}, nil
}

// That a lease has gone is told after Restored, if all data went with it.
func TestRestored_LeaseGone(t *testing.T) {
	c, kv, _, restored := newRestored()
	c.shows(10)
	c.Lease = clientv3.NewLeaseFromLeaseClient(kv, c.Client, 0)
	for _, rev := range []int64{10, 9} {
		require.Empty(t, *restored)
		kv.Revision = rev
		gone, err := c.TimeToLive(t.Context(), 5, false)
		require.NoError(t, err)
		require.Zero(t, gone.GrantedTTL)
	}
	require.Len(t, *restored, 1)
}

// A hint has etcd asked, once at a time. If a member lagged, that is all.
func TestRestored_Hint(t *testing.T) {
	c, kv, asked, restored := newRestored()
	c.shows(10)
	hint := func() { c.hints(&pb.ResponseHeader{Revision: 9}, 10) }
	hint()
	hint()
	require.Len(t, *asked, 1)
	(*asked)[0](t.Context())
	require.Empty(t, *restored)
	kv.Revision = 9
	hint()
	require.Len(t, *asked, 2)
	(*asked)[1](t.Context())
	require.Len(t, *restored, 1)

	c.Background = func(func(context.Context)) bool { return false } // about to end
	hint()
	require.False(t, c.shown.asking.Load())
}
