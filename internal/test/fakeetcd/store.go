package fakeetcd

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (f *Server) txnLocked(r *pb.TxnRequest) *pb.TxnResponse {
	succeeded, ops := f.branchLocked(r)
	resp := &pb.TxnResponse{Succeeded: succeeded}
	f.applyLocked(ops, resp)
	return resp
}

// branchLocked says which operations of a transaction are carried out.
func (f *Server) branchLocked(r *pb.TxnRequest) (succeeded bool, ops []*pb.RequestOp) {
	if slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !f.holdsLocked(c) }) {
		return false, r.Failure
	}
	return true, r.Success
}

// Puts are the puts that the server would carry out for a transaction now.
func (f *Server) Puts(r *pb.TxnRequest) []*pb.PutRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.putsLocked(r)
}

func (f *Server) putsLocked(r *pb.TxnRequest) (puts []*pb.PutRequest) {
	_, ops := f.branchLocked(r)
	for _, op := range ops {
		if op.GetRequestPut() != nil {
			puts = append(puts, op.GetRequestPut())
		} else if op.GetRequestTxn() != nil {
			puts = append(puts, f.putsLocked(op.GetRequestTxn())...)
		}
	}
	return puts
}

func (f *Server) holdsLocked(c *pb.Compare) bool {
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

func (f *Server) rangeLocked(r *pb.RangeRequest) *pb.RangeResponse {
	at := r.Revision
	if at == 0 {
		at = f.rev
	}
	return f.rangeIn(f.states[at], r)
}

func (f *Server) rangeIn(state map[string]*mvccpb.KeyValue, r *pb.RangeRequest) *pb.RangeResponse {
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: f.rev}}
	var keys []string
	for key := range state {
		if within(key, string(r.Key), string(r.RangeEnd)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	resp.Count = int64(len(keys))
	for _, key := range keys {
		kv := state[key]
		if kv.ModRevision >= r.MinModRevision && kv.CreateRevision >= r.MinCreateRevision && (r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) {
			if r.KeysOnly { // etcd 3.7 leaves out the lease, too
				kv = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
			}
			resp.Kvs = append(resp.Kvs, kv)
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
func (f *Server) applyLocked(ops []*pb.RequestOp, resp *pb.TxnResponse) int64 {
	next := maps.Clone(f.states[f.rev])
	var events []*clientv3.Event
	var do func(ops []*pb.RequestOp, resp *pb.TxnResponse)
	do = func(ops []*pb.RequestOp, resp *pb.TxnResponse) {
		for _, op := range ops {
			r := &pb.ResponseOp{}
			switch {
			case op.GetRequestRange().GetRevision() > 0:
				r.Response = &pb.ResponseOp_ResponseRange{ResponseRange: f.rangeLocked(op.GetRequestRange())}
			case op.GetRequestRange() != nil: // it sees what stands before it in the same txn
				r.Response = &pb.ResponseOp_ResponseRange{ResponseRange: f.rangeIn(next, op.GetRequestRange())}
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
				deleted := &pb.DeleteRangeResponse{}
				if next[key] != nil {
					delete(next, key)
					deleted.Deleted = 1
					events = append(events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: f.rev + 1}})
				}
				r.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: deleted}
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
	for _, w := range f.watches {
		w.tell(f.rev, events)
	}
	return f.rev
}

// within reports whether the range contains key; "\x00" as its end stands for the end of all keys.
func within(key, from, to string) bool {
	return key == from || key >= from && (key < to || to == "\x00")
}
