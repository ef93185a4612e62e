// Taking a lock only if it is free.

package etcdlock

import (
	"cmp"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
		err = h.unlessBlocked(ctx)
	}
	return h.result(err)
}

// tryEnqueue writes the entry only if nothing that blocks it is in the queue, and returns ErrLocked otherwise: one
// request, and no entry on failure.
//
// That request compares that a range is empty, so it decides nothing if foreign keys lie in the range. Then the queue is
// read, unless the reply has shown all of it. If nothing blocks the entry, a txn writes it in any case, and shows what
// came since: see unlessBlocked. To compare that nothing came would fail, again and again, while foreign keys are written.
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
	rev, seen := resp.Header.Revision, make([]*pb.ResponseOp, len(free)) // nothing blocks it
	if !resp.Succeeded {
		rev = e.ownRev(resp.Responses[0].GetResponseRange().Kvs)
		if e.raw() { // it may be an entry that waits, of another session of the lease: nothing is known
			seen = nil
		}
	}
	if rev != 0 { // if not by this txn, then by one before it, which nothing blocked either
		e.enter(rev, seen...)
		return nil
	}
	var since []int64
	for p := range e.all() {
		at, err := p.vacantAt(ctx, resp.Header.Revision, resp.Responses[len(free)+len(since)].GetResponseRange())
		if err != nil {
			return err
		}
		since = append(since, at)
	}
	return e.enqueue(ctx, since...)
}

// vacantAt is a revision at which nothing in the queue blocked the entry. got are keys at revision at, some or all. It
// returns ErrLocked if something blocks.
func (e *entry) vacantAt(ctx context.Context, at int64, got *pb.RangeResponse) (int64, error) {
	at, ok, why, err := inspect.Vacant(e.name, e.mode.kind(), at, got, func(r etcd.Read) ([]*pb.RangeResponse, int64, error) {
		return e.s.lease.Read(ctx, e.s.lease.Ctx, 0, r)
	})
	if err == nil && !ok {
		err = fmt.Errorf("%w%s", ErrLocked, why)
	}
	return at, err
}

// unlessBlocked grants the entry, or returns ErrLocked if something below blocks it, which came since tryEnqueue found
// nothing: the entry is withdrawn then. If nothing is below, nothing can come there, so the entry waits for nobody.
func (h *Held) unlessBlocked(ctx context.Context) error {
	if h.waitsFor() != nil {
		if n, err := h.ahead(ctx); err != nil || n > 0 {
			return cmp.Or(err, ErrLocked)
		}
	}
	return h.wait(ctx)
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
