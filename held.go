// A lock that is held, and its methods.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// A Held is a lock that is held: one acquisition, from its grant to its Unlock or its loss. It is safe for concurrent
// use. It is not reused: the next acquisition gives another Held.
//
// No lock service can stop a process that was paused from going on as if it held its lock. So a hold
// has a Token, for stores that compare numbers, and Txn, for what is kept in etcd itself.
type Held struct{ acquisition }

// Context ends when the hold does: at Unlock, at its loss and at the session's deadline, whichever comes first. Its
// cause is what Err returns then. It has none of the values of the ctx that Lock was called with: these, such as a span or a
// logger, are the call's, and the hold may outlive the call. The ctx that [Mutex.Do] gives has the values.
//
// The first use of Context, Done or Do starts to watch the entry in etcd. From then on a hold whose entry was removed by
// somebody else ends within an instant, and not only when it is used or the session asks. The first use costs a watch and at
// most one read, for each name of a [Multi]; holds of many names in one directory, such as "jobs" of "jobs/7", share a watch.
func (h *Held) Context() context.Context {
	h.mu.Lock()
	defer h.unlockAndNotify()
	c := h.holdContextLocked()
	if !c.watched && h.state == held {
		h.watchLocked()
	}
	c.watched = true
	return c.ctx
}

// Done is Context().Done().
func (h *Held) Done() <-chan struct{} { return h.Context().Done() }

// Err is nil while the lock is held, ErrNotHeld after Unlock, and ErrLost after a loss, with ErrSessionExpired or
// ErrSessionClosed if that is why. It makes no request; see Check.
func (h *Held) Err() error {
	h.mu.Lock()
	defer h.unlockAndNotify()
	h.checkSessionLocked()
	return h.causeLocked()
}

// Valid reports whether the lock can be vouched for at this moment, from what is known locally: it is not unlocked,
// not lost, and the deadline has not passed, by the monotonic clock and by the wall clock. After a process was paused
// Valid is right at once, when Done may still need a moment.
func (h *Held) Valid() bool { return h.Err() == nil && h.s.lease.Valid() }

// Deadline is the session's: the time up to which the lock can be vouched for without hearing of etcd again.
func (h *Held) Deadline() time.Time { return h.s.Deadline() }

// Check asks etcd, with one linearizable read, whether the entry is still there: nil if it was at some moment during the call. It
// blocks until etcd has answered, or ctx or the hold ends. After an error of ctx nothing is known, and the hold stays as it was.
func (h *Held) Check(ctx context.Context) error {
	if err := h.Err(); err != nil {
		return h.wrap("check", err)
	}
	for {
		keys := h.Keys()
		life, stop := h.untilOver()
		err := h.checkKeys(ctx, life, keys...)
		stop()
		if errors.Is(err, waitlist.ErrRemoved) {
			if err = h.markLost(keys[0]); err == nil {
				continue // downgraded meanwhile
			}
		}
		return h.wrap("check", h.preferLoss(err))
	}
}

// preferLoss is the error of a request about the hold, err or nil. That the hold has ended meanwhile comes first.
func (h *Held) preferLoss(err error) error {
	if err == nil {
		return nil
	}
	return cmp.Or(h.Err(), err)
}

// Token is the entry's create revision. It grows with every acquisition of the name, so a store that refuses tokens
// lower than the highest it has seen can't be written by a former holder (a "fencing token").
func (h *Held) Token() int64 { return h.rev }

// Key is the entry's key in etcd; of a [Multi], that of the first name. A comparison that is built from Key and Token
// is unknown to the package, which may hand the lock over before etcd has removed the key: use IsOwner.
func (h *Held) Key() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.parts()[0].Key()
}

// Keys are the keys in etcd that the hold is known by: one for each name of a [Multi], in the order of the names, and
// otherwise Key alone. As with Key, a comparison that is built from Keys is unknown to the package.
func (h *Held) Keys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return ofEach(&h.acquisition, func(p *part) string { return p.Key() })
}

// Session is the session that holds the lock.
func (h *Held) Session() *Session { return h.s }

// IsOwner is a comparison that is true in a transaction exactly while the lock is held; see Txn, which adds it and tells its
// failure from others. Downgrade ends it: make another one then. When the hold has ended, IsOwner is a comparison that is never
// true. IsOwner compares one key, so of a [Multi] it says only whether the first name is held: Txn compares all keys.
//
// A transaction that neither writes nor reads linearizably, such as one of comparisons alone, is answered by any member of
// etcd from what it has, which may be of the past. If the transaction must tell of the present, give it an operation, for
// example an OpGet. Txn needs none.
func (h *Held) IsOwner() clientv3.Cmp {
	h.mu.Lock()
	defer h.unlockAndNotify()
	if h.checkSessionLocked(); h.state != held {
		// The next one of the session may be in, and the key still there. No key has the create revision -1, so this is never
		// true. It names the same key, so etcd asks for the same rights.
		return removal.CreatedAt(h.parts()[0].Key(), -1)
	}
	h.fenced = true
	return removal.CreatedAt(h.parts()[0].Key(), h.rev)
}

// Contended is closed when somebody waits for what the hold excludes, and stays closed, also if the waiter is gone
// again. So a holder that needs a lock again and again may keep the lock, without a request, and release it when somebody
// wants it. Nobody is passed: the waiter is next in the queue.
//
// A reader does not contend with a read hold, nor a Try, which does not wait, with any hold; a [Multi] is contended in any of
// its names. Contended tells nothing of a hold that has ended: wait for Done too.
//
// The first use opens a watch on the queue, with a goroutine, and makes at most one read; for a Multi, for each of
// its names. Waiters of the same session are seen without a request. The news takes about as long as the news of a loss, and
// while etcd is away until it is back.
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
