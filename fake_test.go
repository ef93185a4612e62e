package etcdlock

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// fakeEtcd is as much of etcd as a waiter uses: Txn and Range over every
// revision, and watches from now. It runs inside a synctest bubble, and tells
// step of each moment before and after a call is carried out.
type fakeEtcd struct {
	pb.KVClient      // what is not faked panics
	clientv3.Watcher // likewise

	// step is called before ("Txn") and after ("Txn.") each call. An error is
	// what the caller gets. It is called without locks.
	step func(ctx context.Context, what string) error

	mu       sync.Mutex
	rev      int64
	states   map[int64]map[string]*mvccpb.KeyValue // by revision
	events   map[int64][]*clientv3.Event           // by revision
	lag      int64                                 // how far behind the member is that serves watches
	watchers []*fakeWatcher
	refuse   func(*fakeWatcher) bool // etcd does not open this watch
}

type fakeWatcher struct {
	from, to string
	ch       chan clientv3.WatchResponse
	closed   bool
}

func newFakeEtcd() *fakeEtcd {
	return &fakeEtcd{rev: 1, states: map[int64]map[string]*mvccpb.KeyValue{1: {}}, events: map[int64][]*clientv3.Event{}, step: func(context.Context, string) error { return nil }}
}

// session is a session on the fake, without the goroutine that renews.
func (f *fakeEtcd) session(id clientv3.LeaseID) *Session {
	s := f.bareSession(id)
	s.startInspect()
	return s
}

// bareSession is a session that does not inspect its keys either.
func (f *fakeEtcd) bareSession(id clientv3.LeaseID) *Session {
	client := clientv3.NewCtxClient(context.Background())
	client.KV = clientv3.NewKVFromKVClient(f, client)
	client.Watcher = f
	s := makeSession(client, config{lease: id, ttl: 10 * time.Second, log: discard, owner: "o"})
	s.keepAlive = func(context.Context) (int64, error) { return 10, nil }
	client.Lease = fakeLease{f: f, s: s}
	s.record(time.Now(), 3600)
	s.ttl = 10 * time.Second
	return s
}

// fakeLease knows of a lease what its renewal would tell, and which keys it has.
type fakeLease struct {
	clientv3.Lease // what is not faked panics
	f              *fakeEtcd
	s              *Session
}

func (l fakeLease) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	ttl, err := l.s.keepAlive(ctx)
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	resp := &clientv3.LeaseTimeToLiveResponse{ID: id, GrantedTTL: ttl}
	for key, kv := range l.f.states[l.f.rev] {
		if kv.Lease == int64(id) {
			resp.Keys = append(resp.Keys, []byte(key))
		}
	}
	return resp, err
}

func within(key, from, to string) bool { return key == from || to != "" && key >= from && key < to }

// put and del change the store as others do.
func (f *fakeEtcd) put(key string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applyLocked([]*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}}, nil)
}

func (f *fakeEtcd) del(keys ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delLocked(keys...)
}

func (f *fakeEtcd) delLocked(keys ...string) {
	var ops []*pb.RequestOp
	for _, key := range keys {
		ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}})
	}
	f.applyLocked(ops, nil)
}

// keys are those below prefix now.
func (f *fakeEtcd) keys(prefix string) []queue.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keysLocked(prefix)
}

func (f *fakeEtcd) keysLocked(prefix string) []queue.Entry {
	return queue.Entries(f.rangeLocked(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))}).Kvs)
}

// breakWatches ends every watch with an error.
func (f *fakeEtcd) breakWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers {
		if !w.closed {
			w.ch <- clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true}
			w.close()
		}
	}
}

// tell sends the deletions among events; the library filters puts.
func (w *fakeWatcher) tell(rev int64, events []*clientv3.Event) {
	var wr clientv3.WatchResponse
	for _, ev := range events {
		if ev.Type == clientv3.EventTypeDelete && within(string(ev.Kv.Key), w.from, w.to) {
			wr.Events = append(wr.Events, ev)
		}
	}
	if len(wr.Events) > 0 && !w.closed {
		wr.Header = &pb.ResponseHeader{Revision: rev}
		w.ch <- wr
	}
}

func (w *fakeWatcher) close() {
	if !w.closed {
		w.closed = true
		close(w.ch)
	}
}

func (f *fakeEtcd) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	if reads := rangesOf(r); len(reads) > 0 {
		return f.readTxn(ctx, reads)
	}
	err = f.call(ctx, "Txn", func() { resp = f.txn(r) })
	return resp, err
}

// readTxn reads all at one revision.
func (f *fakeEtcd) readTxn(ctx context.Context, reads []*pb.RangeRequest) (resp *pb.TxnResponse, err error) {
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

func (f *fakeEtcd) txn(r *pb.TxnRequest) *pb.TxnResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := f.txnLocked(r)
	resp.Header = &pb.ResponseHeader{Revision: f.rev}
	return resp
}

func (f *fakeEtcd) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (resp *pb.RangeResponse, err error) {
	if r.Serializable && r.Revision == 0 { // for an error only, beside the steps of the waiter
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.rangeLocked(r), ctx.Err()
	}
	err = f.read(ctx, r.Revision, func() { resp = f.rangeLocked(r) })
	return resp, err
}

