package history

import (
	"fmt"
	"slices"
	"time"
)

// A Sample is an answer of Held.Valid, that the hold was valid, to a question
// that was asked at the time Asked or later. Key is what the hold was known by
// after that.
type Sample struct {
	Worker int
	Key    string
	Token  int64
	Asked  time.Time
}

// CheckValid looks for holds that were valid after their entry was gone. It
// returns a problem for each that nobody else's interference excuses, and for the
// rest by how much the worst was late: after a revocation or a deletion by
// somebody else it takes a moment until the holder can know.
//
// What this proves: all clocks are that of this process, whose readings are
// ordered (Go compares the monotonic ones). An observer heard of the deletion at
// GoneSeen, so it had been carried out by then. Valid was called after Asked, and
// said yes at some moment of its own, later still. So if Asked is after GoneSeen,
// then the hold was valid after its entry was gone, for certain, however busy the
// machine was: it takes no margin. The other way round nothing is proved: a hold
// that was valid for less long than the news took is not found. That is why there
// is an observer at each member, and the first to hear of it counts.
func (l *Log) CheckValid(samples []Sample) (problems []string, excused time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.byIDLocked()
	worst := map[*Entry]Sample{}
	for _, s := range samples {
		e := all[entryID{s.Key, s.Token}]
		if e == nil {
			problems = append(problems, fmt.Sprintf("worker %d has a hold by %s (created at %d), which etcd never had", s.Worker, s.Key, s.Token))
		} else if e.Gone != 0 && s.Asked.After(e.GoneSeen) && s.Asked.After(worst[e].Asked) {
			worst[e] = s
		}
	}
	for e, s := range worst {
		late := s.Asked.Sub(e.GoneSeen)
		if e.Foreign || l.leases[e.Lease] {
			excused = max(excused, late)
			continue
		}
		problems = append(problems, fmt.Sprintf("worker %d was told that its hold by %s was valid, %v or more after it was gone (at revision %d)", s.Worker, e, late, e.Gone))
	}
	slices.Sort(problems)
	return problems, excused
}
