package world

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dice are safe for concurrent use.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// oneIn is true once in n times.
func (d *dice) oneIn(n int) bool { return d.n(n) == 0 }

// upTo is a time, less than most.
func (d *dice) upTo(most time.Duration) time.Duration { return time.Duration(d.n(int(most))) }

// elapse lets time pass, or returns the error of ctx.
func elapse(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A wire is the way of one process to etcd.
type wire struct {
	pb.KVClient    // what is not here panics
	clientv3.Lease // likewise
	*world
	cut     atomic.Bool  // the process is dead
	blocked atomic.Int64 // nothing gets through until then, in ns
	hangs   atomic.Bool  // what writes is carried out late, and gets no answer
	trouble atomic.Pointer[trouble]
	refused atomic.Bool // something, for that trouble
}

var errLost = status.Error(codes.Unavailable, "transport is closing")

// connect makes the client of a new process. kill ends the process, and what it has on its way may be carried out later.
func (w *world) connect() (c *clientv3.Client, e *wire, kill func()) {
	ctx, end := context.WithCancel(context.Background())
	c, e = clientv3.NewCtxClient(ctx), &wire{world: w}
	c.KV, c.Lease, c.Watcher = clientv3.NewKVFromKVClient(e, c), e, e
	return c, e, func() { e.cut.Store(true); end() }
}

// lateness is how long a message is on its way.
func (e *wire) lateness() time.Duration {
	switch {
	case !e.resting() && e.dice.oneIn(30):
		return max(e.dice.upTo(3*time.Second), e.unblocked())
	default:
		return max(e.dice.upTo(4*time.Millisecond), e.unblocked())
	}
}

// unblocked is when something gets through again.
func (e *wire) unblocked() time.Duration {
	if e.resting() {
		return 0
	}
	return time.Until(time.Unix(0, e.blocked.Load()))
}

// mishap is true once in n times, and never when the world rests.
func (e *wire) mishap(n int) bool { return e.dice.oneIn(n) && !e.resting() }

// lookedFor is for how long a session looks for what a request may write that it has no answer to.
const lookedFor = 20 * time.Second

// carry carries out a request. copied, if not nil, carries out another copy of it, which comes late. awaited says that the sender knows
// of the copy, and looks for what it may write. raw says that the request writes a raw value, which stays if nobody looks for it:
// see "A lease that another process takes over" in docs/protocol.md.
func (e *wire) carry(ctx context.Context, raw bool, do func() error, copied func(awaited bool)) error {
	d := e.dice
	sendCopy := func(known bool) {
		late := d.upTo(30 * time.Second)
		if raw {
			late %= lookedFor
		}
		e.late.Go(func() {
			_ = elapse(context.Background(), late)
			copied(known && late < lookedFor)
		})
	}
	if copied != nil && (e.hangs.Load() || e.mishap(120)) { // instead of the request
		sendCopy(true)
		if err := elapse(ctx, 15*time.Second); err != nil { // until the connection breaks, since a member hangs
			return err
		}
		return errLost
	}
	if err := elapse(ctx, e.lateness()); err != nil {
		return err
	}
	if e.cut.Load() || e.mishap(40) {
		return errLost
	}
	if e.mishap(60) { // which etcd has not even proposed
		return []error{rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCRequestTooManyRequests}[d.n(2)]
	}
	if err := do(); err != nil {
		return err
	}
	if copied != nil && !raw && e.mishap(120) { // after it, as if clientv3 had repeated the request
		sendCopy(false)
	}
	switch {
	case e.mishap(30):
		return errLost
	case e.mishap(120):
		return rpctypes.ErrGRPCTimeout
	}
	return elapse(ctx, d.upTo(4*time.Millisecond))
}

// trouble is what etcd refuses to a process for a while.
type trouble struct {
	full   bool   // all that puts
	few    bool   // more than eight operations
	denied string // what touches keys below that name
}

// refuse is the error of a request that etcd refuses.
func (e *wire) refuse(r *pb.TxnRequest) (err error) {
	t := e.trouble.Load()
	switch {
	case t == nil || e.resting():
		return nil
	case t.few && operations(r) > 8:
		err = rpctypes.ErrGRPCTooManyOps
	case t.denied != "" && touches(r, t.denied+"/"):
		err = rpctypes.ErrGRPCPermissionDenied
	case t.full && puts(r):
		err = rpctypes.ErrGRPCNoSpace
	default:
		return nil
	}
	e.refused.Store(true)
	return err
}

// operations are as many as etcd counts.
func operations(r *pb.TxnRequest) int {
	most := 0
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if inner := op.GetRequestTxn(); inner != nil {
			most = max(most, operations(inner))
		}
	}
	return max(len(r.Compare), len(r.Success), len(r.Failure)) + most
}

func touches(r *pb.TxnRequest, prefix string) bool {
	below := func(key []byte) bool { return bytes.HasPrefix(key, []byte(prefix)) }
	return slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return below(c.Key) }) ||
		slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(o *pb.RequestOp) bool {
			return below(o.GetRequestRange().GetKey()) || below(o.GetRequestPut().GetKey()) || below(o.GetRequestDeleteRange().GetKey()) ||
				o.GetRequestTxn() != nil && touches(o.GetRequestTxn(), prefix)
		})
}

func puts(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(o *pb.RequestOp) bool {
		return o.GetRequestPut() != nil || o.GetRequestTxn() != nil && puts(o.GetRequestTxn())
	})
}

