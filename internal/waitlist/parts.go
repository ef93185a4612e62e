// What an acquisition needs that has entries in several lists.

package waitlist

import "slices"

// WakeWith has the entry wake who waits for another one, before anything can have happened to it. Their
// waiter comes to one after the other, and asks Next of that one only: from Begin to Stop. Until then the
// entry is not in front, and those behind it ask for themselves. It may be granted all the same.
func (e *Entry) WakeWith(o *Entry) {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.wake, e.idle = o.wake, true
}

// Begin says that somebody asks Next from now on.
func (e *Entry) Begin() {
	e.l.mu.Lock()
	defer e.l.unlock()
	if e.idle {
		e.idle = false
		e.l.grantLocked()
	}
}

// Gone reports whether the entry's key is known not to be in etcd, also if it had the lock.
func (e *Entry) Gone() bool {
	e.l.mu.Lock()
	defer e.l.unlock()
	return e.state == missing || e.state == leaving
}

// Look is a reading of the present that tells an entry what is before it, if there is anything that it waits
// for; then Saw. It is for one that nobody has asked for a while, and that would be in front else.
func (e *Entry) Look() (s Step, ok bool) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	first := slices.IndexFunc(l.places, func(p place) bool {
		return p.own != nil && p.own.state == waiting && (p.own == e || !p.own.idle)
	})
	if first < 0 || l.places[first].own != e {
		return Step{}, false
	}
	if l.completeLocked(e) && !l.behindOthersLocked(e) {
		return Step{}, false
	}
	e.mustRead = true
	s = e.readLocked()
	return s, s.Do == Read // else another one of the list reads
}
