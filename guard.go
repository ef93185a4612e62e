package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a hold ends, and how it hears that it was ended by others.

// endLocked ends a hold; the caller holds e.mu. ctx ends with it.
func (e *entry) endLocked(to state, cause error) {
	if e.becomeLocked(to, cause) {
		e.finishLocked()
	}
}

func (e *entry) finishLocked() {
	if e.end != nil {
		e.end(e.cause)
	}
	e.closeOwnLocked()
	if e.state == lost {
		e.s.log.Warn("lock lost", "lock", e.name, "key", e.key.key, "token", e.rev, "cause", e.cause)
	}
}

func (e *entry) closeOwnLocked() {
	e.own.close()
	e.own = nil
}

func (e *entry) closeOwn() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeOwnLocked()
}

// refreshLocked brings the state of a hold up to what is known here: that the
// session has ended, or that the watch from the waiting, which nobody reads
// while there is no guard, has told of the entry's deletion.
func (e *entry) refreshLocked() {
	if e.state != held {
		return
	}
	if cause := e.s.Err(); cause != nil {
		e.endLocked(lost, lossOf(cause))
		return
	}
	if e.own == nil || e.ctx != nil {
		return
	}
	select {
	case wr, ok := <-e.own.ch:
		if deleted(wr, e.key.key, e.rev) {
			e.goneLocked()
		} else if broken(wr, ok) != nil {
			e.closeOwnLocked()
		}
	default:
	}
}

// gone ends the hold since its entry is not in etcd anymore, and returns the
// hold's error.
func (e *entry) gone() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.goneLocked()
	return e.cause
}

// goneLocked makes the hold invalid at once. Its ctx ends when the session has
// asked after the lease, within confirmTime: the cause is to say whether it
// was the lease that took the entry. What is left of the entry is removed.
func (e *entry) goneLocked() {
	if !e.becomeLocked(lost, ErrLost) {
		return
	}
	ok := e.s.background(func(ctx context.Context) {
		e.s.confirm()
		e.mu.Lock()
		e.cause = lossOf(e.s.Err())
		e.finishLocked()
		e.mu.Unlock()
		e.discard(ctx)
	})
	if !ok {
		e.cause = lossOf(e.s.Err())
		e.finishLocked()
	}
}

// present reports whether the entry is in etcd, at revision at or now.
func (e *entry) present(ctx context.Context, key string, at int64) (bool, error) {
	resp, _, err := e.s.get(ctx, at, key, clientv3.WithKeysOnly())
	if err != nil {
		return false, err
	}
	return slices.Contains(toQueue(resp.Kvs), queued{key, e.rev}), nil
}

// guardLocked starts to watch over the hold, to end its ctx when it is lost. The
// goroutine is the session's; it ends with the hold.
func (e *entry) guardLocked() {
	if !e.s.background(func(context.Context) { e.guard() }) {
		e.endLocked(lost, lossOf(e.s.Err()))
	}
}

func (e *entry) guard() {
	ctx, stop := e.s.bind(e.ctx)
	defer stop()
	for delay := retryMin; ; {
		e.mu.Lock()
		e.refreshLocked() // has the session ended?
		over := e.state != held
		e.mu.Unlock()
		if over {
			return
		}
		own, key, err := e.guardWatch(ctx)
		if err != nil && !errors.Is(err, errGone) {
			// No watch is to be had: ask. If etcd does not answer either, the
			// deadline stands.
			if there, perr := e.present(ctx, key, 0); perr == nil && !there {
				err = errGone
			}
		}
		if errors.Is(err, errGone) {
			e.mu.Lock()
			if key == e.key.key { // else downgraded meanwhile
				e.goneLocked()
			}
			e.mu.Unlock()
			continue
		}
		if err != nil {
			_ = pause(ctx, delay/2+rand.N(delay))
			delay = min(2*delay, retryMax)
			continue
		}
		delay = retryMin
		// A watch on a member that hangs is silent: now and then, ask.
		recheck := time.NewTimer(e.s.ttl*3/8 + rand.N(e.s.ttl/4))
		select {
		case <-ctx.Done(): // Unlock, loss, or the session's end
		case <-recheck.C:
			if there, err := e.present(ctx, key, 0); err == nil && !there {
				e.mu.Lock()
				if key == e.key.key { // else downgraded meanwhile
					e.goneLocked()
				}
				e.mu.Unlock()
			}
		case wr, ok := <-own.ch:
			e.mu.Lock()
			switch {
			case key != e.key.key: // downgraded meanwhile: watch the other key
			case deleted(wr, key, e.rev):
				e.goneLocked()
			case broken(wr, ok) != nil:
				e.closeOwnLocked()
			}
			e.mu.Unlock()
		}
		recheck.Stop()
	}
}

// guardWatch returns the watch on the entry, opened if there is none, and sure
// to have begun while the entry was there; errGone if it was not.
func (e *entry) guardWatch(ctx context.Context) (own *watch, key string, err error) {
	e.mu.Lock()
	own, key, unseen := e.own, e.key.key, e.unseen
	e.mu.Unlock()
	opened := own == nil
	if opened {
		if own, err = e.s.openWatch(ctx, key, ""); err != nil {
			return nil, key, err
		}
	}
	// Where the member that watches has not come to the entry's own revision yet,
	// nothing can have been missed, and its queue would show no entry (I3).
	if (opened || unseen) && own.at > e.rev {
		there, err := e.present(ctx, key, own.at)
		if err == nil && !there {
			err = errGone
		}
		if err != nil {
			if opened {
				own.close()
			}
			return nil, key, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unseen = false
	if e.state == held && key == e.key.key {
		e.own = own
	} else if opened {
		own.close()
	}
	return own, key, nil
}
