// How entries leave, and what that means for those behind.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Leave says that the entry was released or withdrawn, before the request that removes it is
// sent. fence says that what its holder has made of it may still be carried out, so that those
// behind have to wait until it is gone. next are the entries that the request is to look for.
func (e *Entry) Leave(fence bool) (next []queue.Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	switch next = e.nextLocked(); {
	case e.rev == 0: // nobody knows whether it was written; if it was, it counts as another session's
		e.disownLocked()
	case fence:
		e.state = leaving
	case e.state != leaving: // which it stays
		e.state = left
	}
	l.changed = true
	l.grantLocked()
	return next
}

// Covered reports whether an exclusive entry of the list has the lock: everybody else waits for this exclusive entry,
// whatever becomes of e.
func (e *Entry) Covered() bool {
	e.l.mu.Lock()
	defer e.l.unlock()
	return slices.ContainsFunc(e.l.places, func(p place) bool {
		return p.own != nil && p.own.state == held && p.own.kind == keyspace.Exclusive
	})
}

// Lost says that the entry, which was held, was not in etcd at revision at. Nothing is handed
// over: the lease may be gone, so those behind are looked for first.
func (e *Entry) Lost(at int64) {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.state = leaving
	e.l.suspectLocked(queue.Entry{}, at)
	e.l.grantLocked()
}

// Missing says that the entry, which has not left, was not in etcd under key at revision at. If it is known by another
// key by now, since it was downgraded, that is as it should be.
func (e *Entry) Missing(key string, at int64) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	if e.rev > 0 && e.keys[0] == key {
		lost = l.goneLocked(nil, queue.Entry{Key: key, Rev: e.rev}, at)
	}
	l.grantLocked()
	return lost
}

// Owners are those of the entries in the queue.
func (l *List) Owners() (owners []any) {
	l.mu.Lock()
	defer l.unlock()
	for _, p := range l.places {
		if p.own != nil && p.Key == p.own.keys[0] {
			owners = append(owners, p.own.Owner)
		}
	}
	return owners
}

// Removed says that nothing of the entry is in etcd any more. The request that saw to that was
// carried out at revision at. found says that it has certainly removed the entry itself; else
// somebody else may have, and others of the list with it. there are those of next that it found.
func (e *Entry) Removed(at int64, found bool, next, there []queue.Entry) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	if l.keys[e.keys[0]] != e {
		return nil // the request was sent twice
	}
	e.disownLocked()
	l.places = slices.DeleteFunc(l.places, func(p place) bool { return p.own == e })
	if found && e.state == left {
		for _, key := range e.keys {
			l.removed[key] = e.rev
		}
	} else if e.rev > 0 {
		l.suspectLocked(queue.Entry{}, at)
	}
	l.changed = true
	l.tellPendingLocked()
	return l.checkNextLocked(at, next, there)
}

// Downgrading says that the entry is known by its shared key from now on.
func (e *Entry) Downgrading() {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.keys = []string{e.keys[1], e.keys[0]}
}

// Behind are the entries that the request which removes the exclusive key is to look for.
func (e *Entry) Behind() (next []queue.Entry) {
	e.l.mu.Lock()
	defer e.l.unlock()
	return e.nextLocked()
}

// Downgraded says that the exclusive key is gone, since the request was carried out at revision
// at: readers of the list behind are let in.
func (e *Entry) Downgraded(at int64, next, there []queue.Entry) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	e.kind = keyspace.Shared
	q := queue.Entry{Key: e.keys[1], Rev: e.rev}
	l.places = slices.DeleteFunc(l.places, func(p place) bool { return p.Entry == q })
	l.suspectLocked(q, at)
	return l.checkNextLocked(at, next, there)
}

// nextMax is how many entries behind it, of its name, a request that removes an entry looks for.
const nextMax = 16

// nextLocked are the entries behind that wait for it, as far as they are granted together.
func (e *Entry) nextLocked() (next []queue.Entry) {
	for _, p := range e.l.places {
		if p.own == nil || p.own.state != waiting || p.Key != p.own.keys[0] || p.Rev <= e.rev {
			continue
		}
		if len(next) == 0 || p.kind == keyspace.Shared {
			next = append(next, p.Entry)
		}
		if p.kind == keyspace.Exclusive || len(next) == nextMax {
			break
		}
	}
	return next
}

func (l *List) checkNextLocked(at int64, next, there []queue.Entry) (lost []*Entry) {
	for _, q := range next {
		if i, known := l.findLocked(q); !known {
			continue // it has left meanwhile
		} else if slices.Contains(there, q) {
			l.places[i].seen = max(l.places[i].seen, at)
		} else {
			lost = l.goneLocked(lost, q, at)
		}
	}
	l.grantLocked()
	return lost
}
