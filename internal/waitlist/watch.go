// What the list makes of its watches.

package waitlist

import (
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Watch is what the list knows of a watch for deletions that is open. Call Heard with each batch of
// events, in order, and Broke when the watch has ended.
type Watch struct {
	From, To string // the range of keys
	At       int64  // each deletion above this revision is told of, in order
	Close    func() // is called when nobody needs it any more

	l    *List
	told int64 // each deletion up to this revision was told of
	used bool  // somebody has needed it since expire was last called
}

// keepFor is how long, up to twice, a watch stays on which nobody relies.
const keepFor = 100 * time.Millisecond

// tells reports whether the watch would have told if a key that was there at revision seen had
// been deleted.
func (w *Watch) tells(key string, seen int64) bool {
	return w.From <= key && key < w.To && w.At <= seen
}

// untrackedLocked reports whether a key of a view, or of an entry of the list, may have been deleted since it is known to have been
// there, without a watch that tells.
func (l *List) untrackedLocked(q queue.Entry) bool {
	seen := l.viewLocked(keyspace.KindOf(l.Name, q.Key)).listed
	if p := l.ownLocked(q); p != nil {
		seen = l.lastSeenLocked(p)
	}
	return !slices.ContainsFunc(l.watches, func(w *Watch) bool { return w.tells(q.Key, seen) })
}

// Opened says that a watch was opened.
func (l *List) Opened(w *Watch) {
	l.lock()
	defer l.unlock()
	w.l, w.told = l, w.At
	l.latest = max(l.latest, w.At)
	l.watches = append(l.watches, w)
	l.relyLocked(w)
	if len(l.watches) > 2 {
		l.closeLocked(l.watches[0])
	}
}

// relyLocked has w needed, and no more the watch that was, which is closed unless it stays.
func (l *List) relyLocked(w *Watch) {
	was := l.need
	if l.need = w; was == nil || was == w {
		return
	}
	if l.keepsLocked(was) {
		was.used = true
		l.expireLaterLocked()
	} else {
		l.closeLocked(was)
	}
}

// Heard takes note of what the watch has told: these deletions, in order. lost are entries that had the lock and were
// deleted.
func (w *Watch) Heard(deletions []Deletion) (lost []*Part) {
	l := w.l
	l.lock()
	defer l.unlock()
	for _, d := range deletions {
		w.told = d.Rev
		if q, had := l.hearLocked(hearsay{d.Key, d.Rev, d.Rev}); had && l.ownLocked(q) == nil {
			l.goneByLocked(d.Rev)
			l.cutLocked(q)
		}
		if i := slices.IndexFunc(l.parts, func(p *Part) bool { return p.keys[0] == d.Key && p.rev < d.Rev }); i >= 0 {
			lost = l.absentLocked(lost, l.parts[i], d.Rev)
		}
	}
	if wide := l.coveringLocked(l.allLocked()); l.nested && wide != nil {
		l.closeLocked(wide)
	}
	return lost
}

// ManyShare bounds the queue that a session watches whole: at most ManyShare times the session's keys. Then what an entry's txn
// shows suffices, and the next entry needs neither a watch nor a reading of its own. It bounds to how many clients
// etcd tells each release: a narrow watch is told of hardly any but the one that its entry waits for.
const ManyShare = 8

// manyLocked reports whether the list is known to have a good part of the queue. It is not said to where names are nested
// in this one: their locks may be busy, and a watch on all would tell of them.
func (l *List) manyLocked() bool {
	return l.size > 0 && !l.nested && l.keysLocked()*l.ManyShare >= l.size
}

// keepsLocked reports whether a watch stays for a while when nobody needs it. The one on all of the queue does, and
// one on a single key: a session that takes the lock again and again finds the one before it in the queue under the
// same key.
func (l *List) keepsLocked(w *Watch) bool {
	if wide := l.coveringLocked(l.allLocked()); wide != nil {
		return wide == w && l.manyLocked()
	}
	return w.To == w.From+"\x00"
}

// coveringLocked is a watch that covers the range, nil if there is none.
func (l *List) coveringLocked(from, to string) *Watch {
	for _, w := range l.watches {
		if w.From <= from && to <= w.To {
			return w
		}
	}
	return nil
}

// closeLocked closes a watch, and forgets it.
func (l *List) closeLocked(w *Watch) {
	l.forgetLocked(w)
	l.later = append(l.later, w.Close)
}

// forgetLocked forgets a watch, which has ended or will be closed. Up to then it would have told.
func (l *List) forgetLocked(w *Watch) {
	for _, p := range l.parts {
		p.seen = l.lastSeenLocked(p)
	}
	l.watches = slices.DeleteFunc(l.watches, func(o *Watch) bool { return o == w })
	if l.need == w {
		l.need = nil
	}
}

func (l *List) expireLaterLocked() {
	if !l.expires {
		l.expires = true
		l.After(keepFor, l.expire)
	}
}

// expire closes the watches on which nobody has relied since it was last called.
func (l *List) expire() {
	l.lock()
	defer l.unlock()
	l.expires = false
	for _, w := range slices.Clone(l.watches) {
		switch {
		case w == l.need:
		case w.used:
			w.used = false
			l.expireLaterLocked()
		default:
			l.closeLocked(w)
		}
	}
}

// Broke says that the watch has ended with err, and may have missed something.
func (w *Watch) Broke(err error) {
	l := w.l
	l.lock()
	defer l.unlock()
	if l.need == w { // else it was closed, or nobody asks anew
		l.stale, l.broke = true, err
	}
	l.forgetLocked(w)
}

// allLocked is the range of all entries.
func (l *List) allLocked() (from, to string) {
	from, _ = keyspace.Exclusives(l.Name)
	_, to = keyspace.Shareds(l.Name)
	return from, to
}
