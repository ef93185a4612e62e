// Who has the lock, and who is in front of those that wait.

package waitlist

import (
	"errors"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// grantLocked grants what is entitled, the front-most first, and has the rest asked for.
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
		}
		if p.inWay() {
			any, exclusive = true, p.kind == keyspace.Exclusive
		}
	}
	l.contendLocked()
	l.agentLocked()
}

// frontLocked are the two front-most entries that somebody waits for; and, while the
// lock goes from one entry of the list to the next, the one that reads ahead: a hand-over takes less time
// than a reading, so what is below it must be known before its turn. Behind another session's key there is time.
func (l *List) frontLocked() (front [3]*Entry) {
	n := 0
	running := len(l.places) > 0 && l.places[0].own != nil && l.places[0].own.state != waiting
	for _, p := range l.places {
		e := p.own
		running = running && e != nil
		if e == nil || !e.asksLocked() || p.Key != e.keys[0] {
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

// asksLocked reports whether etcd may be asked for the entry.
func (e *Entry) asksLocked() bool { return e.state == waiting && !e.idle && e.err == nil }

// ErrGone says that an entry is not in the queue any more.
var ErrGone = errors.New("entry gone")

// Wake has a value when the entry has the lock, or waits in vain, or when what BehindLeft reports may have changed.
func (e *Entry) Wake() <-chan struct{} { return e.wake }

func (e *Entry) tell() {
	select {
	case e.wake <- struct{}{}:
	default: // it was told, and has not looked yet
	}
}

// Granted reports whether the entry has the lock.
func (e *Entry) Granted() bool {
	granted, _ := e.Outcome()
	return granted
}

// Outcome reports whether the entry has the lock, or why it waits in vain: ErrGone, or what etcd has refused with.
func (e *Entry) Outcome() (granted bool, err error) {
	e.l.mu.Lock()
	defer e.l.unlock()
	switch e.state {
	case held:
		return true, nil
	case missing, leaving: // the latter before its owner knew that it had the lock
		return false, ErrGone
	}
	return false, e.err
}
