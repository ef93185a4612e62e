// What was heard of while requests are on their way, whose replies may not know of it.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Deletion is that of a key, at revision Rev.
type Deletion struct {
	Key string
	Rev int64
}

// hearsay is that no key of that name is there that was created before revision before. The list knows that of revision at.
type hearsay struct {
	key        string
	before, at int64
}

// A flight is a request: the txn of an entry, or a reading. It is carried out at a revision not below since.
type flight struct {
	of    *Part // nil for a reading
	since int64
}

// fliesLocked says that a request is about to be sent.
func (l *List) fliesLocked(of *Part) (since int64) {
	l.flights = append(l.flights, flight{of, l.latest})
	return l.latest
}

// sentLocked reports whether a key is that of an entry whose txn is on its way.
func (l *List) sentLocked(key string) bool {
	return slices.ContainsFunc(l.flights, func(f flight) bool { return f.of != nil && slices.Contains(f.of.Keys(), key) })
}

// sinceLocked is the since of the txn of an entry.
func (l *List) sinceLocked(of *Part) int64 {
	return l.flights[slices.IndexFunc(l.flights, func(f flight) bool { return f.of == of })].since
}

// landedLocked says that a request is over.
func (l *List) landedLocked(f flight) {
	i := slices.IndexFunc(l.flights, func(o flight) bool { return o.of == f.of && (f.of != nil || o.since == f.since) })
	l.flights = slices.Delete(l.flights, i, i+1)
	oldest := l.latest
	for _, f := range l.flights {
		oldest = min(oldest, f.since)
	}
	l.heard = slices.DeleteFunc(l.heard, func(h hearsay) bool { return h.at <= oldest })
}

// hearLocked notes that a key has left. If a view has the key, the key leaves the view.
func (l *List) hearLocked(h hearsay) (q queue.Entry, had bool) {
	l.latest = max(l.latest, h.at)
	if len(l.flights) > 0 {
		l.heard = append(l.heard, h)
	}
	kind := keyspace.KindOf(l.Name, h.key)
	if kind == keyspace.Foreign {
		l.nested = true
		return q, false
	}
	v := l.viewLocked(kind)
	i := slices.IndexFunc(v.keys, func(q queue.Entry) bool { return q.Key == h.key && q.Rev < h.before })
	if i < 0 {
		return q, false
	}
	q = v.keys[i]
	v.keys = slices.Delete(v.keys, i, i+1)
	l.struck++
	return q, true
}

// leftSinceLocked reports whether a key that a reply shows was heard to have left. If it may have been in anybody's way
// until then, at is the revision at which it left. It was not if it was created just before: then it is the own entry that was
// removed (see Removed), or it was deleted at the next revision, so that no entry was ever behind it.
func (l *List) leftSinceLocked(q queue.Entry) (left bool, at int64) {
	for _, h := range l.heard {
		if h.key == q.Key && q.Rev < h.before {
			if left = true; q.Rev < h.before-1 {
				at = h.at
			}
		}
	}
	return left, at
}
