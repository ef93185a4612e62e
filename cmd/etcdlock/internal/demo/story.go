package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A story tells in lines what happens at one lock: one for each turn, as soon as
// all is known of it. Readers' turns are told when the next writer has its own,
// since only then is it known who was among them.
type story struct {
	rec  *record
	rw   bool
	zero time.Time // of the demo's time
	told int       // turns
	over bool      // nobody will come anymore
}

// columns are the widths of holders and tokens; those of readers are several.
func (s *story) columns() (holders, tokens int) {
	if s.rw {
		return 21, 16
	}
	return 7, 7
}

func (s *story) header() line {
	holders, tokens := s.columns()
	return line{{"  " + pad("time", -7) + "  " + pad("holds", holders) + pad("token", -tokens) + pad("hand-over", -11) + "  waiting, by place", dim}}
}

// next returns what can be told now and was not before.
func (s *story) next() []line {
	var lines []line
	acqs := s.rec.ordered()
	turns := turnsOf(acqs)
	for ; s.told < len(turns) && s.known(turns, s.told); s.told++ {
		lines = append(lines, s.tell(acqs, turns, s.told))
	}
	return lines
}

// known reports whether all that the line of turn i needs has been heard of.
func (s *story) known(turns []turn, i int) bool {
	inside := func(a *acquisition) bool { return !a.granted.IsZero() && a.begin != 0 }
	gone := func(a *acquisition) bool { return a.gone != 0 && !a.left().IsZero() }
	complete := !turns[i].shared() || s.over || i+1 < len(turns) && turns[i+1].all(inside)
	return complete && turns[i].all(inside) && (i == 0 || turns[i-1].all(gone))
}

func (s *story) tell(acqs []*acquisition, turns []turn, i int) line {
	t := turns[i]
	tokens := make([]string, len(t))
	in := int64(0) // the revision at which all of the turn were in
	for j, a := range t {
		tokens[j] = fmt.Sprint(a.token)
		in = max(in, a.begin)
	}
	passed := "-" // nobody had waited for it
	if i > 0 {
		if d, ok := handover(turns[i-1], t); ok {
			passed = millis(d)
		}
	}
	holders, width := s.columns()
	return line{
		s.stamp(t.start()),
		{t.names(" "), bold},
		{pad(s.how(t), holders-len(t.names(" "))) + " ", plain},
		{pad(strings.Join(tokens, " "), 1-width), plain},
		{pad(passed, -11), green},
		{"  " + places(waitingAt(acqs, t.last(), in)), plain},
	}
}

// how says in what way a turn has the lock.
func (s *story) how(t turn) string {
	switch {
	case !t.shared() && s.rw:
		return " writes"
	case !t.shared():
		return ""
	case len(t) == 1:
		return " reads"
	}
	switch atOnce(t) {
	case len(t):
		return " together"
	case 1:
		return " in a row" // nobody waited, and one came when the other had left
	}
	return " overlapping"
}

// places writes who waits in which place; readers that will go together share one.
func places(waiting []turn) string {
	ps := make([]string, len(waiting))
	for i, t := range waiting {
		ps[i] = fmt.Sprintf("%d %s", i+1, t.names(","))
	}
	return strings.Join(ps, "  ")
}

func (s *story) note(at time.Time, what string) line {
	return line{s.stamp(at), {what, red}}
}

func (s *story) stamp(at time.Time) span {
	return span{"  " + pad(seconds(at.Sub(s.zero)), -7) + "  ", dim}
}

// sum is the last line of a lock.
func (s *story) sum() line {
	ds := handovers(s.rec.ordered())
	if len(ds) == 0 {
		return text("  no hand-overs")
	}
	return text(fmt.Sprintf("  hand-overs, Unlock called to Lock returned: %d, median %s, longest %s",
		len(ds), millis(ds[len(ds)/2]), millis(slices.Max(ds))))
}

func millis(d time.Duration) string {
	if d < 100*time.Microsecond {
		return "< 0.1 ms" // or not to be told from the clock's order
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
