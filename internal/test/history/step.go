package history

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// What happened to an acquisition in its process. The words are those of
// model/lock.pml, whose transitions CheckTrace follows.
type What uint8

// The steps of an acquisition, and the end of a session.
const (
	Enqueued  What = iota // it is in the queue, as its process knows
	Granted               // it has the lock
	GaveBack              // its owner has given the lock back: the removal of its entry begins
	Abandoned             // it was given up before it had the lock
	Lost                  // its process knows that it has lost the lock
	Ended                 // the session has ended, as far as it knows; of no lock
)

func (w What) String() string {
	return [...]string{"is in the queue", "is granted", "gives the lock back", "is abandoned", "has lost the lock", "has ended"}[w]
}

// A Step is something that happened to an acquisition, or to a session, in its
// process. Steps are ordered by their times, which are readings of one clock.
type Step struct {
	What  What
	At    time.Time
	Name  string // of the lock
	Token int64  // 0 where the entry is not known
	Lease int64
	// WithSession is of Lost: the session has ended. If that came later than At, the owner had released the lock, and was
	// told of the loss since the removal was not confirmed.
	WithSession bool
}

func (s Step) String() string {
	if s.What == Ended {
		return fmt.Sprintf("at %s the session of lease %x has ended", s.At.Format(clock), s.Lease)
	}
	return fmt.Sprintf("at %s the acquisition %d of %s %s", s.At.Format(clock), s.Token, s.Name, s.What)
}

// CheckTrace follows steps and etcd's history through the model of the protocol:
// each step, and each change in etcd, must be one that the model allows from the state
// that it is in. It returns those that are not. Both must be complete.
//
// The order of etcd's changes is known, and so is that of the steps. Between the
// two it is known only that a change was carried out before an observer heard of it.
// So a change is followed as late as can be: when a step needs it, or when it had been
// heard of. If any order of all is allowed, then this one is: a step never
// forbids a change that comes after it, unless it would forbid it before as well.
func (l *Log) CheckTrace(steps []Step, claims []Claim) (problems []string) {
	return l.checkTrace(steps, claims, false)
}

// CheckPart is CheckTrace for a part of a run, of whose end nothing is known, and in which others may
// remove any entry at any time, as they may in the model. What has happened to locks that are not in the
// log is passed over; locks is how many were followed.
func (l *Log) CheckPart(steps []Step) (locks int, problems []string) {
	l.mu.Lock()
	names := map[string]bool{}
	for _, e := range l.entries {
		names[e.Name] = true
	}
	l.mu.Unlock()
	followed := map[string]bool{}
	steps = slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.What != Ended && !names[s.Name] })
	for _, s := range steps {
		followed[s.Name] = true
	}
	return len(followed), l.checkTrace(steps, nil, true)
}

func (l *Log) checkTrace(steps []Step, claims []Claim, part bool) (problems []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	steps = slices.Clone(steps)
	slices.SortStableFunc(steps, func(a, b Step) int { return a.At.Compare(b.At) })
	byLock := l.movesLocked(slices.Concat(l.writes, claims))
	ended := map[int64]time.Time{}
	for _, s := range steps {
		if _, before := ended[s.Lease]; s.What == Ended && !before {
			ended[s.Lease] = s.At
		}
	}
	for i, s := range steps {
		if end, ok := ended[s.Lease]; ok && s.WithSession && s.At.Before(end) {
			steps[i].What = GaveBack
		}
	}
	// An acquisition that never knew its entry has no step here: if there is one, it is
	// a late write, which nobody is granted and which is removed.
	steps = slices.DeleteFunc(steps, func(s Step) bool { return s.What == Ended || s.Token == 0 })
	traces := map[string]*trace{}
	for lock, moves := range byLock {
		traces[lock] = newTrace(moves, ended, l.leases, part)
	}
	for _, s := range steps {
		if t := traces[s.Name]; t != nil && t.all[s.Token] != nil {
			a := t.all[s.Token]
			a.told, a.coming = true, append(a.coming, s.What)
		}
	}
	for _, s := range steps {
		if t := traces[s.Name]; t != nil {
			t.step(s)
		} else {
			problems = append(problems, fmt.Sprintf("%s: etcd never had an entry of this lock", s))
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(traces)) {
		traces[lock].finish()
		problems = append(problems, traces[lock].problems...)
	}
	return problems
}
