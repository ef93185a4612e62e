// How entries leave, and what that means for those behind.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Leave says that the entry was released or withdrawn, before the request that removes it is
// sent. fence says that a transaction of its holder that compares a key may still be carried out, so that
// the entries behind must wait until it is gone. next are the entries that the request is to look for.
func (p *Part) Leave(fence bool) (next []queue.Entry) {
	l := p.l
	l.lock()
	defer l.unlock()
	switch next = p.nextLocked(); {
	case p.rev == 0: // nobody knows whether it was written; if it was, it counts as another session's
		l.landedLocked(flight{of: p})
	case fence:
		p.state = removing
	case p.state != removing: // which it stays
		p.state = left
	}
	return next
}

// OwnWriterHolds reports whether an exclusive entry of the list has the lock: everybody else waits for this exclusive entry,
// whatever becomes of p.
func (p *Part) OwnWriterHolds() bool {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return slices.ContainsFunc(p.l.parts, func(o *Part) bool { return o.state == granted && o.kind == keyspace.Exclusive })
}

// Lost says that the entry, which was held, is not in etcd any more. Nothing is handed over: the lease may be gone, so
// when the entry is removed those behind are looked for first.
func (p *Part) Lost() {
	p.l.lock()
	defer p.l.unlock()
	p.state = removing
}

// Missing says that the entry, which has not left, was not in etcd under key at revision at. If it is known by another
// key by now, since it was downgraded, that is as it should be.
func (p *Part) Missing(key string, at int64) (lost []*Part) {
	l := p.l
	l.lock()
	defer l.unlock()
	if p.keys[0] == key && p.rev > 0 {
		lost = l.absentLocked(nil, p, at)
	}
	return lost
}

// Removed says that nothing of the entry is in etcd any more. The request that saw to that was
// carried out at revision at. found says that it has certainly removed the entry itself; else
// somebody else may have, and others of the list with it. there are those of next that it found.
func (p *Part) Removed(at int64, found bool, next, there []queue.Entry) (lost []*Part) {
	l := p.l
	l.lock()
	defer l.unlock()
	i, known := l.findLocked(p.rev)
	if !known {
		return nil // the request was sent twice, or nobody knew that there was anything to remove
	}
	l.parts = slices.Delete(l.parts, i, i+1)
	if !found || p.state != left {
		l.goneByLocked(at)
	}
	for _, key := range p.Keys() { // an entry may have the key anew since
		if q, had := l.hearLocked(hearsay{key, p.rev + 1, at}); had && q.Rev < p.rev {
			l.goneByLocked(at) // it was the key of the process before, whose lease was adopted
		}
	}
	l.tellSentLocked()
	return l.checkNextLocked(at, next, there)
}

// Forget says that the entry, which nobody of the session wants any more, stays in the queue. From now on it is another
// session's: who adopts it may make another Part of it.
func (p *Part) Forget() {
	l := p.l
	l.lock()
	defer l.unlock()
	i, _ := l.findLocked(p.rev)
	l.parts = slices.Delete(l.parts, i, i+1)
}

// Downgrading says that the entry is known by its shared key from now on.
func (p *Part) Downgrading() {
	p.l.lock()
	defer p.l.unlock()
	p.keys[0], p.keys[1] = p.keys[1], p.keys[0]
}

// Behind are the entries that the request which removes the exclusive key is to look for.
func (p *Part) Behind() (next []queue.Entry) {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return p.nextLocked()
}

// Downgraded says that the exclusive key is gone, since the request was carried out at revision
// at: readers of the list behind are let in.
func (p *Part) Downgraded(at int64, next, there []queue.Entry) (lost []*Part) {
	l := p.l
	l.lock()
	defer l.unlock()
	p.kind = keyspace.Shared
	l.goneByLocked(at)
	return l.checkNextLocked(at, next, there)
}

// nextMax is how many entries behind it, of its name, a request that removes an entry looks for.
const nextMax = 16

// nextLocked are the entries behind that wait for it, as far as they are granted together.
func (p *Part) nextLocked() (next []queue.Entry) {
	for _, o := range p.l.togetherLocked(p.rev+1, nextMax) {
		next = append(next, o.entry())
	}
	return next
}

// togetherLocked are the waiting entries of revision rev or later that are granted together: an exclusive one, or readers up
// to the next exclusive entry. At most limit of them.
func (l *List) togetherLocked(rev int64, limit int) (some []*Part) {
	i, _ := l.findLocked(rev)
	for _, o := range l.parts[i:] {
		writes := o.kind == keyspace.Exclusive
		if o.waits() && (len(some) == 0 || !writes) {
			some = append(some, o)
		}
		if writes && !o.over() || len(some) == limit {
			break
		}
	}
	return some
}

func (l *List) checkNextLocked(at int64, next, there []queue.Entry) (lost []*Part) {
	for _, q := range next {
		switch o := l.ownLocked(q); {
		case o == nil || q.Key != o.keys[0]: // it has left meanwhile, or was downgraded
		case slices.Contains(there, q):
			o.seen = max(o.seen, at)
		default:
			lost = l.absentLocked(lost, o, at)
		}
	}
	return lost
}
