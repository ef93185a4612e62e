// What the agent has to do next: the steps that it carries out.

package waitlist

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// Action is what the agent has to do.
type Action uint8

// The actions.
const (
	Wait  Action = iota // nothing: the agent ends, and the list starts another one when there is something
	Read                // From..To, or Keys, and then SawFor
	Open                // a watch on From..To, and then Opened
	Pause               // since a watch has ended with Err, and call Fail
)

// A Step is an action and what it needs.
type Step struct {
	Do  Action
	For *Entry // the entry that this is asked for
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

// Next is what the agent has to do now. If nobody waits any more, ctx ends, and with it what the agent asks.
func (l *List) Next(ctx context.Context) Step {
	l.mu.Lock()
	defer l.unlock()
	if l.agent != ctx {
		return Step{} // it was dismissed, and there may be another one
	}
	s := l.nextLocked()
	switch s.Do {
	case Wait:
		l.dismissLocked()
	case Pause:
		l.broke = nil
	}
	return s
}

func (l *List) nextLocked() Step {
	front := l.frontLocked()
	if l.broke != nil && front[0] != nil {
		return Step{Do: Pause, For: front[0], Err: l.broke}
	}
	for i, e := range front {
		if e == nil {
			break
		}
		if s := e.stepLocked(i, front[0]); s.Do != Wait {
			return s
		}
	}
	return Step{}
}

// stepLocked is what there is to do for the entry at that place of the front. What it shares with those in front of it is
// asked for them.
func (e *Entry) stepLocked(place int, first *Entry) Step {
	l := e.l
	complete := l.completeLocked(e)
	clear := complete && !e.mustRead && !l.behindOthersLocked(e)
	switch {
	case place == 0 && clear && l.seenLocked(e) >= e.minSeen:
		return e.guardLocked()
	case place == 0 && clear:
		return e.confirmLocked()
	case place == 0, place == 1 && (!complete || l.asksMoreLocked(e, first)):
		return e.askLocked()
	case place == 2 && e.readAt == 0:
		return e.readLocked()
	}
	return Step{}
}

// agentLocked starts an agent if there is something to ask, and none is at work. It dismisses the agent when nobody waits.
func (l *List) agentLocked() {
	front := l.frontLocked()
	for _, was := range l.front {
		if was != nil && !slices.Contains(front[:2], was) {
			was.relyLocked(nil)
		}
	}
	l.front = front
	switch {
	case front[0] == nil:
		l.broke = nil // it is no news for those who come
		l.dismissLocked()
	case l.agent == nil && l.nextLocked().Do != Wait:
		ctx, cancel := context.WithCancel(l.Life)
		l.agent, l.dismiss = ctx, cancel
		l.later = append(l.later, func() { l.Ask(ctx, l) })
	}
}

func (l *List) dismissLocked() {
	if l.agent != nil {
		l.later = append(l.later, l.dismiss)
		l.agent, l.dismiss = nil, nil
	}
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
