package world

import (
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
}

var errLost = status.Error(codes.Unavailable, "transport is closing")

// connect makes the client of a new process. kill ends the process, and what it has on its way may be carried out later.
func (w *world) connect() (c *clientv3.Client, e *wire, kill func()) {
	ctx, end := context.WithCancel(context.Background())
	c, e = clientv3.NewCtxClient(ctx), &wire{world: w}
	c.KV, c.Lease, c.Watcher = clientv3.NewKVFromKVClient(e, c), e, w.f
	return c, e, func() { e.cut.Store(true); end() }
}

// carry carries out a request. copied, if not nil, carries out another copy of it, which comes late.
func (e *wire) carry(ctx context.Context, do, copied func() error) error {
	d := e.dice
	pause := d.upTo(4 * time.Millisecond)
	if d.oneIn(30) {
		pause = d.upTo(3 * time.Second)
	}
	sendCopy := func() {
		late := d.upTo(30 * time.Second)
		e.late.Go(func() {
			_ = elapse(context.Background(), late)
			_ = copied()
		})
	}
	if copied != nil && d.oneIn(120) { // instead of the request
		sendCopy()
		<-ctx.Done()
		return ctx.Err()
	}
	for _, pause := range []time.Duration{pause, time.Until(time.Unix(0, e.blocked.Load()))} {
		if err := elapse(ctx, pause); err != nil {
			return err
		}
	}
	if e.cut.Load() || d.oneIn(40) {
		return errLost
	}
	if err := do(); err != nil {
		return err
	}
	if copied != nil && d.oneIn(120) { // after it, as if clientv3 had repeated the request
		sendCopy()
	}
	if d.oneIn(30) {
		return errLost
	}
	return elapse(ctx, d.upTo(4*time.Millisecond))
}

// removes reports whether operations remove something. If such a request of a process that was killed comes late, it removes what the
// successor has adopted: "A lease that another process takes over" in docs/protocol.md.
func removes(ops []*pb.RequestOp) bool {
	return slices.ContainsFunc(ops, func(o *pb.RequestOp) bool {
		return o.GetRequestDeleteRange() != nil || removes(o.GetRequestTxn().GetSuccess())
	})
}

func (e *wire) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	do := func(ctx context.Context) (*pb.TxnResponse, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cut.Load() && removes(r.Success) {
			return nil, errLost
		}
		if e.leaselessLocked(r.Success) {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		if pinned := len(r.Success) > 0 && r.Success[0].GetRequestRange().GetRevision() > 0; pinned && e.dice.oneIn(20) {
			return nil, rpctypes.ErrGRPCCompacted
		}
		got, err := e.f.Txn(ctx, r)
		if err == nil {
			e.fencedLocked(r, got)
		}
		return got, err
	}
	err = e.carry(ctx, func() (err error) { resp, err = do(ctx); return err }, func() error { _, err := do(context.Background()); return err })
	return resp, err
}

func (e *wire) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (resp *pb.RangeResponse, err error) {
	err = e.carry(ctx, func() (err error) { resp, err = e.f.Range(ctx, r); return err }, nil)
	return resp, err
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
	err = e.carry(ctx, func() error {
		resp = &clientv3.LeaseGrantResponse{ResponseHeader: e.header(), ID: e.grant(), TTL: ttl}
		return nil
	}, nil)
	return resp, err
}

func (e *wire) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (resp *clientv3.LeaseTimeToLiveResponse, err error) {
	err = e.carry(ctx, func() error {
		resp = &clientv3.LeaseTimeToLiveResponse{ResponseHeader: e.header(), ID: id, TTL: -1}
		if !e.lives(id, false) {
			return nil
		}
		resp.TTL, resp.GrantedTTL = ttl, ttl
		for _, kv := range e.f.Keys("") {
			if kv.Lease == int64(id) {
				resp.Keys = append(resp.Keys, kv.Key)
			}
		}
		return nil
	}, nil)
	return resp, err
}

func (e *wire) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseKeepAliveResponse, err error) {
	err = e.carry(ctx, func() error {
		if !e.lives(id, true) {
			return rpctypes.ErrLeaseNotFound
		}
		resp = &clientv3.LeaseKeepAliveResponse{ResponseHeader: e.header(), ID: id, TTL: ttl}
		return nil
	}, nil)
	return resp, err
}

func (e *wire) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	err := e.carry(ctx, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.revokeLocked(id)
		return nil
	}, nil)
	return &clientv3.LeaseRevokeResponse{}, err
}

func (e *wire) Close() error { return nil }
