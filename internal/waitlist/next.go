// What a waiting entry has to do next: the steps that its owner carries out.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// Action is what a waiting entry has to do.
type Action uint8

// The actions.
const (
	Wait  Action = iota // for Wake, and for the events of its watch if it has one
	Grant               // it has the lock
	Gone                // its key is not in etcd any more
	Read                // From..To, or Keys, and then Saw
	Open                // a watch on From..To, and then Opened
	Pause               // since its watch has ended with Err, and call Fail
)

// A Step is an action and what it needs.
type Step struct {
	Do Action
	// Guard: it waits for entries of its own list only. Where that lasts, it calls Guard.
	Guard bool

	Err error

	From, To string // to watch, or to read; only Keys if From is empty
	At       int64  // the revision to read at, 0 for the present
	Keys     []string
	// The keys From..To are read in the order of their creation: upward from Min, or downward
	// from Max. At most Limit of them, 0 for all.
	Upward   bool
	Min, Max int64
	Limit    int64
	shared   bool // the shared keys are among From..To
}

// Listing is what was read for the step, at revision at: of From..To range, more if there is more
// than the limit, size in all; and those of Keys that are there.
func (s *Step) Listing(at int64, ranged []queue.Entry, more bool, size int64, keys []queue.Entry) *Listing {
	seen := &Listing{At: at, Low: 1, High: at, Asked: s.Keys, Keys: slices.Concat(ranged, keys), Size: size}
	if s.From == "" {
		seen.High = 0
		return seen
	}
	seen.Shared = s.shared
	if s.Upward {
		seen.Low = s.Min
	} else {
		seen.High = s.Max
	}
	switch last := len(ranged) - 1; {
	case !more:
	case last < 0:
		seen.High = seen.Low - 1
	case s.Upward: // a write lock's other key may be cut off
		seen.High = ranged[last].Rev - 1
	default:
		seen.Low = ranged[last].Rev + 1
	}
	if !seen.Shared {
		seen.Size = 0
	}
	return seen
}

// Granted reports whether the entry has the lock.
func (e *Entry) Granted() bool {
	e.l.mu.Lock()
	defer e.l.unlock()
	return e.state == held
}

// Next is what the entry has to do now.
func (e *Entry) Next() Step {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	switch e.state {
	case held:
		return Step{Do: Grant}
	case missing, leaving: // before its owner knew that it had the lock
		return Step{Do: Gone}
	}
	if err := e.broke; err != nil {
		e.broke = nil
		return Step{Do: Pause, Err: err}
	}
	front := l.frontLocked()
	if !slices.Contains(front[:2], e) {
		e.relyLocked(nil)
	}
	complete := l.completeLocked(e)
	clear := complete && !e.mustRead && !l.behindOthersLocked(e)
	switch {
	case e == front[0] && clear && l.seenLocked(e) >= e.minSeen:
		return e.guardLocked()
	case e == front[0] && clear:
		return e.confirmLocked()
	case e == front[0], e == front[1] && (!complete || l.asksMoreLocked(e, front[0])):
		return e.askLocked()
	case e == front[2] && e.readAt == 0:
		return e.readLocked()
	}
	return Step{} // those in front ask
}

// restsLocked reports whether the watches tell of all that e waits for: until then it has nothing to do.
func (l *List) restsLocked(e *Entry) (rests bool) {
	if e.mustRead || !l.completeLocked(e) || !l.trackedLocked(e.ownPlaceLocked()) {
		return false
	}
	for p := range l.belowLocked(e, false) {
		if rests = l.trackedLocked(p); !rests {
			break
		}
	}
	return rests
}

// asksMoreLocked reports whether e waits for another session's key that first, which asks too, does not wait for.
func (l *List) asksMoreLocked(e, first *Entry) bool {
	for p := range l.belowLocked(e, false) {
		if p.Rev > first.rev || !queue.Blocks(p.kind, first.kind) {
			return true
		}
	}
	return false
}
