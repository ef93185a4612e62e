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

// tryEnqueue writes the keys only if nothing that blocks them is in the queues, and returns ErrLocked otherwise: one
// request, and no entry on failure.
//
// That request compares that a range is empty, so it decides nothing if foreign keys lie in the range. Then the queue is
// read, unless the reply has shown all of it. If nothing blocks the entry, a txn writes it in any case, and shows what
// came since: see unlessBlocked. To compare that nothing came would fail, again and again, while foreign keys are written.
func (a *acquisition) tryEnqueue(ctx context.Context) error {
	var free []clientv3.Cmp // of each part
	for p := range a.all() {
		from, to := keyspace.Blocking(p.name, p.mode.kind())
		free = append(free, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
	}
	a.reserveKeys()
	a.enlist()
	if err := a.awaitLeft(ctx); err != nil {
		return err
	}
	resp, err := a.commit(ctx, func(t clientv3.Txn) clientv3.Txn {
		var look []clientv3.Op
		for p := range a.all() {
			look = append(look, clientv3.OpGet(p.keys[0]))
		}
		return t.If(append(a.keysAbsent(), free...)...).Then(a.putOps()...).Else(append(look, a.listOps(tryReadLimit)...)...)
	})
	if err != nil {
		return err
	}
	rev, seen := resp.Header.Revision, make([]*pb.ResponseOp, len(free)) // nothing blocks it
	if !resp.Succeeded {
		rev = a.ownRev(resp.Responses[0].GetResponseRange().Kvs)
		if a.raw() { // it may be an entry that waits, of another session of the lease: nothing is known
			seen = nil
		}
	}
	if rev != 0 { // if not by this txn, then by one before it, which nothing blocked either
		a.enter(rev, seen...)
		return nil
	}
	var since []int64
	for p := range a.all() {
		at, err := p.vacantAt(ctx, resp.Header.Revision, resp.Responses[len(free)+len(since)].GetResponseRange())
		if err != nil {
			return err
		}
		since = append(since, at)
	}
	return a.enqueue(ctx, since...)
}

// vacantAt is a revision at which nothing in the queue blocked the part. got are keys at revision at, some or all. It
// returns ErrLocked if something blocks.
func (p *part) vacantAt(ctx context.Context, at int64, got *pb.RangeResponse) (int64, error) {
	at, ok, why, err := inspect.Vacant(p.name, p.mode.kind(), at, got, func(r etcd.Read) ([]*pb.RangeResponse, int64, error) {
		return p.of.s.lease.Read(ctx, p.of.s.lease.Ctx, 0, r)
	})
	if err == nil && !ok {
		err = fmt.Errorf("%w%s", ErrLocked, why)
	}
	return at, err
}

// unlessBlocked grants the acquisition, or returns ErrLocked if something below blocks it, which came since tryEnqueue found
// nothing: the acquisition is withdrawn then. If nothing is below, nothing can come there, so the acquisition waits for nobody.
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
func (a *acquisition) awaitLeft(ctx context.Context) error {
	ctx, cancel := etcd.Bind(ctx, a.s.lease.Ctx)
	defer cancel()
	for p := range a.all() {
		for p.own.BehindLeft() {
			select {
			case <-ctx.Done():
				return a.s.lease.WaitError(ctx)
			case <-p.own.Wake():
			}
		}
	}
	return nil
}
