// The wait of an acquisition, from its place in the queue to its grant:
//
//  1. enlist makes the acquisition known in its session, before its txn is sent: the waitlist of the name must tell its
//     keys from other sessions' keys.
//  2. enter notes the revision of the entry, and what the txn showed of the queue before the entry. If nothing blocks the
//     entry there, it has the lock.
//  3. wait blocks until the waitlist grants each part. Behind other sessions' entries, internal/wait reads what blocks,
//     watches that from now on, and reads again behind the watch (I3). Behind an entry of its own session it asks nothing:
//     the lock goes from one to the next in memory (I1).
//  4. grant makes the acquisition held, if its caller still wants it and the lease can be vouched for (I4).
//
// An error of any step leads to abandon, in release.go, which removes the entry.
//
// A lone acquisition of a name, the most frequent case, has no waitlist: of 10,000 locks the lists would be most of the
// memory. Mutexes are taken in the order entry, session, list.

package etcdlock

import (
	"cmp"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// join puts the entry into the queue, to be waited for.
func (h *Held) join(ctx context.Context) error {
	h.reserveKeys()
	h.enlist()
	err := h.enqueue(ctx)
	if err == nil {
		h.notifyEnqueued()
	}
	return err
}

// wait waits for what is before the entry, for one part after the other, and grants it.
func (h *Held) wait(ctx context.Context) error {
	p := h.waitsFor()
	if p == nil && !h.acquiring.behind {
		return h.grant(ctx)
	}
	for ; p != nil; p = h.waitsFor() {
		h.s.ahead.Enter(ctx, p.name, p.rev)
		err := p.waitError(ctx, h.s.waits.Wait(ctx, p.own))
		h.s.ahead.Leave(p.name)
		if err != nil {
			return err
		}
		h.s.waits.Survey(ctx, h.inLists()...)
	}
	if err := h.confirm(ctx); err != nil {
		return err
	}
	return h.grant(ctx)
}

// waitsFor is the first part that does not have its lock yet, nil if all have.
func (e *entry) waitsFor() *entry {
	for p := range e.all() {
		if own := p.listed(); own != nil && !own.Granted() {
			return p
		}
	}
	return nil
}

// waitError is the error of a wait that has ended with err, in the words of callers. Of an entry that is gone it says
// whether the lease has taken it, and of a wait that was given up whom it has waited for.
func (e *entry) waitError(ctx context.Context, err error) error {
	s := e.s
	switch {
	case errors.Is(err, wait.ErrGone):
		bound, unbind := etcd.Bind(ctx, s.lease.Ctx)
		s.lease.Confirm(bound)
		unbind()
		if ctx.Err() != nil {
			return s.lease.WaitError(ctx)
		}
		return cmp.Or(s.Err(), ErrLost)
	case err != nil && errors.Is(err, ctx.Err()) && s.Err() == nil:
		if ahead, ok := s.ahead.Ahead(e.name, e.mode.kind(), e.rev); ok {
			return &WaitError{ahead.Count, ahead.Holder, ahead.Token, ahead.Text, err}
		}
		return err
	}
	return s.lease.Translate(err)
}

// confirm reads whether all parts are there, after a wait: those that had the lock before the last one did may have
// been removed by others. Without this there may be no revision at which the entry had them all.
func (e *entry) confirm(ctx context.Context) error {
	if e.first == nil {
		return nil
	}
	_, err := e.exists(ctx, e.s.lease.Ctx, 0, e.allKeys()...)
	return e.waitError(ctx, err)
}

// grant makes the entry held, unless its owner does not want it anymore, or it can't be vouched for.
func (e *entry) grant(ctx context.Context) error {
	for ctx.Err() != nil || !e.s.lease.Valid() {
		switch {
		case ctx.Err() != nil:
			return e.s.lease.WaitError(ctx)
		case e.s.Err() != nil:
			return e.s.Err()
		}
		// The wall clock was set forward, or a renewal is late: the place is kept until there is one.
		if err := e.s.lease.Refresh(ctx); err != nil {
			return err
		}
	}
	e.mu.Lock()
	lost := false // already
	for p := range e.all() {
		lost = lost || p.own != nil && !p.own.Granted()
	}
	if !lost && e.transition(held) && !e.ambiguous && e.mode != writeMode && e.acquiring.trace == nil && e.first == nil {
		e.acquiring = nil
	}
	e.mu.Unlock()
	if lost {
		return e.waitError(ctx, wait.ErrGone)
	}
	return nil
}

// result is what becomes of an entry: the hold, or nothing if err is why there is none.
func (h *Held) result(err error) (*Held, error) {
	if err != nil {
		h.abandon(err)
		return nil, err
	}
	h.notifyGranted()
	return h, nil
}

// enlist makes the entry known in its session, before the txn that writes its keys is sent. The parts of a Multi have
// a list from the start, so that each is told what becomes of it, and wake their waiter alike.
func (e *entry) enlist() {
	for p := range e.all() {
		p.enlistPart()
		if p.first != nil && p.own != nil { // else another entry may be making its list
			p.own.WakeWith(p.first.own)
		}
	}
}

func (e *entry) enlistPart() {
	s := e.s
	for {
		s.mu.Lock()
		l, only := s.lists[e.name], s.only[e.name]
		if l == nil && only == nil && e.first != nil {
			l = s.waits.NewList(e.name, s.forgetList)
			s.lists[e.name] = l
		}
		switch {
		case l != nil:
			e.own = l.Register(e, e.mode.kind(), e.keys()...)
		case only == nil:
			s.only[e.name] = e
		}
		s.mu.Unlock()
		if l != nil || only == nil {
			return
		}
		only.mu.Lock()
		only.makeListLocked()
		only.mu.Unlock()
	}
}

// makeListLocked makes the list of the entry's name, if it is the only one. The caller holds e.mu.
func (e *entry) makeListLocked() {
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.only[e.name] != e {
		return // it has left, or there is a list by now
	}
	delete(s.only, e.name)
	l := s.waits.NewList(e.name, s.forgetList)
	s.lists[e.name] = l
	keys := e.keys()
	if e.downgraded {
		keys = keys[:1]
	}
	e.own = l.Register(e, e.mode.kind(), keys...)
	if e.rev != 0 { // alone, it has the lock as soon as it is in the queue
		e.own.Held(e.rev)
		if e.state > held {
			e.own.Leave(e.state == lost || e.fencedLocked())
		}
	}
}

// rekey gives the entry other keys, since somebody else has those that it had.
func (e *entry) rekey() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserveKeys()
	for p := range e.all() {
		if p.own != nil {
			p.own.Rekey(p.keys()...)
		}
	}
}

