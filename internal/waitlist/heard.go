// What the watches of the list have told, and what is asked since they may be silent.

package waitlist

import (
	"math/rand/v2"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Awaited are keys that the watches of the list are to tell of.
func (l *List) Awaited() (keys []string) {
	l.mu.Lock()
	defer l.unlock()
	front := l.frontLocked()
	for _, e := range front[:2] {
		for i := range l.places {
			if p := &l.places[i]; e != nil && p.own == nil && p.Rev < e.rev && queue.Blocks(p.kind, e.kind) && l.trackedLocked(p) {
				keys = append(keys, p.Key)
			}
		}
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:min(len(keys), nextMax)]
}

// Saw takes note of a reading that no entry has asked for.
func (l *List) Saw(seen *Listing) (lost []*Entry) {
	l.mu.Lock()
	defer l.unlock()
	lost = l.applyLocked(seen)
	l.grantLocked()
	return lost
}

// Refresh has the list asked anew, since its watches may be silent.
func (l *List) Refresh() {
	l.mu.Lock()
	defer l.unlock()
	front := l.frontLocked()
	for _, e := range front[:2] {
		if e != nil {
			e.mustRead = true
			e.tell()
		}
	}
}

// Fail says that etcd could not be asked: the entry asks anew.
func (e *Entry) Fail() {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.mustRead = true
	e.readOverLocked()
	e.l.grantLocked()
}

// Heard takes note of what the watch has told: these deletions, in order. lost are entries that had the lock and were
// deleted.
func (w *Watch) Heard(deletions []Deletion) (lost []*Entry) {
	l := w.l
	l.mu.Lock()
	defer l.unlock()
	for _, d := range deletions {
		if o := l.keys[d.Key]; o != nil && o.rev == 0 {
			o.goneUpTo = max(o.goneUpTo, d.Rev)
			l.latest = max(l.latest, d.Rev)
		}
		for i := len(l.places) - 1; i >= 0; i-- {
			if q := l.places[i].Entry; q.Key == d.Key && q.Rev < d.Rev {
				lost = l.goneLocked(lost, q, d.Rev)
			}
		}
		w.upTo = max(w.upTo, d.Rev)
		l.rememberLocked(d)
		if keyspace.KindOf(l.name, d.Key) == keyspace.Foreign {
			l.nested = true
		}
	}
	if l.nested {
		if wide := l.wideLocked(); wide != nil {
			l.closeLocked(wide)
		}
	}
	l.grantLocked()
	return lost
}

// maxTold is how many deletions are remembered: those that are told of during a reading are few.
const maxTold = 64

func (l *List) rememberLocked(d Deletion) {
	if len(l.told) == maxTold {
		for _, rev := range l.told {
			l.toldFrom = max(l.toldFrom, rev)
		}
		clear(l.told)
	}
	l.told[d.Key] = max(l.told[d.Key], d.Rev)
}

// tells reports whether the watch would have told if a key that was there at revision seen had
// been deleted.
func (w *Watch) tells(key string, seen int64) bool { return w.covers(key) && seen >= w.At }

// heardLocked is the revision up to which the watches have told. What a reading before that shows may have gone, as
// one of them has told already.
func (l *List) heardLocked() (at int64) {
	for _, w := range l.open {
		at = max(at, w.upTo)
	}
	return at
}

// seenLocked is the last revision at which the entry is known to have been in the queue, also
// because a watch that would have told of its end did not.
func (l *List) seenLocked(e *Entry) int64 {
	p := e.ownPlaceLocked()
	seen := p.seen
	for _, w := range l.open {
		if w.tells(p.Key, p.seen) {
			seen = max(seen, w.upTo)
		}
	}
	return seen
}

func (l *List) trackedLocked(p *place) bool {
	return slices.ContainsFunc(l.open, func(w *Watch) bool { return w.tells(p.Key, p.seen) })
}
