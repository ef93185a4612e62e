// Who has the lock.

package waitlist

import (
	"errors"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// entitledLocked decides I1: the views are about all that may block e; no key of another session there blocks e; no entry of
// the list does; and e was in the queue when all that is not there had gone. See the package's comment for why this is enough.
func (l *List) entitledLocked(e *Entry) bool {
	return l.completeLocked(e) && l.clearLocked(e) && !l.behindOwnLocked(e) && l.seenLocked(e) >= l.at
}

// behindOwnLocked reports whether e waits for an entry of the list.
func (l *List) behindOwnLocked(e *Entry) bool {
	inWay := func(o *Entry) bool { return o.rev < e.rev && !o.over() && queue.Blocks(o.kind, e.kind) }
	return slices.ContainsFunc(l.entries, inWay)
}

// over reports whether the entry is in nobody's way, wherever its key is.
func (e *Entry) over() bool { return e.state == left || e.state == missing }

// overLocked reports whether q is a key of an entry of the list that is over.
func (l *List) overLocked(q queue.Entry) bool {
	e := l.ownLocked(q)
	return e != nil && e.over()
}

// seenLocked is the last revision at which the entry is known to have been in the queue, also because a watch that
// would have told of its end did not.
func (l *List) seenLocked(e *Entry) int64 {
	seen := e.seen
	for _, w := range l.open {
		if w.tells(e.keys[0], e.seen) {
			seen = max(seen, w.told)
		}
	}
	return seen
}

// grantLocked grants what is entitled, the front-most first, and has the rest asked for.
func (l *List) grantLocked() {
	for _, e := range l.entries {
		if e.state == waiting && l.entitledLocked(e) {
			e.state = held
			e.tell()
		}
		if e.kind == keyspace.Exclusive && !e.over() {
			break // those behind it are no better off
		}
	}
	l.contendLocked()
	l.agentLocked()
}

// ErrRemoved says that an entry was removed from the queue.
var ErrRemoved = errors.New("entry removed")

// Wake has a value when the entry has the lock, or waits in vain, or when what BehindLeft reports may have changed.
// It tells of what happens from its first call on, or from the time at which BehindLeft was true.
func (e *Entry) Wake() chan struct{} {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.wakeLocked()
}

func (e *Entry) wakeLocked() chan struct{} {
	if e.wake == nil {
		e.wake = make(chan struct{}, 1)
	}
	return e.wake
}

func (e *Entry) tell() {
	select {
	case e.wake <- struct{}{}:
	default: // it was told, and has not looked yet; or nobody will
	}
}

// Granted reports whether the entry has the lock.
func (e *Entry) Granted() bool {
	granted, _ := e.Outcome()
	return granted
}

// Outcome reports whether the entry has the lock, or why it waits in vain: ErrRemoved, or what etcd has refused with.
func (e *Entry) Outcome() (granted bool, err error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	switch e.state {
	case held:
		return true, nil
	case missing, removing: // the latter before its owner knew that it had the lock
		return false, ErrRemoved
	}
	if e.err != nil {
		return false, *e.err
	}
	return false, nil
}

// WhenContended has signal called as soon as another entry of the list waits for what the entry excludes,
// which has the lock. It is called once or more, with the list's mutex held: it is only to close a channel,
// or the like.
func (e *Entry) WhenContended(signal func()) {
	e.l.lock()
	defer e.l.unlock()
	e.contended = signal
	e.l.contendLocked()
}

// contendLocked tells those that are waited for.
func (l *List) contendLocked() {
	for i, e := range l.entries {
		waits := func(o *Entry) bool { return o.state == waiting && queue.Blocks(e.kind, o.kind) }
		if e.contended != nil && e.state == held && slices.ContainsFunc(l.entries[i+1:], waits) {
			e.contended()
			e.contended = nil
		}
	}
}
