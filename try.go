// Taking a lock only if it is free.

package etcdlock

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// tryReadLimit is how many keys of a queue a Try lists that is refused.
const tryReadLimit = 8

func tryEntry(ctx context.Context, h *Held) (*Held, error) {
	err := h.tryEnqueue(ctx)
	if err == nil {
		h.notifyEnqueued()
		err = h.grant(ctx)
	}
	return h.result(err)
}

// tryEnqueue writes the entry only if nothing that blocks it is in the queue, and returns ErrLocked otherwise: one
// request, and no entry on failure. Only if foreign keys are in the way does another txn follow, which compares that
// nothing was written there since they were listed.
func (e *entry) tryEnqueue(ctx context.Context) error {
	var free []clientv3.Cmp // of each part
	for p := range e.all() {
		from, to := keyspace.Blocking(p.name, p.mode.kind())
		free = append(free, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
	}
	e.reserveKeys()
	e.enlist()
	if err := e.awaitLeft(ctx); err != nil {
		return err
	}
	for {
		resp, err := e.commit(ctx, func(t clientv3.Txn) clientv3.Txn {
			var look []clientv3.Op
			for p := range e.all() {
				look = append(look, clientv3.OpGet(p.key))
			}
			return t.If(append(e.keysAbsent(), free...)...).Then(e.putOps()...).Else(append(look, e.listOps(tryReadLimit)...)...)
		})
		if err != nil {
			return err
		}
		rev := resp.Header.Revision
		var own []*mvccpb.KeyValue
		if !resp.Succeeded {
			for _, r := range resp.Responses[:len(free)] {
				own = append(own, r.GetResponseRange().Kvs...)
			}
			rev = e.ownRev(own)
		}
		if rev != 0 { // if not by this txn, then by one before it, which nothing blocked either
			e.enter(rev, make([]*pb.ResponseOp, len(free))...)
			return nil
		}
		i := 0
		for p := range e.all() {
			free[i], err = p.freeSince(ctx, resp.Header.Revision, resp.Responses[len(free)+i].GetResponseRange())
			if err != nil {
				return err
			}
			i++
		}
		if len(own) > 0 {
			e.s.keys.Skip(e.allKeys(), own)
			e.rekey()
		}
	}
}

// freeSince compares that nothing came to the queue since revision at, where these keys, some of all, did not block
// the entry. It returns ErrLocked if they did.
func (e *entry) freeSince(ctx context.Context, at int64, got *pb.RangeResponse) (clientv3.Cmp, error) {
	since, ok, key, err := inspect.Vacant(e.name, e.mode.kind(), at, got, func(r etcd.Read) ([]*pb.RangeResponse, int64, error) {
		return e.s.lease.Read(ctx, e.s.lease.Ctx, 0, r)
	})
	switch {
	case err == nil && key != "":
		return since, fmt.Errorf("%w: %s has no lease, so it may be data; keep data and lock names apart", ErrLocked, key)
	case err == nil && !ok:
		return since, ErrLocked
	}
	return since, err
}

// awaitLeft waits for the removal of entries of the same session that are over: nobody else has the lock, and Try is
// not to stumble over them. It does not wait for one that etcd refuses.
func (e *entry) awaitLeft(ctx context.Context) error {
	ctx, cancel := etcd.Bind(ctx, e.s.lease.Ctx)
	defer cancel()
	for p := range e.all() {
		own := p.listed()
		for own != nil && own.BehindLeft() {
			select {
			case <-ctx.Done():
				return e.s.lease.WaitError(ctx)
			case <-own.Wake():
			}
		}
	}
	return nil
}
