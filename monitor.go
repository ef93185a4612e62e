package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// How a hold ends, and how it hears that it was ended by others.

// endLocked ends a hold; the caller holds e.mu, and lets go with unlockAndTell.
// ctx ends with it.
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

// causeLocked is why the entry is not held anymore, nil before; the caller holds
// e.mu.
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

// refreshLocked ends a hold whose session has ended.
func (e *entry) checkSessionLocked() {
	if e.state != held {
		return
	}
	if e.s.Err() != nil {
		e.endHoldLocked(lost)
	}
}

// gone ends the hold since its entry is not in etcd anymore under key, and returns
// the hold's error: nil if Downgrade has given the entry another key meanwhile.
func (e *entry) markLost(key string) error {
	e.mu.Lock()
	defer e.unlockAndNotify()
	if key == e.key {
		e.markLostLocked()
	}
	return e.causeLocked()
}

// goneLocked makes the hold invalid at once. Its ctx ends when the session has
// asked after the lease, within confirmTime: the cause is to say whether it
// was the lease that took the entry. What is left of the entry is removed.
func (e *entry) markLostLocked() {
	if !e.transition(lost) {
		return
	}
	ok := e.s.background(func(ctx context.Context) {
		e.s.confirmLease(e.s.ctx)
		e.mu.Lock()
		e.finishHoldLocked()
		e.unlockAndNotify()
		e.discard(ctx)
	})
	if !ok {
		e.finishHoldLocked()
	}
}

// confirmTime bounds what asking after the lease may add to the news that an
// entry is gone.
const confirmTimeout = 250 * time.Millisecond

// confirm asks etcd after the lease, since an entry of the session is gone, and
// ends the session if the lease is what took it. It gives up when ctx ends.
//
// To renew the lease would not tell: where the revocation came to its followers
// first, the leader goes on renewing until it has carried it out itself
// (FastLeaseKeepAlive in etcd 3.7). It catches up before it tells a time to live.
func (s *Session) confirmLease(ctx context.Context) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, start.Add(confirmTimeout))
	defer cancel()
	select {
	case s.confirmTurn <- struct{}{}:
		defer func() { <-s.confirmTurn }()
	case <-ctx.Done():
		return
	}
	if s.confirmedAt.After(start) || s.ctx.Err() != nil {
		return
	}
	asked := time.Now()
	lease, err := s.client.TimeToLive(ctx, s.id)
	switch {
	case err != nil:
		// Nothing is known. The next renewal tells, and the deadline stands.
	case lease.GrantedTTL == 0:
		s.terminate(ErrSessionExpired, "lease not found")
		s.endLease()
	default:
		s.confirmedAt = asked
	}
}

// here returns errGone unless the entry is in etcd under key, at revision at or,
// with 0, at present.
func (e *entry) exists(ctx context.Context, key string, at int64) error {
	got, _, err := e.s.get(ctx, at, readKey(key))
	if err == nil && !slices.Contains(toQueue(got[0].Kvs), queued{key, e.rev}) {
		err = errEntryGone
	}
	return err
}

// guardLocked starts to watch over the hold, to end its ctx when it is lost. The
// goroutine is the session's; it ends with the hold.
func (e *entry) startMonitorLocked() {
	if !e.s.background(func(context.Context) { e.monitor() }) {
		e.endHoldLocked(lost)
	}
}

func (e *entry) monitor() {
	ctx, stop := e.s.bind(e.holdCtx.ctx)
	defer stop()
	trouble := outage{e: e}
	defer trouble.stop(false)
	for delay := retryMin; ; {
		e.mu.Lock()
		e.checkSessionLocked() // has the session ended?
		key, over := e.key, e.state != held
		keyCtx, rewatch := context.WithCancel(ctx)
		e.holdCtx.rewatch = rewatch
		e.unlockAndNotify()
		if over {
			rewatch()
			return
		}
		start := time.Now()
		err := e.watchEntry(keyCtx, key, &trouble)
		switch {
		case errors.Is(err, errEntryGone):
			_ = e.markLost(key) // seen next
		default:
			if err != nil {
				trouble.start(keyCtx, err)
			}
			if time.Since(start) > retryMax {
				delay = retryMin // it went well for a while
			}
			_ = sleep(keyCtx, delay/2+rand.N(delay)) // not long if keyCtx has ended
			delay = min(2*delay, retryMax)
		}
		rewatch()
	}
}

// watchOver watches the entry until ctx ends or the watch does. errGone: the entry
// is not there anymore.
func (e *entry) watchEntry(ctx context.Context, key string, trouble *outage) error {
	own, err := e.s.openWatch(ctx, key, "")
	if err != nil {
		// No watch is to be had: ask. If etcd does not answer either, the
		// deadline stands.
		trouble.start(ctx, err)
		return e.exists(ctx, key, 0)
	}
	defer own.close()
	// Where the member that watches has not come to the entry's own revision yet,
	// nothing can have been missed, and its queue would show no entry (I3).
	if own.at > e.rev {
		if err := e.exists(ctx, key, own.at); err != nil {
			return err
		}
	}
	trouble.stop(true)
	// A watch on a member that hangs is silent: now and then, ask.
	recheck := time.NewTimer(e.s.recheckInterval())
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done(): // Unlock, loss, Downgrade, or the session's end
			return nil
		case <-recheck.C:
			if err := e.exists(ctx, key, 0); errors.Is(err, errEntryGone) {
				return err
			}
			recheck.Reset(e.s.recheckInterval())
		case wr, ok := <-own.ch:
			if deleted(&wr, key, e.rev) {
				return errEntryGone
			}
			if err := broken(&wr, ok); err != nil {
				return err
			}
		}
	}
}
