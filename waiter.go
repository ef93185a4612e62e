// The wait of an acquisition, from its place in the queue to its grant:
//
//  1. enlist registers each part with the session's waitlist of its name, before the txn is sent. From then on the list keeps the
//     deletions that it hears of until the reply to the txn is read.
//  2. enter notes the revision of the keys, and what the txn showed of each queue before it wrote them. A part that
//     nothing blocks there has its lock.
//  3. wait blocks until the waitlist grants each part. Behind other sessions' entries, internal/wait watches what
//     blocks, and reads the queue anew once the watch is open (I3). Behind entries of the same session alone, the lock
//     is handed over in memory (I1: see package waitlist), and etcd is asked nothing for WatchOwnAfter, 100 ms. Then these
//     entries are watched, since somebody may delete them.
//  4. acceptGrant makes the acquisition held, if its caller still wants it and the lease can be vouched for (I4). Up to then
//     nobody believes in the lock: a part that is granted is no hold yet.
//
// An error of any step leads to abandon, in release.go, which removes the keys.
//
// Mutexes are taken in the order acquisition, session, list.

package etcdlock

import (
	"cmp"
	"context"
	"errors"

	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// wait waits until each part has its lock, for one part after the other, and makes the acquisition held.
func (h *Held) wait(ctx context.Context) error {
	for p := h.firstUngranted(); p != nil; p = h.firstUngranted() {
		h.s.blockers.Enter(ctx, p.Name, h.rev)
		err := h.waitError(ctx, p, h.s.waits.Wait(ctx, &p.Part))
		h.s.blockers.Leave(p.Name)
		if err != nil {
			return err
		}
		h.s.waits.Survey(ctx, ofEach(&h.acquisition, func(p *part) *waitlist.Part { return &p.Part })...)
	}
	if err := h.checkAllParts(ctx); err != nil {
		return err
	}
	return h.acceptGrant(ctx)
}

// firstUngranted is the first part that does not have its lock, nil if all have theirs.
func (a *acquisition) firstUngranted() *part {
	for p := range a.all() {
		if !p.Granted() {
			return p
		}
	}
	return nil
}

// waitError is the error of a part's wait that has ended with err, in the words of callers. If the entry was removed, the
// error says whether the lease took the entry. If the wait was given up, the error says which holder has the lock.
func (a *acquisition) waitError(ctx context.Context, p *part, err error) error {
	s := a.s
	switch {
	case errors.Is(err, waitlist.ErrRemoved):
		s.lease.AwaitConfirmed(ctx) // nobody had the lock, so the cause is worth more than the time
		if ctx.Err() != nil {
			return s.lease.WaitError(ctx)
		}
		return cmp.Or(s.Err(), ErrLost)
	case err != nil && errors.Is(err, ctx.Err()) && s.Err() == nil:
		if b, ok := s.blockers.Of(p.Name, p.Kind, a.rev); ok {
			return &WaitError{b.Count, b.Holder, b.Token, b.Text, err}
		}
		return err
	}
	return s.lease.Translate(err)
}

// checkAllParts reads whether all parts are there, after a wait: other sessions may have removed a part while the next one
// waited. The read shows one revision at which the acquisition had them all.
func (a *acquisition) checkAllParts(ctx context.Context) error {
	if len(a.parts()) == 1 || !a.pending.behind {
		return nil
	}
	return a.waitError(ctx, &a.parts()[0], a.checkKeys(ctx, a.s.lease.Ctx, a.allKeys()...))
}

// acceptGrant makes the acquisition held, unless its caller does not want it anymore, or it can't be vouched for.
func (a *acquisition) acceptGrant(ctx context.Context) error {
	for ctx.Err() != nil || !a.s.lease.Valid() {
		if ctx.Err() != nil {
			return a.s.lease.WaitError(ctx)
		}
		// The wall clock was set forward, or a renewal is late: the place is kept until a renewal succeeds.
		if err := a.s.lease.Refresh(ctx); err != nil {
			return err
		}
	}
	if !a.becomeHeld() {
		return a.waitError(ctx, &a.parts()[0], waitlist.ErrRemoved)
	}
	return nil
}

// becomeHeld makes the acquisition held, and tells the hooks of the grant before anybody else can tell them of its loss. It returns
// false if a part lost its lock before. The session may have ended since acceptGrant has looked: then the hold is lost already, as its
// Context and Err say, and becomeHeld returns true.
func (a *acquisition) becomeHeld() bool {
	a.mu.Lock()
	defer a.unlockAndNotify()
	if a.firstUngranted() != nil {
		return false
	}
	if a.transition(held) {
		a.pending = nil
	}
	a.notifyGranted()
	a.checkSessionLocked()
	return true
}

// conclude ends the taking of a lock: with err it abandons the acquisition.
func (h *Held) conclude(err error) (*Held, error) {
	if err != nil {
		h.abandon(err, false)
		return nil, err
	}
	return h, nil
}
