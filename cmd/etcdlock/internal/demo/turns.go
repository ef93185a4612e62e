package demo

import (
	"slices"
	"strings"
	"time"
)

// A turn is what holds the lock at a time: one exclusive acquisition, or shared ones
// that are next to each other in the queue.
type turn []*acquisition

// turnsOf divides acquisitions, in the order of their tokens, into turns.
func turnsOf(acqs []*acquisition) []turn {
	var turns []turn
	for i, a := range acqs {
		if n := len(turns); i > 0 && a.shared && acqs[i-1].shared {
			turns[n-1] = append(turns[n-1], a)
		} else {
			turns = append(turns, turn{a})
		}
	}
	return turns
}

func (t turn) shared() bool { return t[0].shared }

// last is the highest token of the turn.
func (t turn) last() int64 { return t[len(t)-1].token }

func (t turn) names(sep string) string {
	names := make([]string, len(t))
	for i, a := range t {
		names[i] = a.worker
	}
	return strings.Join(names, sep)
}

func (t turn) all(is func(*acquisition) bool) bool {
	return !slices.ContainsFunc(t, func(a *acquisition) bool { return !is(a) })
}

// latest is the latest of the times that of returns for its acquisitions.
func (t turn) latest(of func(*acquisition) time.Time) time.Time {
	latest := of(t[0])
	for _, a := range t[1:] {
		if at := of(a); at.After(latest) {
			latest = at
		}
	}
	return latest
}

// start is when the first acquisition of the turn was granted.
func (t turn) start() time.Time {
	start := t[0].granted
	for _, a := range t[1:] {
		if a.granted.Before(start) {
			start = a.granted
		}
	}
	return start
}

// handover is the time from the last call of Unlock in prev until all of t that waited
// at that time have the lock, each by its own clock. ok is false if none waited. If the
// last of prev was killed, there was no call: the time counts from when the demo saw
// that the entry was gone, which may be a moment late.
func handover(prev, t turn) (d time.Duration, ok bool) {
	gone := int64(0)
	for _, a := range prev {
		gone = max(gone, a.gone)
	}
	from := prev.latest(func(a *acquisition) time.Time {
		if !a.killed.IsZero() {
			return a.goneAt
		}
		return a.releasing
	})
	for _, a := range t {
		if a.token < gone {
			d, ok = max(d, a.granted.Sub(from)), true
		}
	}
	return d, ok
}

// waitingAt are the turns that were in the queue at revision rev, behind the
// acquisition with the token after.
func waitingAt(acqs []*acquisition, after, rev int64) []turn {
	var waiting []*acquisition
	for _, a := range acqs {
		if a.token > after && a.token <= rev && (a.gone == 0 || a.gone > rev) {
			waiting = append(waiting, a)
		}
	}
	return turnsOf(waiting)
}

// handovers are the times of all hand-overs, sorted.
func handovers(acqs []*acquisition) []time.Duration {
	var ds []time.Duration
	turns := turnsOf(acqs)
	for i := 1; i < len(turns); i++ {
		if d, ok := handover(turns[i-1], turns[i]); ok && !turns[i-1].killed() {
			ds = append(ds, d)
		}
	}
	slices.Sort(ds)
	return ds
}

func (t turn) killed() bool {
	return slices.ContainsFunc(t, func(a *acquisition) bool { return !a.killed.IsZero() })
}
