// Package fakeetcd is a fake of etcd for tests that decide what happens between any two calls of a
// client, and when. It knows nothing of locks.
package fakeetcd

import (
	"context"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A Server is as much of etcd as a client needs here: Txn and Range over every revision, watches
// from now, and the time that a lease has left. It runs inside a synctest bubble. What it does not
// have panics.
type Server struct {
	pb.KVClient
	clientv3.Watcher

	// Step is called before ("Txn", "Range", "pinned Range", "Watch") and after ("Txn.", ...) each
	// call is carried out. An error is what the caller gets. No mutex is held during Step.
	Step func(ctx context.Context, what string) error
	// Refuse, if set, says which watches are not opened.
	Refuse func(*Watch) bool
	// TellPuts has watches tell of puts, too, if they ask for them. It is set before the first watch.
	TellPuts bool

	mu      sync.Mutex
	rev     int64
	states  map[int64]map[string]*mvccpb.KeyValue // by revision
	events  map[int64][]*clientv3.Event           // by revision
	lag     int64                                 // how far behind the member is that serves watches
	watches []*Watch
}

// New returns a Server without keys.
func New() *Server {
	return &Server{
		rev: 1, states: map[int64]map[string]*mvccpb.KeyValue{1: {}}, events: map[int64][]*clientv3.Event{},
		Step: func(context.Context, string) error { return nil },
	}
}

// Client returns a client of the server. renew says what TTL a lease has.
func (f *Server) Client(renew func(context.Context) (ttl int64, err error)) *clientv3.Client {
	client := clientv3.NewCtxClient(context.Background())
	client.KV = clientv3.NewKVFromKVClient(f, client)
	client.Watcher = f
	client.Lease = lease{f: f, renew: renew}
	return client
}

// Write writes a key without a lease, as another client does, and returns the revision.
func (f *Server) Write(key string) int64 { return f.Do(PutOp(key, "", 0)) }

// WriteOn writes keys on a lease in one revision, which it returns.
func (f *Server) WriteOn(lease int64, value string, keys ...string) int64 {
	var ops []*pb.RequestOp
	for _, key := range keys {
		ops = append(ops, PutOp(key, value, lease))
	}
	return f.Do(ops...)
}

// There are the keys that start with prefix, in their order.
func (f *Server) There(prefix string) []string {
	keys := []string{}
	for _, kv := range f.Keys(prefix) {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// Remove deletes keys in one revision, as another client does.
func (f *Server) Remove(keys ...string) {
	var ops []*pb.RequestOp
	for _, key := range keys {
		ops = append(ops, RemoveOp(key))
	}
	f.Do(ops...)
}

// Update passes the keys that start with prefix to change, and carries out what that returns as one
// revision. Nothing comes in between.
func (f *Server) Update(prefix string, change func([]*mvccpb.KeyValue) []*pb.RequestOp) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applyLocked(change(f.keysLocked(prefix)), nil)
}

// RemoveOp returns an operation for Do and Update.
func RemoveOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

// PutOp returns an operation for Do and Update.
func PutOp(key, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}}
}

// Do carries out ops as one revision, and returns it.
func (f *Server) Do(ops ...*pb.RequestOp) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applyLocked(ops, nil)
}

// Restore brings back the state at revision rev, as a restored snapshot does. Watches stay: those of etcd's client do,
// which opens them anew at the revision that they had come to.
func (f *Server) Restore(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev = rev
}

// Keys returns the keys that start with prefix, in their order.
func (f *Server) Keys(prefix string) []*mvccpb.KeyValue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keysLocked(prefix)
}

func (f *Server) keysLocked(prefix string) []*mvccpb.KeyValue {
	return f.rangeLocked(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))}).Kvs
}

// Txn implements pb.KVClient.
func (f *Server) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	if reads := readsOf(r); len(reads) > 0 {
		return f.readTxn(ctx, reads)
	}
	err = f.call(ctx, "Txn", func() { resp = f.txn(r) })
	return resp, err
}

// readTxn reads all at one revision.
func (f *Server) readTxn(ctx context.Context, reads []*pb.RangeRequest) (resp *pb.TxnResponse, err error) {
	if len(reads) > 128 { // as etcd by default
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	err = f.read(ctx, reads[0].Revision, func() {
		resp = &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: f.rev}, Succeeded: true}
		for _, r := range reads {
			resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: f.rangeLocked(r)}})
		}
	})
	return resp, err
}

func (f *Server) txn(r *pb.TxnRequest) *pb.TxnResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := f.txnLocked(r)
	resp.Header = &pb.ResponseHeader{Revision: f.rev}
	return resp
}

// Range implements pb.KVClient.
func (f *Server) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (resp *pb.RangeResponse, err error) {
	if r.Serializable && r.Revision == 0 { // for an error only, beside the steps of the waiter
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.rangeLocked(r), ctx.Err()
	}
	err = f.read(ctx, r.Revision, func() { resp = f.rangeLocked(r) })
	return resp, err
}

// read is a call that reads at rev, 0 for the present.
func (f *Server) read(ctx context.Context, rev int64, effect func()) error {
	future, what := false, "Range"
	if rev > 0 {
		what = "pinned Range"
	}
	err := f.call(ctx, what, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if future = rev > f.rev; !future {
			effect()
		}
	})
	if future {
		return rpctypes.ErrGRPCFutureRev
	}
	return err
}

// call is one call: before, the effect, after.
func (f *Server) call(ctx context.Context, what string, effect func()) error {
	if err := f.Step(ctx, what); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	effect()
	if err := f.Step(ctx, what+"."); err != nil {
		return err
	}
	return ctx.Err()
}

// readsOf returns the reads of a transaction, or none if it does anything else.
func readsOf(r *pb.TxnRequest) (reads []*pb.RangeRequest) {
	if len(r.Compare) > 0 {
		return nil
	}
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if op.GetRequestRange() == nil {
			return nil
		}
		reads = append(reads, op.GetRequestRange())
	}
	return reads
}
