// Who has the lock.

package waitlist

import (
	"errors"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// entitledLocked decides whether p has the lock (I1): the views are about all that may block p; no key of another session there
// blocks p; nor does an entry of the list that is not over; and p was still in the queue when every key that is missing from the
// views had been deleted. See the package's comment for why this is enough.
func (l *List) entitledLocked(p *Part) bool {
	return l.viewsCoverLocked(p) && !l.behindOthersLocked(p) && !l.behindOwnLocked(p) && l.lastSeenLocked(p) >= l.goneBy
}

// behindOwnLocked reports whether an entry of the list that is not over blocks p.
func (l *List) behindOwnLocked(p *Part) bool {
	inWay := func(o *Part) bool { return o.rev < p.rev && !o.over() && queue.Blocks(o.kind, p.kind) }
	return slices.ContainsFunc(l.parts, inWay)
}

// waits reports whether the entry does not have the lock yet, and can still get it: also one for which etcd has refused a request
// gets it if another entry of the list hands it over.
func (p *Part) waits() bool { return p.state == waiting || p.state == idle || p.state == refused }

// over reports whether the entry is in nobody's way, wherever its key is.
func (p *Part) over() bool { return p.state == left || p.state == evicted }

// lastSeenLocked is the last revision at which the entry is known to have been in the queue, also because a watch that
// would have told of the deletion of its key has told of a later one. Of a write lock's keys that is the exclusive one.
func (l *List) lastSeenLocked(p *Part) int64 {
	seen := p.seen
	for _, w := range l.watches {
		if w.tells(p.keys[0], p.seen) {
			seen = max(seen, w.told)
		}
	}
	return seen
}

// grantLocked grants what is entitled, the front-most first, and has the rest asked for.
func (l *List) grantLocked() {
	for _, p := range l.parts {
		if p.waits() && l.entitledLocked(p) {
			p.state = granted
			p.wakeUp()
		}
		if p.kind == keyspace.Exclusive && !p.over() {
			break // only a shortcut: those behind it are not entitled either
		}
	}
	l.contendLocked()
	l.agentLocked()
}

// ErrRemoved says that an entry was removed from the queue.
var ErrRemoved = errors.New("entry removed")

// Woken has a value when the entry has the lock, or waits in vain, or when what BehindLeft reports may have changed.
// It tells of what happens from its first call on, or from the time at which BehindLeft was true.
func (p *Part) Woken() chan struct{} {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return p.wakeLocked()
}

func (p *Part) wakeLocked() chan struct{} {
	if p.wake == nil {
		p.wake = make(chan struct{}, 1)
	}
	return p.wake
}

func (p *Part) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // it was told, and has not looked yet; or nobody will
	}
}

// Granted reports whether the entry has the lock.
func (p *Part) Granted() bool {
	granted, _ := p.Outcome()
	return granted
}

// Outcome reports whether the entry has the lock, or why it waits in vain: ErrRemoved, or what etcd has refused with.
func (p *Part) Outcome() (bool, error) {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	switch p.state {
	case granted:
		return true, nil
	case evicted, removing: // removing: the entry was granted, and lost before its owner has asked
		return false, ErrRemoved
	case refused:
		return false, p.l.refusal
	}
	return false, nil
}

// WhenContended has signal called, at most once, as soon as the entry has the lock and another entry of the list waits behind it.
// signal is called with the list's mutex held: it must only close a channel, or the like.
func (p *Part) WhenContended(signal func()) {
	p.l.lock()
	defer p.l.unlock()
	p.contended = signal
}

// contendLocked tells those that are waited for.
func (l *List) contendLocked() {
	for i, p := range l.parts {
		waits := func(o *Part) bool { return o.waits() && queue.Blocks(p.kind, o.kind) }
		if p.contended != nil && p.state == granted && slices.ContainsFunc(l.parts[i+1:], waits) {
			p.contended()
			p.contended = nil
		}
	}
}
