// Who has the lock, and who is in front of those that wait.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// grantLocked grants what is entitled, the front-most first, and wakes those who have something
// to do then: those who come to the front, and, after a change, those who are there.
func (l *List) grantLocked() {
	var any, exclusive bool // is in the way
	for i := 0; i < len(l.places) && !exclusive; i++ {
		p := l.places[i]
		e := p.own
		passes := !any || e != nil && e.kind == keyspace.Shared
		if e != nil && e.state == waiting && p.Key == e.keys[0] && l.completeLocked(e) && l.seenLocked(e) >= e.minSeen && passes {
			e.state = held
			e.clearBelowLocked()
			i, _ = l.findLocked(p.Entry)
			e.tell()
			l.changed = true
		}
		if p.inWay() {
			any, exclusive = true, p.kind == keyspace.Exclusive
		}
	}
	l.contendLocked()
	front := l.frontLocked()
	for i, e := range front {
		if e != nil && (l.changed || e != l.front[i]) && !l.restsLocked(e) {
			e.tell()
		}
		if was := l.front[i]; was != nil && !slices.Contains(front[:2], was) {
			was.relyLocked(nil)
		}
	}
	l.front, l.changed = front, false
}

// frontLocked are the two front-most entries that wait, and for which somebody asks Next; and, while the
// lock goes from one entry of the list to the next, the one that reads ahead: a hand-over takes less time
// than a reading, so what is below it must be known before its turn. Behind another session's key there is time.
func (l *List) frontLocked() (front [3]*Entry) {
	n := 0
	running := len(l.places) > 0 && l.places[0].own != nil && l.places[0].own.state != waiting
	for _, p := range l.places {
		e := p.own
		running = running && e != nil
		if e == nil || e.state != waiting || e.idle || p.Key != e.keys[0] {
			continue
		}
		switch {
		case n < 2:
			front[n] = e
		case !running || n == upLimit/2:
			return front
		case !l.completeLocked(e):
			front[2] = e
			return front
		}
		n++
	}
	return front
}

// Wake has a value when Next may say something else than it did.
func (e *Entry) Wake() <-chan struct{} { return e.wake }

func (e *Entry) tell() {
	select {
	case e.wake <- struct{}{}:
	default: // it was told, and has not looked yet
	}
}
