package etcdlock

import (
	"context"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// The entries of a session that want the same lock know of each other by a waitlist, from when
// there are two of them or one has to wait. An entry that is alone, the most frequent case, does
// without: of 10,000 locks the lists would be most of the memory.
//
// Mutexes are taken in the order entry, session, list.

// enlist makes the entry known in its session, before the txn that writes its keys is sent.
func (e *entry) enlist() {
	s := e.s
	for {
		s.mu.Lock()
		l, only := s.lists[e.name], s.only[e.name]
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
	if e.own != nil {
		e.own.Rekey(e.keys()...)
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
	l := waitlist.New(e.name)
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

// enter takes note that the entry is in the queue, at revision rev. seen is what its txn showed
// before it wrote the entry, nil if nothing.
func (e *entry) enter(rev int64, seen *waitlist.Listing) {
	e.mu.Lock()
	if e.own == nil && !e.aloneIn(seen) {
		e.makeListLocked()
	}
	e.rev = rev
	var gone []*waitlist.Entry
	if e.own != nil {
		gone = e.own.Enqueued(rev, seen)
	}
	e.mu.Unlock()
	markAllLost(gone, rev)
}

// listed is the entry in its list, nil if it is alone.
func (e *entry) listed() *waitlist.Entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.own
}

// awaitLeft waits for the removal of entries of the same session that are over: nobody else has the
// lock, and Try is not to stumble over them.
func (e *entry) awaitLeft(ctx context.Context) error {
	ctx, cancel := etcd.Bind(ctx, e.s.ctx)
	defer cancel()
	own := e.listed()
	for own != nil && own.BehindLeft() {
		select {
		case <-ctx.Done():
			return e.s.waitError(ctx)
		case <-own.Wake():
		}
	}
	return nil
}

// aloneIn reports whether nothing that blocks the entry is in the queue.
func (e *entry) aloneIn(seen *waitlist.Listing) bool {
	if seen == nil {
		return false
	}
	v, known := queue.Blockers(e.name, e.mode.kind(), queue.MaxRev, seen.Keys, seen.Low <= seen.High)
	return known && len(v.Blockers) == 0
}

// fencedLocked reports whether those behind the entry have to wait until etcd has removed it: what
// its holder has made of it may still be carried out, or nobody knows how much of it is in etcd.
// The caller holds e.mu.
func (e *entry) fencedLocked() bool {
	return e.fenced || e.ambiguous
}

// leaveLocked says that the entry is to be removed, which may hand the lock over. next are the entries
// that the request is to look for. The caller holds e.mu.
func (e *entry) leaveLocked() (next []queue.Entry) {
	if e.own == nil {
		if e.rev == 0 {
			e.delistLocked()
		}
		return nil
	}
	next = e.own.Leave(e.state == released && e.fencedLocked())
	e.delistLocked()
	return next
}

// delist takes note that nothing of the entry is in etcd: see waitlist.Entry.Removed.
func (e *entry) delist(at int64, found bool, next, there []queue.Entry) {
	e.mu.Lock()
	var gone []*waitlist.Entry
	if e.own != nil {
		gone = e.own.Removed(at, found, next, there)
	}
	e.delistLocked()
	e.mu.Unlock()
	markAllLost(gone, at)
}

// delistLocked forgets what the session keeps for the entry's name, if nobody needs it any more. The
// caller holds e.mu.
func (e *entry) delistLocked() {
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.only[e.name] == e {
		delete(s.only, e.name)
	}
	if l := s.lists[e.name]; l != nil && l.Empty() {
		delete(s.lists, e.name)
	}
}

// markAllLost ends the holds of entries that were not in etcd at revision at.
func markAllLost(gone []*waitlist.Entry, at int64) {
	for _, g := range gone {
		e := g.Owner.(*entry)
		e.mu.Lock()
		e.markLostLocked(at)
		e.unlockAndNotify()
	}
}
