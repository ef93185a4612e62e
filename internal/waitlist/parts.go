// What an acquisition needs that has entries in several lists.

package waitlist

import "github.com/etcdlock/etcdlock/internal/keyspace"

// WakeWith has the entry wake who waits for another one, before anything can have happened to it. Next
// is asked of all entries that wake together.
func (e *Entry) WakeWith(o *Entry) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.wake = o.wake
}

// Gone reports whether the entry's key is known not to be in etcd, also if it had the lock.
func (e *Entry) Gone() bool {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.state == missing || e.state == leaving
}

// Look is a reading of the present that tells an entry in front what is before it, if there is anything that
// it waits for; then Saw. It is for one that has not been asked for a while.
func (e *Entry) Look() (s Step, ok bool) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.state != waiting || l.frontLocked()[0] != e {
		return Step{}, false
	}
	if l.completeLocked(e) && len(l.belowLocked(e, keyspace.Exclusive, false))+len(l.belowLocked(e, keyspace.Shared, false)) == 0 {
		return Step{}, false
	}
	e.mustRead = true
	s = e.readLocked()
	return s, s.Do == Read // else another one of the list reads
}
