// What an acquisition needs that has entries in several lists.

package waitlist

import "slices"

// WakeWith has the entry wake who waits for another one, before anything can have happened to it. Their
// waiter comes to one after the other. Until it says Begin nothing is asked for the entry, which is not in front:
// the agent asks for those behind it. It may be granted all the same.
func (e *Entry) WakeWith(o *Entry) {
	wake := o.Wake() // before the mutex is locked: o may be of this list
	e.l.lock()
	defer e.l.unlock()
	e.wake, e.idle = wake, true
}

// Begin says that somebody waits for the entry from now on.
func (e *Entry) Begin() {
	e.l.lock()
	defer e.l.unlock()
	if e.idle {
		e.idle = false
		e.l.grantLocked()
	}
}

// Look is a reading of the present that tells an entry what is before it, if there is anything that it waits
// for; then Saw. It is for one that nobody has asked for a while, and that would be in front else.
func (e *Entry) Look() (s Step, ok bool) {
	l := e.l
	l.lock()
	defer l.unlock()
	first := slices.IndexFunc(l.entries, func(o *Entry) bool { return o == e && e.state == waiting || o.asksLocked() })
	if first < 0 || l.entries[first] != e || l.completeLocked(e) && l.clearLocked(e) {
		return s, false
	}
	s = l.readLocked(e, false)
	s.At, s.since = 0, l.fliesLocked(nil)
	return s, true
}
