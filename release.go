// How acquisitions are taken out of the queue. Unlock is beginRelease, which ends the hold in this process, hands the lock over and
// offers the removal of its keys, and then finishRelease, which sends the removal if no other request has taken it along, and
// waits for etcd. abandon is the same for an acquisition that was never granted. After both, freeKeys frees the keys.

package etcdlock

import (
	"context"
	"runtime"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/loan"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// maxLooked is how many entries a request that removes one looks for, in total over all parts of a Multi. With the 32
// keys of a Multi that makes about half of the 128 operations that etcd allows in a txn.
const maxLooked = 32

// offerRemoval offers the removal of the keys: the next request of the name may take it along. next are the entries of the session
// behind it. now: send the request at once, and do not wait for a request of this name that is under way, since another session may
// be waiting for this removal, or a caller is.
func (a *acquisition) offerRemoval(next []queue.Entry, now bool) *removal.Leaving {
	return a.s.removals.Add(a.parts()[0].Name, &removal.Leaving{Keys: a.allKeys(), Rev: a.rev, Next: next, Now: now, Crowd: a.state == abandoned, Owner: (*leaver)(a)})
}

// A leaver is an acquisition that is told what becomes of its removal.
type leaver acquisition

func (l *leaver) Refused(error) {
	for p := range (*acquisition)(l).all() {
		p.Stuck()
	}
}

// Removed takes note that nothing of the acquisition is in etcd: see waitlist.Part.Removed. If an earlier attempt has no
// reply, nobody can tell whether the session or somebody else removed the entry.
func (l *leaver) Removed(r removal.Result) {
	a := (*acquisition)(l)
	a.mu.Lock()
	var gone []*waitlist.Part
	i := 0
	for p := range a.all() {
		gone = append(gone, p.Removed(r.At, r.Removed[i] && !r.Ambiguous, r.Sought, r.There)...)
		i += len(p.Keys())
	}
	a.mu.Unlock()
	markAllLost(gone)
	a.freeKeys()
}

// finishRelease removes the keys of a hold that was released in this process.
func (h *Held) finishRelease(ctx context.Context, l *removal.Leaving) error {
	r, err := h.s.removals.Remove(ctx, l)
	err = h.s.lease.Translate(err)
	switch cause := h.s.Err(); {
	case err == nil && !r.Found(len(h.parts()) > 1):
		return ErrLost
	case err != nil && cause != nil && !etcd.IsCtxError(err):
		return lossOf(cause)
	}
	return err
}

// abandon gives up an acquisition that its caller did not get: whatever of it is in the queue, or comes there late, is
// removed in the background: at once if another session may be next behind it, or now is true. done is that of discard.
func (a *acquisition) abandon(cause error, now bool) (done <-chan struct{}) {
	at := time.Now() // before it is handed over
	a.mu.Lock()
	a.transition(abandoned)
	next := a.leaveAndHandOverLocked()
	now = now || a.awaitedLocked()
	done = a.discard(next, now)
	a.mu.Unlock()
	a.notifyAbandoned(at, cause)
	return done
}

// leaveToAdopt is abandon for an entry that has the lock, and that Adopt could not take over: the entry stays, for the next Adopt.
func (a *acquisition) leaveToAdopt(from *settle.Adopted, cause error) error {
	a.mu.Lock()
	a.transition(abandoned)
	for p := range a.all() {
		p.Forget()
	}
	a.mu.Unlock()
	a.s.keys.Unclaim(from)
	a.notifyAbandoned(time.Now(), cause)
	return cause
}

// discard removes the keys in the background, and settles them. done is closed when etcd has confirmed that. If the
// revision was never known, done is nil, and the search for a late write goes on. now is that of offerRemoval.
func (a *acquisition) discard(next []queue.Entry, now bool) (done <-chan struct{}) {
	if a.rev != 0 {
		return a.s.removals.RemoveLater(a.offerRemoval(next, now))
	}
	a.freeKeys()
	return nil
}

// awaitRemoved waits for done, if that is not nil, or for the lease to be gone. It returns false if ctx ends first.
func (s *Session) awaitRemoved(ctx context.Context, done <-chan struct{}) bool {
	if done != nil {
		select {
		case <-done:
		case <-s.lease.Gone.Done():
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// freeKeys frees the keys of the acquisition, once nothing of it is left or to come.
func (a *acquisition) freeKeys() {
	if a.ambiguous {
		a.s.keys.Settle(a.allKeys()...)
	} else {
		a.s.keys.Free(a.allKeys()...)
	}
}

// leaveAndHandOverLocked says that the keys must be removed, which may hand the lock over. next are the entries that the
// request looks for. Without a fence the next own entries have the lock when it returns. The caller holds a.mu.
//
// With a fence those behind wait until etcd has removed the keys: a transaction of the holder may still be carried out, the
// outcome of a write of the keys is unknown, or Orphan was called.
//
// A Multi that did not get all of its locks hands none of them over: it may be given up because it has lost a part that it had.
func (a *acquisition) leaveAndHandOverLocked() (next []queue.Entry) {
	fence := a.state == released && (a.fenced || a.ambiguous) || a.state == abandoned && len(a.parts()) > 1 || a.s.removals.Drains.Load()
	for p := range a.all() {
		next = append(next, p.Leave(fence)...)
	}
	return next[:min(len(next), maxLooked)]
}

// awaitedLocked reports whether another session may have the lock as soon as the keys are removed. It can't if another entry of
// the session has the lock alone now: everybody else waits for that entry. The caller holds a.mu.
func (a *acquisition) awaitedLocked() bool {
	return len(a.parts()) > 1 || !a.parts()[0].OwnWriterHolds()
}

// Unlock releases the lock. It blocks until etcd has confirmed that, one request and one commit, or refuses it, or ctx ends. After
// an error of etcd or of ctx the release goes on in the background, until etcd has confirmed it or the lease is gone. With a ctx that
// has ended Unlock returns at once. Where the lock goes from one goroutine of the session to the next faster than etcd commits, the
// releases share requests with each other and with the next Lock, and a release may wait for a commit more.
//
// From the first call on the lock is not Valid. A further call returns ErrNotHeld. If the hold was lost before, Unlock returns
// ErrLost: somebody else may have been in the section. If the session ends before etcd has answered, Unlock returns ErrLost too, with
// ErrSessionExpired, although nobody else had the lock up to the session's deadline. If a reply was lost and the entry is not there,
// nobody can tell who removed it, and Unlock returns nil. There is one exception: if a proxy passes the release on and answers
// Canceled or DeadlineExceeded, clientv3 itself repeats the release unseen, and Unlock returns ErrLost even if nobody else has
// removed the entry. ctx may be the hold's own, or made of it: the ctx that Do was called with, or ctx's deadline, ends Unlock then.
func (h *Held) Unlock(ctx context.Context) error {
	return h.wrap("unlock", h.unlock(ctx))
}

func (h *Held) unlock(ctx context.Context) error {
	at, outer := time.Now(), loan.EndsWith(ctx, &h.acquisition) // before it is handed over, and ctx ends
	l, err := h.beginRelease()
	if err != nil {
		return err
	}
	ctx, cancel := etcd.Outlive(ctx, outer, ErrNotHeld)
	defer cancel()
	err = h.finishRelease(ctx, l)
	h.notifyOver(at, err, false)
	return err
}

// Release is Unlock that does not wait for etcd: it starts the release, which goes on in the background until etcd
// has confirmed it or the lease is gone, and returns at once. It is for `defer`, and for speed: the caller saves a
// round trip, and a commit where the session takes the lock again at once. Unlike Unlock it can't report that the hold was
// lost before: ask Context, Err or Txn. On a hold that was released or lost it does nothing.
func (h *Held) Release() { h.release() }

// release is Release. done is closed when etcd has confirmed the removal; it is nil if the lock was not held.
func (h *Held) release() (done <-chan struct{}) {
	at := time.Now() // before it is handed over
	if l, err := h.beginRelease(); err == nil {
		done = h.s.removals.RemoveLater(l)
		h.notifyOver(at, nil, false)
	}
	return done
}

// beginRelease ends the hold in this process, before anybody else can have the lock. After it returns, another entry of this
// session may hold the lock already. It returns why the lock is not held, if so, or what must be removed.
//
// The goroutines of those that were let in run first. Measured with 16 goroutines on two cores: the lock goes from
// one to the next in 12 to 20 us instead of 37; and the request that removes the entry removes theirs too.
func (h *Held) beginRelease() (*removal.Leaving, error) {
	h.mu.Lock()
	if h.checkSessionLocked(); h.state != held {
		defer h.unlockAndNotify()
		return nil, h.causeLocked()
	}
	h.endHoldLocked(released)
	next := h.leaveAndHandOverLocked()
	now := h.awaitedLocked() // after the hand-over: an own writer may hold now
	l := h.offerRemoval(next, now)
	h.unlockAndNotify()
	if len(next) > 0 {
		runtime.Gosched()
	}
	return l, nil
}
