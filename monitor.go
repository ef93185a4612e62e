// What happens to a hold from outside: its end, as its watch or the session's checks tell it,
// and that somebody waits for it.

package etcdlock

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/holdwatch"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/loan"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	watched bool // somebody wants to be told of the hold's end

	downgrade *settle.Outcome // nil before

	contended context.Context // ends when somebody waits for the hold; nil until asked for
	contend   context.CancelFunc
}

// holdContextLocked is what tells of the hold's end, made when somebody first asks. The caller holds a.mu.
func (a *acquisition) holdContextLocked() *holdContext {
	if a.holdCtx == nil {
		a.holdCtx = &holdContext{}
		a.holdCtx.ctx, a.holdCtx.cancel = context.WithCancelCause(loan.Ending(context.Background(), a))
		a.checkSessionLocked()
		if a.state != held && !a.confirming {
			a.holdCtx.cancel(a.causeLocked())
		}
	}
	return a.holdCtx
}

// untilOver is a ctx that ends with the hold, for requests about it: a member may hang, and the caller's ctx never
// end.
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
	a.confirming, a.lostWithSession = false, a.state == lost && a.s.Err() != nil
	if a.holdCtx != nil {
		a.holdCtx.cancel(a.causeLocked())
		a.unwatchLocked()
	}
	a.untrackHoldLocked()
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

// markLost ends the hold since its entry was not in etcd under key at revision at, and returns the hold's error: nil
// if Downgrade has given the hold another key meanwhile.
func (a *acquisition) markLost(key string, at int64) error {
	a.mu.Lock()
	defer a.unlockAndNotify()
	if len(a.parts) > 1 || key == a.parts[0].keys[0] {
		a.markLostLocked(at)
	}
	return a.causeLocked()
}

// markLostLocked makes the hold invalid at once. Its ctx ends when the session has asked after the lease, within
// confirmTimeout: the cause is to say whether it was the lease that took the key. What is left of the acquisition is
// removed. The caller holds a.mu.
func (a *acquisition) markLostLocked(at int64) {
	if a.checkSessionLocked(); a.state != held || !a.transition(lost) {
		return // after the end of the session nothing is removed: after Orphan it may be the successor's
	}
	for p := range a.all() {
		p.own.Lost()
	}
	a.confirming = a.s.lease.Go(func(context.Context) {
		a.s.lease.Confirm(a.s.lease.Ctx)
		a.mu.Lock()
		a.finishHoldLocked()
		a.unlockAndNotify()
		a.discard(nil, false)
	})
	if !a.confirming {
		a.finishHoldLocked()
	}
}

// exists returns wait.ErrGone unless the acquisition is in etcd under these keys, at revision at or, with 0, at present.
// seen is the revision at which that is so.
func (a *acquisition) exists(ctx, life context.Context, at int64, keys ...string) (seen int64, err error) {
	reads := make([]etcd.Read, 0, len(keys))
	for _, key := range keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	got, seen, err := a.s.lease.Read(ctx, life, at, reads...)
	if err != nil {
		return seen, err
	}
	for i, key := range keys {
		if !slices.Contains(queue.Entries(got[i].Kvs), queue.Entry{Key: key, Rev: a.rev}) {
			return seen, wait.ErrGone
		}
	}
	return seen, nil
}

// watchesOf are the watches of a session's holds.
func watchesOf(s *Session) *holdwatch.Watches[*part] {
	return holdwatch.New(holdwatch.Config[*part]{
		Etcd: s.etcd, Ctx: s.lease.Ctx, Go: s.lease.Go, Outages: &s.lease.Outages, Opened: s.probes.Attend,
		Rev:     func(p *part) int64 { return p.of.rev },
		Deleted: func(p *part, key string, at int64) { _ = p.of.markLost(key, at) },
		Verify: func(ctx context.Context, parts []*part, at int64) error {
			if len(parts) > etcd.Batch { // a watch is open anew
				return s.checkEntries(ctx)
			}
			return s.verify(ctx, inQueue(parts), at)
		},
		Ended: func(p *part) {
			p.of.mu.Lock()
			p.of.endHoldLocked(lost)
			p.of.unlockAndNotify()
		},
	})
}

// watchLocked has the hold looked after, each part of a Multi by itself. The caller holds a.mu.
func (a *acquisition) watchLocked() {
	for p := range a.all() {
		if !a.s.holdWatches.Watch(p.keys[0], p) {
			a.endHoldLocked(lost)
			return
		}
	}
}

// unwatchLocked is for a hold that has ended, or gets another key. The caller holds a.mu.
func (a *acquisition) unwatchLocked() {
	for p := range a.all() {
		a.s.holdWatches.Unwatch(p.keys[0])
	}
}

// Contended is closed when somebody waits for what the hold excludes, and stays closed, also if the waiter is gone
// again. So a holder that needs a lock again and again may keep it, at no request at all, and give it up when it is
// wanted. Nobody is passed: the waiter is next in the queue.
//
// A reader does not contend with a read hold, a Try with none since it does not wait; a [Multi] is contended in any
// of its names. Of a hold that has ended nothing is told: wait for Done too.
//
// The first use opens a watch on the queue, with a goroutine, and makes at most one read; for a Multi, for each of
// its names. Waiters of the same session are seen without a request. The news takes about as long as that of a loss,
// and where etcd is away until it is back.
func (h *Held) Contended() <-chan struct{} {
	h.mu.Lock()
	defer h.unlockAndNotify()
	c := h.holdContextLocked()
	if c.contended == nil {
		c.contended, c.contend = context.WithCancel(context.Background())
		h.startContentionLocked()
	}
	return c.contended.Done()
}

// startContentionLocked looks for waiters behind the hold: those of the session in its list, other sessions' in etcd.
// The goroutines, one for each part, are the session's; they end with the hold, or the first waiter. The caller holds
// a.mu.
func (a *acquisition) startContentionLocked() {
	if a.state != held {
		return
	}
	c := a.holdCtx
	for p := range a.all() {
		p.own.WhenContended(c.contend)
		a.s.lease.Go(func(context.Context) {
			ctx, stop := etcd.Bind(c.ctx, c.contended)
			defer stop()
			if a.s.holdWatches.AwaitWaiter(ctx, p.name, a.rev, p.excludes) {
				c.contend()
			}
		})
	}
}

// excludes reports whether the part excludes others of that kind: a writer excludes all, and a
// reader writers. Downgrade makes a writer a reader.
func (p *part) excludes(kind keyspace.Kind) bool {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return kind != keyspace.Foreign && queue.Blocks(p.mode.kind(), kind)
}

// markAllLost ends the holds whose entries were not in etcd at revision at.
func markAllLost(gone []*waitlist.Entry, at int64) {
	for _, g := range gone {
		a := g.Owner.(*part).of
		a.mu.Lock()
		a.markLostLocked(at)
		a.unlockAndNotify()
	}
}
