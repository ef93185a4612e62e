// What the list makes of the watches of its entries.

package waitlist

import (
	"math/rand/v2"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Watch is what the list knows of a watch for deletions that one of its entries has open.
type Watch struct {
	From, To string // the range of keys
	At       int64  // each deletion above this revision is told of, in order
	// Owner is the watch itself. The list does not use it.
	Owner any

	upTo int64 // each deletion up to this revision was told of
}

// A Deletion is that of a key, at revision Rev.
type Deletion struct {
	Key string
	Rev int64
}

func (w *Watch) covers(key string) bool { return w.contains(key, key+"\x00") }

func (w *Watch) contains(from, to string) bool { return w != nil && w.From <= from && to <= w.To }

// Opened says that the entry has this watch now, and no other.
func (e *Entry) Opened(w *Watch) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	w.upTo = w.At
	e.watch, l.watches = w, append(l.watches, w)
	if from, to := l.allLocked(); l.wide == nil && w.contains(from, to) {
		l.wide, l.spare, l.changed = w, false, true
	}
	l.grantLocked()
}

// Close says that the entry does not listen to its watch any more, since it is broken or not what
// Next says. It returns the watch if it is to be closed, and not kept for an entry that adopts it.
func (e *Entry) Close(broken bool) (closing *Watch) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.closeLocked(broken)
}

// Stop is Close for an entry that nobody waits for any more. expires says that a watch is kept: Expire is to be called
// after a while.
func (e *Entry) Stop() (closing *Watch, expires bool) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	e.idle = true
	e.readOverLocked()
	closing = e.closeLocked(false)
	expires = l.spare && !l.expires
	l.expires = l.expires || expires
	return closing, expires
}

// Expire returns the watch that is kept, to be closed, if nobody has listened to it since Expire was last called. again
// says to call it once more, after the same time.
func (e *Entry) Expire() (closing *Watch, again bool) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	again = l.spare && l.used
	if l.spare && !again {
		closing = l.wide
		l.closedLocked(closing)
	}
	l.used, l.expires = false, again
	return closing, again
}

func (e *Entry) closeLocked(broken bool) (closing *Watch) {
	l, w := e.l, e.watch
	e.watch = nil
	switch {
	case w == nil:
	case w == l.wide && !broken && l.shareLocked(2*ManyShare) && !l.noisyLocked():
		l.spare, l.used, l.changed = true, true, true
	default:
		closing = w
		l.closedLocked(w)
	}
	l.grantLocked()
	return closing
}

func (l *List) closedLocked(w *Watch) {
	l.watches = slices.DeleteFunc(l.watches, func(o *Watch) bool { return o == w })
	if w == l.wide {
		l.wide, l.spare, l.changed = nil, false, true
	}
	for i := range l.places { // what it would have told of
		if p := &l.places[i]; w.tells(p.Key, p.seen) {
			p.seen = max(p.seen, w.upTo)
		}
	}
}

// Awaited are keys that the watches of the list are to tell of.
func (l *List) Awaited() (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	defer l.mu.Unlock()
	lost = l.applyLocked(seen)
	l.grantLocked()
	return lost
}

// Refresh has the list asked anew, since its watches may be silent.
func (l *List) Refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	front := l.frontLocked()
	for _, e := range front[:2] {
		if e != nil {
			e.mustRead = true
			e.tell()
		}
	}
}

// Fail says that etcd could not be asked, or a watch has ended: the entry asks anew.
func (e *Entry) Fail() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.mustRead = true
	e.readOverLocked()
	e.l.grantLocked()
}

// Heard takes note of what the entry's watch has told: these deletions, in order. lost are entries
// that had the lock and were deleted.
func (e *Entry) Heard(deletions []Deletion) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
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
		e.watch.upTo = max(e.watch.upTo, d.Rev)
		l.rememberLocked(d)
		l.weighLocked(d.Key)
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

// maxForeign is how many more foreign keys than entries the watch on all of the queue may tell of. Locks whose names are
// nested in this one may be busy while nothing happens to this one.
const maxForeign = 64

// weighLocked takes note of whether a deletion was of an entry of the queue.
func (l *List) weighLocked(key string) {
	switch {
	case keyspace.KindOf(l.name, key) != keyspace.Foreign:
		l.foreign = max(0, l.foreign-1)
	case l.foreign < maxForeign:
		l.foreign++
	default:
		l.foreign = 2 * maxForeign // so that it is not tried again soon
	}
}

// noisyLocked reports whether a watch on all of the queue tells of too much else.
func (l *List) noisyLocked() bool { return l.foreign > maxForeign }

// tells reports whether the watch would have told if a key that was there at revision seen had
// been deleted.
func (w *Watch) tells(key string, seen int64) bool { return w.covers(key) && seen >= w.At }

// heardLocked is the revision up to which the watches have told. What a reading before that shows may have gone, as
// one of them has told already.
func (l *List) heardLocked() (at int64) {
	for _, w := range l.watches {
		at = max(at, w.upTo)
	}
	return at
}

// watchLocked is the watch that the entry relies on.
func (e *Entry) watchLocked() *Watch {
	if e.l.wide != nil {
		return e.l.wide
	}
	return e.watch
}

// seenLocked is the last revision at which the entry is known to have been in the queue, also
// because a watch that would have told of its end did not.
func (l *List) seenLocked(e *Entry) int64 {
	i, _ := l.findLocked(queue.Entry{Key: e.keys[0], Rev: e.rev})
	seen := l.places[i].seen
	for _, w := range l.watches {
		if w.tells(e.keys[0], l.places[i].seen) {
			seen = max(seen, w.upTo)
		}
	}
	return seen
}

func (l *List) trackedLocked(p *place) bool {
	return slices.ContainsFunc(l.watches, func(w *Watch) bool { return w.tells(p.Key, p.seen) })
}

// ManyShare is how many times its own keys a queue has, at most, of which a session watches all, and keeps that watch
// for its next entries. Then what an entry's txn shows suffices, and the entry needs neither a watch nor a reading of
// its own. It bounds to how many clients etcd tells each release: a narrow watch is told of hardly any but the one
// that its entry waits for.
const ManyShare = 8

// manyLocked reports whether the list is known to have a good part of the queue, or has several that wait.
func (l *List) manyLocked() bool {
	return (l.size > 0 || l.frontLocked()[1] != nil) && l.shareLocked(ManyShare) && !l.noisyLocked()
}

// shareLocked reports whether one in so many of the queue's keys, or more, is the list's.
func (l *List) shareLocked(n int64) bool { return int64(len(l.keys))*n >= l.size }

// allLocked is the range of all entries.
func (l *List) allLocked() (from, to string) {
	from, _ = keyspace.Exclusives(l.name)
	_, to = keyspace.Shareds(l.name)
	return from, to
}
