package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// How a hold ends, and how it hears that others have ended it.

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	watched bool               // the entry is
	rewatch context.CancelFunc // makes the monitor watch key anew

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

// exists returns errEntryGone unless the entry is in etcd under these keys, at revision at or, with 0, at
// present. seen is the revision at which that is so.
func (e *entry) exists(ctx, life context.Context, at int64, keys ...string) (seen int64, err error) {
	reads := make([]etcd.Read, 0, len(keys))
	for _, key := range keys {
		reads = append(reads, etcd.ReadKey(key))
	}
	got, seen, err := e.s.read(ctx, life, at, reads...)
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

// startMonitorLocked starts to watch over the hold, to end its ctx when it is lost. The goroutine, one for
// each part, is the session's; it ends with the hold. The caller holds e.mu.
func (e *entry) startMonitorLocked() {
	for p := range e.all() {
		if !e.s.background(func(context.Context) { e.monitor(p) }) {
			e.endHoldLocked(lost)
			return
		}
	}
}

func (e *entry) monitor(part *entry) {
	ctx, stop := etcd.Bind(e.holdCtx.ctx, e.s.ctx)
	defer stop()
	outage := outage{e: e}
	defer outage.stop(false)
	for retry := (etcd.Backoff{}); ; {
		e.mu.Lock()
		e.checkSessionLocked()
		key, over := part.key, e.state != held
		keyCtx, rewatch := context.WithCancel(ctx)
		e.holdCtx.rewatch = rewatch
		e.unlockAndNotify()
		if over {
			rewatch()
			return
		}
		start := time.Now()
		at, err := e.watchEntry(keyCtx, key, &outage)
		switch {
		case errors.Is(err, errEntryGone):
			_ = e.markLost(key, at) // seen next
		default:
			if err != nil {
				outage.start(keyCtx, err)
			}
			if time.Since(start) > etcd.RetryMax {
				retry.Reset() // it went well for a while
			}
			_ = retry.Wait(keyCtx) // not long if keyCtx has ended
		}
		rewatch()
	}
}

// watchEntry watches the entry until ctx ends or the watch does. It returns errEntryGone if the entry
// was not there anymore at revision at.
func (e *entry) watchEntry(ctx context.Context, key string, outage *outage) (at int64, err error) {
	own, err := e.openHoldWatch(ctx, key, "", clientv3.WithFilterPut())
	if err != nil {
		// No watch can be had: ask. If etcd does not answer either, the deadline stands.
		outage.start(ctx, err)
		return e.exists(ctx, e.s.leaseCtx, 0, key)
	}
	defer own.Close()
	// If the member that watches has not come to the entry's own revision yet, nothing can have been
	// missed, and its queue would show no entry (I3).
	if own.At > e.rev {
		if at, err := e.exists(ctx, e.s.leaseCtx, own.At, key); err != nil {
			return at, err
		}
	}
	outage.stop(true)
	for {
		select {
		case <-ctx.Done(): // Unlock, loss, Downgrade, or the session's end
			return 0, nil
		case wr, ok := <-own.C:
			own.Heard()
			if etcd.Deleted(&wr, key, e.rev) {
				return etcd.Latest(&wr), errEntryGone
			}
			if err := etcd.Broken(&wr, ok); err != nil {
				return 0, err
			}
		}
	}
}

// holdWatches is how many watches of holds a session opens at a time. The client opens the watches of a
// stream one after another: thousands at once would have each other, and those of waits, run out of
// time.
const holdWatches = 4

func (e *entry) openHoldWatch(ctx context.Context, key, end string, opts ...clientv3.OpOption) (*etcd.Watch, error) {
	select {
	case e.s.holdWatch <- struct{}{}:
		defer func() { <-e.s.holdWatch }()
		w, err := e.s.etcd.OpenWatch(ctx, e.s.ctx, key, end, opts...)
		if err == nil {
			e.s.attend()
		}
		return w, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
