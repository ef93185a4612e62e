// The agent of a list: the steps that it carries out, and what it says of them.

package waitlist

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// Action is what the agent has to do.
type Action uint8

// The actions.
const (
	Rest Action = iota // nothing: the agent ends, and the list starts another one when there is something
	Read               // From..To, and Keys, and then Saw
	Open               // a watch on From..To, and then Opened
)

// A Step is an action and what it needs. What becomes of it must be said: Saw, Opened, Fail or Dropped.
type Step struct {
	Do  Action
	For *Part // the entry that this is asked for
	Err error // a watch that was needed has ended with: pause before the step

	From, To string // to watch, or to read
	At       int64  // the revision to read at, 0 for the present
	Keys     []string
	// The keys From..To are read in the order of their creation: upward, or downward from Max. At most Limit of them,
	// 0 for all.
	Upward     bool
	Max, Limit int64
	shared     bool  // the shared keys are among From..To
	since      int64 // see flight
	force      bool  // see applyLocked
}

// Next is what the agent has to do now. If nobody waits any more, ctx ends, and with it what the agent asks.
func (l *List) Next(ctx context.Context) Step {
	l.lock()
	defer l.unlock()
	if l.agent != ctx {
		return Step{} // it was dismissed, and there may be another one
	}
	s := l.nextLocked()
	s.Err, l.broke = l.broke, nil
	switch s.Do {
	case Rest:
		l.dismissLocked()
	case Read:
		s.since, s.force, l.stale = l.fliesLocked(nil), l.stale, false
	}
	return s
}

// endLocked says that a step is over.
func (s *Step) endLocked(l *List) {
	if s.Do == Read {
		l.landedLocked(flight{since: s.since})
	}
}

// frontLocked is the first entry that somebody waits for.
func (l *List) frontLocked() *Part {
	if i := slices.IndexFunc(l.parts, func(p *Part) bool { return p.state == waiting }); i >= 0 {
		return l.parts[i]
	}
	return nil
}

// agentLocked starts an agent if there is something to ask, and none is at work. It dismisses the agent when nobody waits.
func (l *List) agentLocked() {
	switch {
	case l.frontLocked() == nil:
		l.broke = nil
		l.relyLocked(nil)
		l.dismissLocked()
	case l.agent == nil && l.nextLocked().Do != Rest:
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

// Listing is what was read for the step, at revision at: the range From..To first, and then each of Keys.
func (s *Step) Listing(at int64, got ...*pb.RangeResponse) *Listing {
	ranged := queue.Entries(got[0].Kvs)
	seen := &Listing{At: at, UpTo: at, Shared: s.shared, More: got[0].More, Keys: ranged, Asked: s.Keys, Size: got[0].Count}
	for _, g := range got[1:] {
		seen.Keys = append(seen.Keys, queue.Entries(g.Kvs)...)
	}
	if !s.Upward {
		seen.UpTo = s.Max
	}
	switch last := len(ranged) - 1; {
	case !seen.More:
	case last < 0:
		seen.UpTo = 0
	case s.Upward: // a write lock's other key may be cut off
		seen.UpTo = ranged[last].Rev - 1
	default:
		seen.Low = ranged[last].Rev
	}
	return seen
}

// Saw takes note of what was read for a step.
func (l *List) Saw(s *Step, seen *Listing) (lost []*Part) {
	l.lock()
	defer l.unlock()
	if s.Upward {
		l.struck, l.reach = 0, 0
		if seen.More {
			l.reach = seen.UpTo
		}
	}
	lost = l.applyLocked(seen, s.force)
	s.endLocked(l)
	return lost
}

// Fail says that a step could not be carried out: the present is read next. If etcd has refused, with err, who waits for
// the entry of the step waits in vain, and it is asked for the next one.
func (l *List) Fail(s *Step, err error) {
	l.lock()
	defer l.unlock()
	s.endLocked(l)
	if l.stale = true; err != nil && s.For.state == waiting {
		s.For.state, l.refusal = refused, err
		s.For.wakeUp()
	}
}

// Dropped says that a step was given up, since nobody waits any more.
func (l *List) Dropped(s *Step) {
	l.lock()
	defer l.unlock()
	s.endLocked(l)
	l.stale = l.stale || s.force
}

// Refresh has the list asked anew, since its watches may be silent, or what it believes is wrong. If the agent has not
// done so since the last Refresh, it is replaced: its request may never return.
func (l *List) Refresh() {
	l.lock()
	defer l.unlock()
	l.refreshLocked()
}

func (l *List) refreshLocked() {
	if l.stale {
		l.dismissLocked()
	}
	l.stale = l.frontLocked() != nil
}

// Awaited is another session's key that the front-most waiter waits for. While the key is there, with its revision, it waits
// rightly, whatever else the list believes. If it waits for nobody, the list is asked anew: such an entry either has the lock
// soon, or never.
func (l *List) Awaited() (q queue.Entry, ok bool) {
	l.lock()
	defer l.unlock()
	p := l.frontLocked()
	if p == nil {
		return q, false
	}
	if keys, _ := l.belowLocked(p); len(keys) > 0 {
		return keys[len(keys)-1], true // the one that leaves last, most often
	}
	if !l.behindOwnLocked(p) {
		l.refreshLocked()
	}
	return q, false
}