// enter takes note that the entry is in the queue, at revision rev. replies say, for each part, what its txn showed
// before it wrote the entry; there are none if nobody knows.
func (e *entry) enter(rev int64, replies ...*pb.ResponseOp) {
	e.mu.Lock()
	var gone []*waitlist.Entry
	i := 0
	for p := range e.all() {
		var seen *waitlist.Listing
		if len(replies) > 0 {
			seen = waitlist.Shown(rev, replies[i].GetResponseRange(), p.mode != readMode)
			i++
		}
		alone := seen.Clear(p.name, p.mode.kind())
		if p.own == nil && !alone {
			p.makeListLocked()
		}
		if p.first != nil && !alone {
			e.acquiring.behind = true
		}
		p.rev = rev
		if p.own != nil {
			gone = append(gone, p.own.Enqueued(rev, seen)...)
		}
	}
	e.mu.Unlock()
	markAllLost(gone, rev)
}

// listed is the entry, or the part of a Multi that it is, in its list: nil if it is alone.
func (e *entry) listed() *waitlist.Entry {
	w := e.whole()
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.own
}

// goneBeside reports whether another part of the acquisition is gone, while this one waits.
func (e *entry) goneBeside() bool {
	for p := range e.all() {
		if p.first != nil && p.own.Gone() {
			return true
		}
	}
	return false
}

// inLists are the parts of a Multi in their lists. Any other entry has none.
func (e *entry) inLists() (parts []*waitlist.Entry) {
	for p := range e.all() {
		if p.first != nil {
			parts = append(parts, p.own)
		}
	}
	return parts
}