// writesRaw reports whether a request writes an entry with a raw value.
func writesRaw(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(r.Success, func(o *pb.RequestOp) bool {
		put := o.GetRequestPut()
		return put.GetLease() != 0 && !bytes.HasPrefix(put.Value, []byte("{")) || o.GetRequestTxn() != nil && writesRaw(o.GetRequestTxn())
	})
}

// removes reports whether operations remove something. If such a request of a process that was killed comes late, it removes what the
// successor has adopted: "A lease that another process takes over" in docs/protocol.md.
func removes(ops []*pb.RequestOp) bool {
	return slices.ContainsFunc(ops, func(o *pb.RequestOp) bool {
		return o.GetRequestDeleteRange() != nil || removes(o.GetRequestTxn().GetSuccess())
	})
}

func (e *wire) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	e.sent(r)
	do := func(ctx context.Context, awaited bool) (resp *pb.TxnResponse, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cut.Load() && removes(r.Success) {
			return nil, errLost
		}
		if err := e.refuse(r); err != nil {
			return nil, err
		}
		if e.leaselessLocked(r) {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		if pinned := len(r.Success) > 0 && r.Success[0].GetRequestRange().GetRevision() > 0; pinned && e.mishap(20) {
			return nil, rpctypes.ErrGRPCCompacted
		}
		change := func() { resp, err = e.f.Txn(ctx, r) }
		if removes(r.Success) {
			e.removingLocked(change)
		} else {
			change()
		}
		if err == nil {
			e.fencedLocked(r, resp)
			if awaited {
				e.lateLocked(r, resp, resp.Header.Revision)
			}
		}
		return resp, err
	}
	err = e.carry(ctx, writesRaw(r), func() (err error) { resp, err = do(ctx, false); return err }, func(awaited bool) { _, _ = do(context.Background(), awaited) })
	return resp, err
}

// lateLocked takes note of what a late copy of a request has written.
func (w *world) lateLocked(r *pb.TxnRequest, resp *pb.TxnResponse, rev int64) {
	for i, op := range r.Success {
		if inner := op.GetRequestTxn(); resp.Succeeded && inner != nil {
			w.lateLocked(inner, resp.Responses[i].GetResponseTxn(), rev)
		} else if put := op.GetRequestPut(); resp.Succeeded && put != nil {
			w.lates[entryOf(string(put.Key), rev)] = true
		}
	}
}

func (e *wire) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (resp *pb.RangeResponse, err error) {
	err = e.carry(ctx, false, func() (err error) {
		if err = e.refuse(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: r}}}}); err == nil {
			resp, err = e.f.Range(ctx, r)
		}
		return err
	}, nil)
	return resp, err
}

// Watch passes on what a watch of the fake tells, in its order. Now and then the watch tells nothing any more.
func (e *wire) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := e.f.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		var queue []clientv3.WatchResponse
		var due <-chan time.Time
		var to chan<- clientv3.WatchResponse
		for silent := false; in != nil || len(queue) > 0; {
			var first clientv3.WatchResponse
			if len(queue) > 0 {
				first = queue[0]
			}
			select {
			case wr, ok := <-in:
				silent = silent || e.mishap(300)
				if !ok {
					in = nil
				} else if !silent {
					queue = append(queue, wr)
				}
			case <-due:
				due, to = nil, out
			case to <- first:
				queue, to = queue[1:], nil
			case <-ctx.Done():
				return
			}
			if len(queue) > 0 && due == nil && to == nil {
				due = time.After(e.lateness())
			}
		}
	}()
	return out
}

// RequestProgress asks all watches of the fake.
func (e *wire) RequestProgress(ctx context.Context) error {
	if e.cut.Load() {
		return errLost
	}
	return e.f.RequestProgress(ctx)
}

// header has the revision of now.
func (e *wire) header() *pb.ResponseHeader {
	r, err := e.f.Range(context.Background(), &pb.RangeRequest{Key: []byte("none")})
	if err != nil {
		panic(err)
	}
	return r.Header
}

func (e *wire) Grant(ctx context.Context, _ int64) (resp *clientv3.LeaseGrantResponse, err error) {
	err = e.carry(ctx, false, func() error {
		resp = &clientv3.LeaseGrantResponse{ResponseHeader: e.header(), ID: e.grant(), TTL: int64(e.ttl / time.Second)}
		return nil
	}, nil)
	return resp, rpctypes.Error(err)
}

func (e *wire) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (resp *clientv3.LeaseTimeToLiveResponse, err error) {
	err = e.carry(ctx, false, func() error {
		resp = &clientv3.LeaseTimeToLiveResponse{ResponseHeader: e.header(), ID: id, TTL: -1}
		if !e.lives(id, false) {
			return nil
		}
		resp.TTL = int64(e.ttl / time.Second)
		resp.GrantedTTL = resp.TTL
		for _, kv := range e.f.Keys("") {
			if kv.Lease == int64(id) {
				resp.Keys = append(resp.Keys, kv.Key)
			}
		}
		return nil
	}, nil)
	return resp, rpctypes.Error(err)
}

func (e *wire) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseKeepAliveResponse, err error) {
	err = e.carry(ctx, false, func() error {
		if !e.lives(id, true) {
			return rpctypes.ErrLeaseNotFound
		}
		resp = &clientv3.LeaseKeepAliveResponse{ResponseHeader: e.header(), ID: id, TTL: int64(e.ttl / time.Second)}
		return nil
	}, nil)
	return resp, rpctypes.Error(err)
}

func (e *wire) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	err := e.carry(ctx, false, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.revokeLocked(id)
		return nil
	}, nil)
	return &clientv3.LeaseRevokeResponse{}, rpctypes.Error(err)
}

func (e *wire) Close() error { return nil }
