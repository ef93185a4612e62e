// Taking a lock only if it is free.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/settle"
)

// tryReadLimit is how many keys of a queue a Try lists that is refused.
const tryReadLimit = 8

// triedFor is how long a session remembers that a Try was refused. The next one of that name reads first: etcd takes a
// txn for a write if it could be one, and each member syncs its log for it. A read is no entry in that log.
const triedFor = 10 * time.Second

func tryEntry(ctx context.Context, h *Held) (*Held, error) {
	err := h.prepare(ctx)
	if err == nil {
		err = h.awaitLeft(ctx)
	}
	if err == nil {
		err = h.tryEnqueue(ctx, h.s.tried.Has(h.names()))
	}
	if err == nil {
		h.notifyEnqueued()
		err = h.unlessBlocked(ctx)
	}
	if errors.Is(err, ErrLocked) {
		h.s.tried.Add(h.names(), triedFor)
	} else if err == nil {
		h.s.tried.Forget(h.names())
	}
	return h.conclude(err)
}

// tryEnqueue writes the keys only if nothing that blocks them is in the queues, and returns ErrLocked otherwise: one
// request, and no entry on failure.
//
// That request compares that a range is empty, so it decides nothing if foreign keys lie in the range. Then the queue is
// read, unless the reply has shown all of it. If nothing blocks the entry, a txn writes it in any case, and shows what
// came since: see unlessBlocked. To compare that nothing came would fail, again and again, while foreign keys are written.
func (a *acquisition) tryEnqueue(ctx context.Context, readFirst bool) error {
	queues := a.pending.lock.queues
	if readFirst {
		// Linearizably, so what blocks the entry was there during the call. If all is empty, one request still decides.
		got, at, err := a.s.lease.Read(ctx, a.s.lease.Ctx, 0, settle.ReadBlocking(queues, tryReadLimit)...)
		if err != nil {
			return err
		} else if slices.ContainsFunc(got, func(r *pb.RangeResponse) bool { return r.Count > 0 }) {
			return a.enqueueIfVacant(ctx, queues, at, got)
		}
	}
	resp, err := a.commit(ctx, settle.WriteIfFree(queues, a.allKeys(), a.pending.value, a.s.lease.ID, tryReadLimit))
	if etcd.ReplyTooLarge(err) && !readFirst {
		return a.tryEnqueue(ctx, true) // by reads, which leave out values that are too large
	}
	if err != nil {
		return err
	}
	rev, seen := resp.At, make([]*pb.ResponseOp, len(queues)) // nothing blocks it
	if !resp.Succeeded {
		rev = a.ownRev(resp.Responses[0].GetResponseRange().Kvs)
		if a.pending.lock.published.raw { // it may be an entry that waits, of another session of the lease: nothing is known
			seen = nil
		}
	}
	if rev != 0 { // if not by this txn, then by one before it, which nothing blocked either
		a.enter(rev, rev, seen...)
		return nil
	}
	var got []*pb.RangeResponse
	for _, r := range resp.Responses[1:] {
		got = append(got, r.GetResponseRange())
	}
	return a.enqueueIfVacant(ctx, queues, resp.At, got)
}

// enqueueIfVacant returns ErrLocked if something blocks a part. got are keys of each queue at revision at, some or all.
func (a *acquisition) enqueueIfVacant(ctx context.Context, queues []keyspace.Queue, at int64, got []*pb.RangeResponse) error {
	since, why, err := inspect.Vacant(queues, at, got, func(r ...etcd.Read) ([]*pb.RangeResponse, int64, error) {
		return a.s.lease.Read(ctx, a.s.lease.Ctx, 0, r...)
	})
	if err == nil && since == nil {
		err = fmt.Errorf("%w%s", ErrLocked, why)
	}
	if err != nil {
		return err
	}
	return a.enqueue(ctx, since...)
}

// unlessBlocked grants the acquisition, or returns ErrLocked if something below blocks it, which came since tryEnqueue found
// nothing: the acquisition is withdrawn then. If nothing is below, nothing can come there, so the acquisition waits for nobody.
func (h *Held) unlessBlocked(ctx context.Context) error {
	if h.firstUngranted() != nil {
		if n, err := h.ahead(ctx); err != nil || n > 0 {
			return cmp.Or(err, ErrLocked)
		}
	}
	return h.wait(ctx)
}

// awaitLeft waits for the removal of entries of the same session that are over, if no other entry of the session is in the way:
// Try must not stumble over them. It does not wait for one that etcd refuses.
func (a *acquisition) awaitLeft(ctx context.Context) error {
	ctx, cancel := etcd.Bind(ctx, a.s.lease.Ctx)
	defer cancel()
	for p := range a.all() {
		for p.BehindLeft() {
			select {
			case <-ctx.Done():
				return a.s.lease.WaitError(ctx)
			case <-p.Woken():
			}
		}
	}
	return nil
}
