// How entries are taken out of the queue. Unlock is giveUp, which ends the hold in this process, hands the lock over and
// puts the entry on the list of those to be removed, and then release, which waits for etcd. abandon is the same for an
// entry that was never granted. Behind both, settle frees the keys.

package etcdlock

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
)

// maxLooked is how many entries a request that removes one looks for, behind all parts of a Multi together. With the 32
// keys of a Multi that makes about half of the 128 operations that etcd allows in a txn.
const maxLooked = 32

// leaving puts the entry on the session's list of those to be removed. next are the entries of the session behind it.
// now says that somebody of another session may have the lock then.
func (e *entry) leaving(next []queue.Entry, now bool) *settle.Leaving {
	return e.s.removals.Add(e.name, &settle.Leaving{Keys: e.allKeys(), Rev: e.rev, Next: next, Now: now, Refused: e.stuck, Removed: func(r settle.Removal) {
		e.delist(&r)
		e.settle()
	}})
}

func (e *entry) stuck() {
	for p := range e.all() {
		p.listed().Stuck()
	}
}

// release removes the entry of a hold that was released in this process.
func (h *Held) release(ctx context.Context, l *settle.Leaving) error {
	r, err := h.s.removals.Remove(ctx, h.name, l)
	err = h.s.lease.Translate(err)
	switch cause := h.s.Err(); {
	case err == nil && !r.Found(h.first != nil):
		return ErrLost
	case err != nil && cause != nil && ctx.Err() == nil:
		return lossOf(cause)
	}
	return err
}

// abandon gives up an entry that its owner did not get: whatever of it is in the queue, or comes there late, is
// removed in the background.
func (e *entry) abandon(cause error) {
	at := time.Now() // before it is handed over
	e.mu.Lock()
	ok := e.transition(abandoned)
	var next []queue.Entry
	if ok {
		next = e.leaveLocked()
	}
	e.mu.Unlock()
	switch {
	case !ok:
		return
	case e.rev == 0 && !e.ambiguous:
		e.s.keys.Free(e.allKeys()...) // never written
	default:
		e.discard(next, false)
	}
	e.notifyAbandoned(at, cause)
}

// discard removes the entry in the background, and settles it. done is closed when etcd has confirmed that; of an entry
// that was never known to be in the queue at once, since the session goes on looking for it for a while. now says that
// somebody waits for that: it waits for no other request of the name.
func (e *entry) discard(next []queue.Entry, now bool) (done <-chan struct{}) {
	if e.rev != 0 {
		return e.s.removals.RemoveLater(e.name, e.leaving(next, now))
	}
	e.settle()
	settled := make(chan struct{})
	close(settled)
	return settled
}

// settle frees the entry's keys, once nothing of it is left or to come.
func (e *entry) settle() {
	if e.ambiguous {
		e.s.keys.Settle(e.acquiring.value, e.allKeys()...)
	} else {
		e.s.keys.Free(e.allKeys()...)
	}
}