// read is a call that reads at rev, 0 for the present.
func (f *fakeEtcd) read(ctx context.Context, rev int64, effect func()) error {
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

func (f *fakeEtcd) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	w := &fakeWatcher{from: key, to: string(op.RangeBytes()), ch: make(chan clientv3.WatchResponse, 1000)}
	err := f.call(ctx, "Watch", func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refuse != nil && f.refuse(w) {
			w.close()
			return
		}
		f.watchers = append(f.watchers, w)
		at := max(1, f.rev-f.lag)
		w.ch <- clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: at}, Created: true}
		for rev := at + 1; rev <= f.rev; rev++ { // what that member gets to see yet
			w.tell(rev, f.events[rev])
		}
	})
	stop := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		w.close()
	}
	if err != nil {
		stop()
	} else {
		context.AfterFunc(ctx, stop)
	}
	return w.ch
}

// RequestProgress is answered by every watch.
func (f *fakeEtcd) RequestProgress(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers {
		if !w.closed {
			w.ch <- clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: f.rev - f.lag}}
		}
	}
	return nil
}

// call is one call: before, the effect, after.
func (f *fakeEtcd) call(ctx context.Context, what string, effect func()) error {
	if err := f.step(ctx, what); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	effect()
	if err := f.step(ctx, what+"."); err != nil {
		return err
	}
	return ctx.Err()
}

func (f *fakeEtcd) txnLocked(r *pb.TxnRequest) *pb.TxnResponse {
	resp := &pb.TxnResponse{Succeeded: !slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !f.holdsLocked(c) })}
	ops := r.Failure
	if resp.Succeeded {
		ops = r.Success
	}
	f.applyLocked(ops, resp)
	return resp
}

func (f *fakeEtcd) holdsLocked(c *pb.Compare) bool {
	kvs := f.rangeLocked(&pb.RangeRequest{Key: c.Key, RangeEnd: c.RangeEnd}).Kvs
	if len(kvs) == 0 {
		kvs = []*mvccpb.KeyValue{{}}
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		is, want := kv.CreateRevision, c.GetCreateRevision()
		if c.Target == pb.Compare_MOD {
			is, want = kv.ModRevision, c.GetModRevision()
		}
		switch c.Result {
		case pb.Compare_EQUAL:
			return is != want
		case pb.Compare_LESS:
			return is >= want
		}
		panic("not faked")
	})
}

func (f *fakeEtcd) rangeLocked(r *pb.RangeRequest) *pb.RangeResponse {
	at := r.Revision
	if at == 0 {
		at = f.rev
	}
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: f.rev}}
	for _, key := range slices.Sorted(maps.Keys(f.states[at])) {
		if kv := f.states[at][key]; within(key, string(r.Key), string(r.RangeEnd)) {
			resp.Count++
			if kv.CreateRevision >= r.MinCreateRevision && (r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) {
				resp.Kvs = append(resp.Kvs, kv)
			}
		}
	}
	switch r.SortOrder {
	case pb.RangeRequest_ASCEND:
		slices.SortFunc(resp.Kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	case pb.RangeRequest_DESCEND:
		slices.SortFunc(resp.Kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	}
	if r.Limit > 0 && int64(len(resp.Kvs)) > r.Limit {
		resp.Kvs, resp.More = resp.Kvs[:r.Limit], true
	}
	return resp
}

// applyLocked carries out ops as one revision, and returns it.
func (f *fakeEtcd) applyLocked(ops []*pb.RequestOp, resp *pb.TxnResponse) int64 {
	next := maps.Clone(f.states[f.rev])
	var events []*clientv3.Event
	var do func(ops []*pb.RequestOp, resp *pb.TxnResponse)
	do = func(ops []*pb.RequestOp, resp *pb.TxnResponse) {
		for _, op := range ops {
			r := &pb.ResponseOp{}
			switch {
			case op.GetRequestRange() != nil: // before the writes of the same txn
				r.Response = &pb.ResponseOp_ResponseRange{ResponseRange: f.rangeLocked(op.GetRequestRange())}
			case op.GetRequestPut() != nil:
				p := op.GetRequestPut()
				kv := &mvccpb.KeyValue{Key: p.Key, Value: bytes.Clone(p.Value), Lease: p.Lease, CreateRevision: f.rev + 1, ModRevision: f.rev + 1}
				if old := next[string(p.Key)]; old != nil {
					kv.CreateRevision = old.CreateRevision
				}
				next[string(p.Key)] = kv
				events = append(events, &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv})
				r.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}
			case op.GetRequestDeleteRange() != nil:
				key := string(op.GetRequestDeleteRange().Key)
				if next[key] != nil {
					delete(next, key)
					events = append(events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: f.rev + 1}})
				}
				r.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{}}
			case op.GetRequestTxn() != nil:
				inner := op.GetRequestTxn()
				ir := &pb.TxnResponse{Succeeded: !slices.ContainsFunc(inner.Compare, func(c *pb.Compare) bool { return !f.holdsLocked(c) })}
				if ir.Succeeded {
					do(inner.Success, ir)
				} else {
					do(inner.Failure, ir)
				}
				r.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: ir}
			}
			if resp != nil {
				resp.Responses = append(resp.Responses, r)
			}
		}
	}
	do(ops, resp)
	if len(events) == 0 {
		return f.rev
	}
	f.rev++
	f.states[f.rev] = next
	f.events[f.rev] = events
	for _, w := range f.watchers {
		w.tell(f.rev, events)
	}
	return f.rev
}

// entitled is the definition of who may hold the lock.
func entitled(kind keyspace.Kind, rev int64, entries []queue.Entry) bool {
	return !slices.ContainsFunc(entries, func(e queue.Entry) bool {
		k := keyspace.KindOf("a", e.Key)
		return e.Rev < rev && (k == keyspace.Exclusive || k == keyspace.Shared && kind == keyspace.Exclusive)
	})
}
