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
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	watched bool // somebody wants to be told of the hold's end

	contended context.Context // ends when somebody waits for the hold; nil until asked for
	contend   context.CancelFunc
}

// holdContextLocked is what tells of the hold's end, made when somebody first asks. The caller holds e.mu.
func (e *entry) holdContextLocked() *holdContext {
	if e.holdCtx == nil {
		e.holdCtx = &holdContext{}
		e.holdCtx.ctx, e.holdCtx.cancel = context.WithCancelCause(loan.Ending(context.Background(), e))
		e.checkSessionLocked()
		if e.state != held && !e.confirming {
			e.holdCtx.cancel(e.causeLocked())
		}
	}
	return e.holdCtx
}

// untilOver is a ctx that ends with the hold, for requests about it: a member may hang, and the caller's ctx never
// end.
func (e *entry) untilOver() (life context.Context, stop func()) {
	e.mu.Lock()
	c := e.holdContextLocked()
	e.unlockAndNotify()
	return etcd.Bind(c.ctx, e.s.lease.Ctx)
}

// endHoldLocked ends a hold. The caller holds e.mu, and lets go with unlockAndNotify.
func (e *entry) endHoldLocked(to state) {
	if e.transition(to) {
		e.finishHoldLocked()
	}
}

// finishHoldLocked does what follows the end of a hold: its Context ends, and its watch. The caller holds e.mu.
func (e *entry) finishHoldLocked() {
	e.confirming, e.lostWithSession = false, e.state == lost && e.s.Err() != nil
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

// markLost ends the hold since its entry was not in etcd under key at revision at, and returns the hold's error: nil
// if Downgrade has given the entry another key meanwhile.
func (e *entry) markLost(key string, at int64) error {
	e.mu.Lock()
	defer e.unlockAndNotify()
	if key == e.key || e.first != nil {
		e.markLostLocked(at)
	}
	return e.causeLocked()
}

// markLostLocked makes the hold invalid at once. Its ctx ends when the session has asked after the lease, within
// confirmTimeout: the cause is to say whether it was the lease that took the entry. What is left of the entry is
// removed. The caller holds e.mu.
func (e *entry) markLostLocked(at int64) {
	if e.state != held || !e.transition(lost) {
		return
	}
	for p := range e.all() {
		if p.own != nil {
			p.own.Lost(at)
		}
	}
	e.confirming = e.s.lease.Go(func(context.Context) {
		e.s.lease.Confirm(e.s.lease.Ctx)
		e.mu.Lock()
		e.finishHoldLocked()
		e.unlockAndNotify()
		e.discard(nil, false)
	})
	if !e.confirming {
		e.finishHoldLocked()
	}
}

// exists returns wait.ErrGone unless the entry is in etcd under these keys, at revision at or, with 0, at present.
// seen is the revision at which that is so.
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
			return seen, wait.ErrGone
		}
	}
	return seen, nil
}

// watchesOf are the watches of a session's holds.
func watchesOf(s *Session) *holdwatch.Watches[*entry] {
	return holdwatch.New(holdwatch.Config[*entry]{
		Etcd: s.etcd, Ctx: s.lease.Ctx, Go: s.lease.Go, Outages: &s.lease.Outages, Opened: s.probes.Attend,
		Rev:     func(e *entry) int64 { return e.rev },
		Deleted: func(e *entry, key string, at int64) { _ = e.whole().markLost(key, at) },
		Verify: func(ctx context.Context, holds []*entry, at int64) error {
			if len(holds) > etcd.Batch { // a watch is open anew
				return s.checkEntries(ctx)
			}
			return s.verify(ctx, inQueue(holds), at)
		},
		Ended: func(e *entry) {
			w := e.whole()
			w.mu.Lock()
			w.endHoldLocked(lost)
			w.unlockAndNotify()
		},
	})
}

// watchLocked has the hold looked after, each part of a Multi by itself. The caller holds e.mu.
func (e *entry) watchLocked() {
	for p := range e.all() {
		if !e.s.holdWatches.Watch(p.key, p) {
			e.endHoldLocked(lost)
			return
		}
	}
}

// unwatchLocked is for a hold that has ended, or gets another key. The caller holds e.mu.
func (e *entry) unwatchLocked() {
	for p := range e.all() {
		e.s.holdWatches.Unwatch(p.key)
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
// e.mu.
func (e *entry) startContentionLocked() {
	if e.state != held {
		return
	}
	c := e.holdCtx
	for p := range e.all() {
		if p.own == nil {
			p.makeListLocked()
		}
		p.own.WhenContended(c.contend)
		e.s.lease.Go(func(context.Context) {
			ctx, stop := etcd.Bind(c.ctx, c.contended)
			defer stop()
			if e.s.holdWatches.AwaitWaiter(ctx, p.name, p.rev, p.excludes) {
				c.contend()
			}
		})
	}
}

// excludes reports whether the entry, or part of one, excludes others of that kind: a writer excludes all, and a
// reader writers. Downgrade makes a writer a reader.
func (e *entry) excludes(kind keyspace.Kind) bool {
	w := e.whole()
	w.mu.Lock()
	defer w.mu.Unlock()
	return kind != keyspace.Foreign && queue.Blocks(e.mode.kind(), kind)
}

// markAllLost ends the holds of entries that were not in etcd at revision at.
func markAllLost(gone []*waitlist.Entry, at int64) {
	for _, g := range gone {
		e := g.Owner.(*entry).whole()
		e.mu.Lock()
		e.markLostLocked(at)
		e.unlockAndNotify()
	}
}
