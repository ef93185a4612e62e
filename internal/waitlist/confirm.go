// What an entry asks when no other session's key is before it: whether it is there, and whether holders of its own
// list are.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// confirmMax is how many entries one reading confirms. Etcd allows 128 operations in a txn.
const confirmMax = 64

// confirmLocked reads whether the entry is still in the queue, where no other session's key is before it,
// together with those that follow it.
func (e *Entry) confirmLocked() Step {
	s := Step{Do: Read}
	for _, p := range e.runLocked(confirmMax) {
		s.Keys, s.At = append(s.Keys, p.Key), max(s.At, p.Rev, p.own.minSeen)
	}
	return s
}

// runLocked are the entry and those of the list that wait behind it with no other session's exclusive entry in between:
// the lock goes from one to the next in memory. runMax at most.
func (e *Entry) runLocked(limit int) (run []place) {
	for _, p := range e.l.places {
		switch {
		case len(run) == limit || p.own == nil && p.Rev > e.rev && p.kind == keyspace.Exclusive:
			return run
		case p.own != nil && p.Rev >= e.rev && p.own.state == waiting && p.Key == p.own.keys[0]:
			run = append(run, p)
		}
	}
	return run
}

// Guard says that the entry has waited for holders of its own list, or idle entries of it, for a while, so that
// it is to watch them and itself: somebody may remove one of them.
func (e *Entry) Guard() {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.guard = true
}

// guardLocked is what to do for holders of the list to leave, or idle entries of it. The first ones are watched and read
// together, and the next ones only when all of those have left: until then they keep the entry no longer.
func (e *Entry) guardLocked() Step {
	l := e.l
	holders := slices.Collect(l.belowLocked(e, true))
	if len(holders) == 0 || !e.guard {
		return Step{Guard: len(holders) > 0}
	}
	holders = holders[:min(len(holders), nextMax)]
	own, first := e.keys[0], holders[0]
	if w := e.watch; w != nil && w.tells(own, l.seenLocked(e)) && w.tells(first.Key, first.seen) {
		return Step{}
	}
	keys := []string{own}
	for _, p := range holders {
		keys = append(keys, p.Key)
	}
	from, to := slices.Min(keys), slices.Max(keys)+"\x00"
	if e.relyOnLocked(from, to) == nil {
		return Step{Do: Open, From: from, To: to}
	}
	return Step{Do: Read, At: max(l.heardLocked(), e.rev), Keys: keys}
}
