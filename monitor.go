// What happens to a hold from outside: its loss, and that somebody waits for it. A hold is watched once its owner has asked for
// Context or Done, or runs in Do. Any other hold learns of its loss from the session's checks, from a reply, or when it is used.

package etcdlock

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/loan"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// holdContextLocked is what tells of the hold's end, made when somebody first asks. The caller holds a.mu.
func (a *acquisition) holdContextLocked() *holdContext {
	if a.holdCtx == nil {
		a.holdCtx = &holdContext{}
		a.holdCtx.ctx, a.holdCtx.cancel = etcd.WithEnd(loan.Ending(context.Background(), context.Background(), a))
		a.checkSessionLocked()
		if a.state != held && !a.askingLease {
			a.holdCtx.cancel(a.causeLocked())
		}
	}
	return a.holdCtx
}

// untilOver is a ctx that ends with the hold, for requests about it: a member may hang, and the caller's ctx never end.
func (a *acquisition) untilOver() (life context.Context, stop func()) {
	a.mu.Lock()
	c := a.holdContextLocked()
	a.unlockAndNotify()
	return etcd.Bind(c.ctx, a.s.lease.Ctx)
}

// endHoldLocked ends a hold. The caller holds a.mu, and lets go with unlockAndNotify.
func (a *acquisition) endHoldLocked(to state) {
	if a.transition(to) {
		a.finishHoldLocked()
	}
}

// finishHoldLocked does what follows the end of a hold: its Context ends, and its watch. The caller holds a.mu.
func (a *acquisition) finishHoldLocked() {
	a.askingLease, a.lostWithSession = false, a.state == lost && a.s.Err() != nil
	if a.holdCtx != nil {
		a.holdCtx.cancel(a.causeLocked())
		a.unwatchLocked()
	}
	a.lossUnreported = a.state == lost
}

// causeLocked is why the acquisition is not held anymore, nil before. The caller holds a.mu.
func (a *acquisition) causeLocked() error {
	switch {
	case a.state < released:
		return nil
	case a.state < lost:
		return ErrNotHeld
	case a.lostWithSession:
		return lossOf(a.s.Err())
	}
	return ErrLost
}

// checkSessionLocked ends a hold whose session has ended. The caller holds a.mu.
func (a *acquisition) checkSessionLocked() {
	if a.state == held && a.s.Err() != nil {
		a.endHoldLocked(lost)
	}
}

// markLost ends the hold since its entry was not in etcd under key, and returns why. If the hold is known by another key by
// now, since it was downgraded, markLost changes nothing and returns nil.
func (a *acquisition) markLost(key string) error {
	a.mu.Lock()
	defer a.unlockAndNotify()
	if len(a.parts()) > 1 || key == a.parts()[0].Key() {
		a.markLostLocked()
	}
	return a.causeLocked()
}

// markLostLocked makes the hold invalid at once. Its ctx ends when the session has asked after the lease, within confirmTimeout: the
// cause must say whether it was the lease that took the key. What is left of the acquisition is removed. The caller holds a.mu.
func (a *acquisition) markLostLocked() {
	if a.checkSessionLocked(); a.state != held || !a.transition(lost) {
		return // if the session has ended nothing is removed: after Orphan a successor may own the entry
	}
	for p := range a.all() {
		p.Lost()
	}
	a.askingLease = a.s.lease.Go(func(context.Context) {
		a.s.lease.Confirm(a.s.lease.Ctx)
		a.mu.Lock()
		a.finishHoldLocked()
		a.unlockAndNotify()
		a.discard(nil, true)
	})
	if !a.askingLease {
		a.finishHoldLocked()
	}
}

// checkKeys returns waitlist.ErrRemoved unless the acquisition is in etcd under these keys at present.
func (a *acquisition) checkKeys(ctx, life context.Context, keys ...string) error {
	got, _, err := a.s.lease.Read(ctx, life, 0, etcd.ReadKeys(keys)...)
	for i := range got {
		if !shows(got[i], queue.Entry{Key: keys[i], Rev: a.rev}) {
			return waitlist.ErrRemoved
		}
	}
	return err
}

// shows reports whether what was read has that very entry.
func shows(got *pb.RangeResponse, e queue.Entry) bool {
	return slices.Contains(queue.Entries(got.Kvs), e)
}

// watchLocked has the hold looked after, each part of a Multi by itself. The caller holds a.mu.
func (a *acquisition) watchLocked() {
	for p := range a.all() {
		if !a.s.holdWatches.Watch(p.Key(), &p.Part) {
			a.endHoldLocked(lost)
			return
		}
	}
}

// unwatchLocked is for a hold that has ended, or gets another key. The caller holds a.mu.
func (a *acquisition) unwatchLocked() {
	for p := range a.all() {
		a.s.holdWatches.Unwatch(p.Key())
	}
}

// startContentionLocked looks for waiters behind the hold: those of the session in its list, other sessions' in etcd. The
// goroutines, one for each part, are the session's; they end with the hold, or the first waiter. The caller holds a.mu.
func (a *acquisition) startContentionLocked() {
	if a.state != held {
		return
	}
	c := a.holdCtx
	for p := range a.all() {
		p.WhenContended(c.contend)
		a.s.lease.Go(func(context.Context) {
			ctx, stop := etcd.Bind(c.ctx, c.contended)
			defer stop()
			excluded := func(kind keyspace.Kind) bool {
				a.mu.Lock() // for the kind, which Downgrade changes
				defer a.mu.Unlock()
				return kind != keyspace.Foreign && queue.Blocks(p.Kind, kind)
			}
			if a.s.holdWatches.AwaitWaiter(ctx, p.List().Name, a.rev, excluded) {
				c.contend()
			}
		})
	}
}

// markAllLost ends the holds whose entries were not in etcd.
func markAllLost(parts []*waitlist.Part) {
	for _, p := range parts {
		a := acquisitionOf(p)
		a.mu.Lock()
		a.markLostLocked()
		a.unlockAndNotify()
	}
}

// sessionEnded ends the holds of a session that has ended, since their owners may not look for long: see notifyEnded.
func (s *Session) sessionEnded(reason string, unrenewed error) {
	var holds []*acquisition
	for _, p := range s.parts() {
		a := acquisitionOf(p)
		a.mu.Lock()
		// Somebody may have noticed the end of the session before, or that the key is not there.
		if p == &a.parts()[0].Part && (a.state == held || a.lostWithSession || a.askingLease) {
			holds = append(holds, a)
		}
		a.mu.Unlock()
	}
	slices.SortFunc(holds, func(a, b *acquisition) int { return cmp.Compare(a.rev, b.rev) })
	s.notifyEnded(reason, unrenewed, holds)
	for _, a := range holds {
		a.mu.Lock()
		a.checkSessionLocked()
		a.unlockAndNotify()
	}
}

// unlockAndNotify unlocks a.mu, and tells of the loss that was found under it. All code that may find a loss unlocks in this way.
func (a *acquisition) unlockAndNotify() {
	unreported, cause, listed := a.lossUnreported, a.causeLocked(), a.lostWithSession
	a.lossUnreported = false
	a.mu.Unlock()
	if unreported {
		a.notifyOver(time.Now(), cause, listed)
	}
}
