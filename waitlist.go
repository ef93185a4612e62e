// How the entries of a session that want the same lock know of each other: by a waitlist in memory, from when there are
// two of them or one has to wait. An entry that is alone, the most frequent case, does without: of 10,000 locks the
// lists would be most of the memory.
//
// Mutexes are taken in the order entry, session, list.

package etcdlock

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

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
			l = waitlist.New(e.name, s.forgetList)
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

// makeListLocked makes the list of the entry's name, if it is the only one. The caller holds e.mu.
func (e *entry) makeListLocked() {
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.only[e.name] != e {
		return // it has left, or there is a list by now
	}
	delete(s.only, e.name)
	l := waitlist.New(e.name, s.forgetList)
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

// enter takes note that the entry is in the queue, at revision rev. replies say, for each part, what its txn showed
// before it wrote the entry; there are none if nobody knows.
func (e *entry) enter(rev int64, replies ...*pb.ResponseOp) {
	e.mu.Lock()
	var gone []*waitlist.Entry
	i := 0
	for p := range e.all() {
		var seen *waitlist.Listing
		if len(replies) > 0 {
			seen = p.listing(rev, replies[i].GetResponseRange())
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

// awaitLeft waits for the removal of entries of the same session that are over: nobody else has the lock, and Try is
// not to stumble over them. It does not wait for one that etcd refuses.
func (e *entry) awaitLeft(ctx context.Context) error {
	ctx, cancel := etcd.Bind(ctx, e.s.lease.Ctx)
	defer cancel()
	for p := range e.all() {
		own := p.listed()
		for own != nil && own.BehindLeft() {
			select {
			case <-ctx.Done():
				return e.s.lease.WaitError(ctx)
			case <-own.Wake():
			}
		}
	}
	return nil
}

// fencedLocked reports whether those behind the entry have to wait until etcd has removed it: what its holder has
// made of it may still be carried out, or nobody knows how much of it is in etcd. The caller holds e.mu.
func (e *entry) fencedLocked() bool {
	return e.fenced || e.ambiguous
}

// leaveLocked says that the entry must be removed, which may hand the lock over. next are the entries that the
// request is to look for. The caller holds e.mu.
//
// A Multi that did not get all of its locks hands none of them over. Those that it had may have been lost, with its
// lease for example, and that may be why it is given up.
func (e *entry) leaveLocked() (next []queue.Entry) {
	fence := e.state == released && e.fencedLocked() || e.state == abandoned && e.first != nil
	for p := range e.all() {
		if p.own != nil {
			next = append(next, p.own.Leave(fence)...)
		}
		if p.own != nil || p.rev == 0 {
			p.delistLocked()
		}
	}
	return next[:min(len(next), maxLooked)]
}

// delist takes note that nothing of the entry is in etcd: see waitlist.Entry.Removed. Where an earlier attempt may
// have removed it, nobody can tell whether that was the session's request.
func (e *entry) delist(r *settle.Removal) {
	e.mu.Lock()
	var gone []*waitlist.Entry
	i := 0
	for p := range e.all() {
		if p.own != nil {
			gone = append(gone, p.own.Removed(r.At, r.Removed[i] && !r.Ambiguous, r.Sought, r.There)...)
		}
		p.delistLocked()
		i++
	}
	e.mu.Unlock()
	markAllLost(gone, r.At)
}

// delistLocked forgets what the session keeps for the entry's name, if nobody needs it any more. The caller holds
// e.mu.
func (e *entry) delistLocked() {
	s := e.s
	s.mu.Lock()
	if s.only[e.name] == e {
		delete(s.only, e.name)
	}
	s.mu.Unlock()
	s.forgetList(e.name)
}

// forgetList forgets the list of a name, if nobody needs it any more.
func (s *Session) forgetList(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lists[name]; l != nil && l.Empty() {
		delete(s.lists, name)
	}
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
