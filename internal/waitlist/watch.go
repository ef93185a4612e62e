// What the list makes of its watches.

package waitlist

import (
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// A Watch is what the list knows of a watch for deletions that is open. Call Heard with each batch of
// events, in order, and Broke when the watch has ended.
type Watch struct {
	From, To string // the range of keys
	At       int64  // each deletion above this revision is told of, in order
	Close    func() // is called when nobody needs it any more

	l     *List
	upTo  int64 // each deletion up to this revision was told of
	users int   // entries that rely on it
	used  bool  // one has since expire was last called
}

// watches are those of a list. At most two are open, since only two entries ask. One may stay for a while when no entry
// relies on it: see keepsLocked.
type watches struct {
	open    []*Watch
	expires bool     // expire will be called
	nested  bool     // keys of other names lie among those of the queue: see manyLocked
	closing []*Watch // to be closed when the mutex is released
}

// keepFor is how long, up to twice, a watch stays on which nobody relies.
const keepFor = 100 * time.Millisecond

// A Deletion is that of a key, at revision Rev.
type Deletion struct {
	Key string
	Rev int64
}

func (w *Watch) covers(key string) bool { return w.contains(key, key+"\x00") }

func (w *Watch) contains(from, to string) bool { return w.From <= from && to <= w.To }

// single reports whether the range is one key.
func (w *Watch) single() bool { return w.To == w.From+"\x00" }

// Opened says that a watch was opened for the entry.
func (e *Entry) Opened(w *Watch) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	w.l, w.upTo = l, w.At
	l.open = append(l.open, w)
	e.relyLocked(w)
	for _, o := range slices.Clone(l.open) {
		if o.users == 0 && len(l.open) > 2 {
			l.closeLocked(o)
		}
	}
	l.grantLocked()
}

// relyLocked has the entry rely on w, if it is not nil, and no more on the watch that it relied on. That is closed if
// nobody else relies on it, unless it is kept.
func (e *Entry) relyLocked(w *Watch) {
	l, was := e.l, e.watch
	if was == w {
		return
	}
	if e.watch = w; w != nil {
		w.users++
	}
	if was == nil {
		return
	}
	if was.users--; was.users > 0 {
		return
	}
	if len(l.open) <= 2 && l.keepsLocked(was) {
		was.used = true
		l.expireLaterLocked()
	} else {
		l.closeLocked(was)
	}
}

// ManyShare bounds the queue that a session watches whole: at most ManyShare times the session's keys. Then what an entry's txn
// shows suffices, and the next entry needs neither a watch nor a reading of its own. It bounds to how many clients
// etcd tells each release: a narrow watch is told of hardly any but the one that its entry waits for.
const ManyShare = 8

// manyLocked reports whether the list is known to have a good part of the queue. It is not said to where names are nested
// in this one: their locks may be busy, and a watch on all would tell of them.
func (l *List) manyLocked() bool { return l.size > 0 && !l.nested && l.manyShareLocked() }

// manyShareLocked reports whether one in ManyShare of the queue's keys, or more, is the list's.
func (l *List) manyShareLocked() bool { return int64(len(l.keys))*ManyShare >= l.size }

// keepsLocked reports whether a watch stays for a while when no entry relies on it. The one on all of the queue does, and
// one on a single key: a session that takes the lock again and again finds the one before it in the queue under the
// same key.
func (l *List) keepsLocked(w *Watch) bool {
	if wide := l.wideLocked(); wide != nil {
		return wide == w && l.manyShareLocked()
	}
	return w.single()
}

// wideLocked is the watch on all of the queue, nil if there is none.
func (l *List) wideLocked() *Watch { return l.coveringLocked(l.allLocked()) }

// coveringLocked is a watch that covers the range, nil if there is none.
func (l *List) coveringLocked(from, to string) *Watch {
	if i := slices.IndexFunc(l.open, func(w *Watch) bool { return w.contains(from, to) }); i >= 0 {
		return l.open[i]
	}
	return nil
}

// relyOnLocked is a watch that covers the range, on which the entry relies from now on, nil if there is none.
func (e *Entry) relyOnLocked(from, to string) *Watch {
	w := e.l.coveringLocked(from, to)
	if w != nil {
		e.relyLocked(w)
	}
	return w
}

// closeLocked closes a watch, and forgets it.
func (l *List) closeLocked(w *Watch) {
	l.forgetLocked(w, nil)
	l.closing = append(l.closing, w)
}

// forgetLocked forgets a watch, which has ended with err or will be closed. The front-most entry that relies on it
// asks anew; of the others the list knows since when nothing is told of what they wait for.
func (l *List) forgetLocked(w *Watch, err error) {
	l.open = slices.DeleteFunc(l.open, func(o *Watch) bool { return o == w })
	l.changed = true
	for i := range l.places {
		p := &l.places[i]
		if w.tells(p.Key, p.seen) { // else it would have told
			p.seen = max(p.seen, w.upTo)
		}
		if e := p.own; e != nil && e.watch == w {
			e.watch, e.broke, e.mustRead, err = nil, err, e.mustRead || err != nil, nil
		}
	}
}

func (l *List) expireLaterLocked() {
	if !l.expires {
		l.expires = true
		l.after(keepFor, l.expire)
	}
}

// expire closes the watches on which nobody has relied since it was last called.
func (l *List) expire() {
	l.mu.Lock()
	l.expires = false
	for _, w := range slices.Clone(l.open) {
		switch {
		case w.users > 0:
		case w.used:
			w.used = false
			l.expireLaterLocked()
		default:
			l.closeLocked(w)
		}
	}
	over := !l.expires
	l.grantLocked()
	l.unlock()
	if over {
		l.forget(l.name)
	}
}

// Broke says that the watch has ended with err, and may have missed something.
func (w *Watch) Broke(err error) {
	l := w.l
	l.mu.Lock()
	defer l.unlock()
	l.forgetLocked(w, err) // if it was not closed
	l.grantLocked()
}

// Stop says that nobody waits for the entry any more.
func (e *Entry) Stop() {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.idle, e.broke = true, nil
	e.readOverLocked()
	e.relyLocked(nil)
	e.l.grantLocked()
}

// allLocked is the range of all entries.
func (l *List) allLocked() (from, to string) {
	from, _ = keyspace.Exclusives(l.name)
	_, to = keyspace.Shareds(l.name)
	return from, to
}
