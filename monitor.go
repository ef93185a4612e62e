package etcdlock

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// How a hold ends. That others have ended it, it hears from holdwatch.go or from the session's inspection.

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx    context.Context // of the hold
	cancel context.CancelCauseFunc
	watch  *holdWatch // nil if none looks after the hold
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
	if key == e.key {
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
	if e.own != nil {
		e.own.Lost(at)
	}
	ok := e.s.background(func(ctx context.Context) {
		e.s.confirmLease(e.s.ctx)
		e.mu.Lock()
		e.finishHoldLocked()
		e.unlockAndNotify()
		e.discard(ctx, nil)
	})
	if !ok {
		e.finishHoldLocked()
	}
}

// exists returns errEntryGone unless the entry is in etcd under key, at revision at or, with 0, at
// present. seen is the revision at which that is so.
func (e *entry) exists(ctx, life context.Context, key string, at int64) (seen int64, err error) {
	got, seen, err := e.s.read(ctx, life, at, etcd.ReadKey(key))
	if err == nil && !slices.Contains(queue.Entries(got[0].Kvs), queue.Entry{Key: key, Rev: e.rev}) {
		err = errEntryGone
	}
	return seen, err
}
