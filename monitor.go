// How a hold ends. That others have ended it, it hears from holdwatch.go or from the session's inspection.

package etcdlock

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	watched bool       // the hold is to be looked after
	watch   *holdWatch // that looks after the entry, or this part; nil if none does

	contended context.Context // ends when somebody waits for the hold; nil until asked for
	contend   context.CancelFunc
}

// holdContextLocked is what tells of the hold's end, made when somebody first asks. The caller holds e.mu.
func (e *entry) holdContextLocked() *holdContext {
	if e.holdCtx == nil {
		e.holdCtx = &holdContext{}
		e.holdCtx.ctx, e.holdCtx.cancel = context.WithCancelCause(context.Background())
		e.checkSessionLocked()
		if e.state != held {
			e.holdCtx.cancel(e.causeLocked())
		}
	}
	return e.holdCtx
}

// untilOver is a ctx that ends with the hold, for requests about it: a member may hang, and the caller's ctx
// never end.
func (e *entry) untilOver() (life context.Context, stop func()) {
	e.mu.Lock()
	c := e.holdContextLocked()
	e.unlockAndNotify()
	return etcd.Bind(c.ctx, e.s.lease.Ctx)
}

// endHoldLocked ends a hold. The caller holds e.mu, and lets go with unlockAndNotify. ctx ends with
// the hold.
func (e *entry) endHoldLocked(to state) {
	if e.transition(to) {
		e.finishHoldLocked()
	}
}

func (e *entry) finishHoldLocked() {
	e.lostWithSession = e.state == lost && e.s.Err() != nil
	if e.holdCtx != nil {
		e.holdCtx.cancel(e.causeLocked())
		e.unwatchLocked()
	}
	e.untrackHoldLocked()
	e.lossUnreported = e.state == lost
}

// causeLocked is why the entry is not held anymore, nil before. The caller holds e.mu.
func (e *entry) causeLocked() error {
	switch {
	case e.state < released:
		return nil
	case e.state < lost:
		return ErrNotHeld
	case e.lostWithSession:
		return lossOf(e.s.Err())
	}
	return ErrLost
}

// checkSessionLocked ends a hold whose session has ended. The caller holds e.mu.
func (e *entry) checkSessionLocked() {
	if e.state == held && e.s.Err() != nil {
		e.endHoldLocked(lost)
	}
}

// markLost ends the hold since its entry was not in etcd under key at revision at, and returns the
// hold's error: nil if Downgrade has given the entry another key meanwhile.
func (e *entry) markLost(key string, at int64) error {
	e.mu.Lock()
	defer e.unlockAndNotify()
	if key == e.key || e.first != nil {
		e.markLostLocked(at)
	}
	return e.causeLocked()
}

// markLostLocked makes the hold invalid at once. Its ctx ends when the session has asked after the
// lease, within confirmTimeout: the cause is to say whether it was the lease that took the entry. What
// is left of the entry is removed. The caller holds e.mu.
func (e *entry) markLostLocked(at int64) {
	if e.state != held || !e.transition(lost) {
		return
	}
	for p := range e.all() {
		if p.own != nil {
			p.own.Lost(at)
		}
	}
	ok := e.s.lease.Go(func(ctx context.Context) {
		e.s.lease.Confirm(e.s.lease.Ctx)
		e.mu.Lock()
		e.finishHoldLocked()
		e.unlockAndNotify()
		e.discard(ctx, nil)
	})
	if !ok {
		e.finishHoldLocked()
	}
}

// exists returns errEntryGone unless the entry is in etcd under these keys, at revision at or, with 0, at
// present. seen is the revision at which that is so.
func (e *entry) exists(ctx, life context.Context, at int64, keys ...string) (seen int64, err error) {
	reads := make([]etcd.Read, 0, len(keys))
	for _, key := range keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	got, seen, err := e.s.lease.Read(ctx, life, at, reads...)
	if err != nil {
		return seen, err
	}
	for i, key := range keys {
		if !slices.Contains(queue.Entries(got[i].Kvs), queue.Entry{Key: key, Rev: e.rev}) {
			return seen, errEntryGone
		}
	}
	return seen, nil
}
