package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// A story writes a line for each turn at one lock, as soon as everything about the turn
// is known. For readers that is when the next writer has the lock, because more
// readers may join until then.
type story struct {
	rec  *record
	rw   bool
	zero time.Time // when the demo's time began
	told int       // number of turns with a line
	over bool      // nobody will queue any more
}

// columns are the widths of holders and tokens. A turn of readers has several of both.
func (s *story) columns() (holders, tokens int) {
	if s.rw {
		return 21, 16
	}
	return 7, 7
}

func (s *story) header() screen.Line {
	holders, tokens := s.columns()
	return screen.Line{screen.Dim("  " + screen.Pad("time", -7) + "  " + screen.Pad("holds", holders) + screen.Pad("token", -tokens) + screen.Pad("hand-over", -11) + "  waiting, by place")}
}

// next returns the lines of the turns that have become known.
func (s *story) next() []screen.Line {
	var lines []screen.Line
	acqs := s.rec.ordered()
	turns := turnsOf(acqs)
	for ; s.told < len(turns) && s.known(turns, s.told); s.told++ {
		lines = append(lines, s.tell(acqs, turns, s.told))
	}
	return lines
}

// known reports whether everything for the line of turn i is known.
func (s *story) known(turns []turn, i int) bool {
	inside := func(a *acquisition) bool { return !a.granted.IsZero() && a.begin != 0 }
	gone := func(a *acquisition) bool { return a.gone != 0 && !a.left().IsZero() }
	complete := !turns[i].shared() || s.over || i+1 < len(turns) && turns[i+1].all(inside)
	return complete && turns[i].all(inside) && (i == 0 || turns[i-1].all(gone))
}

func (s *story) tell(acqs []*acquisition, turns []turn, i int) screen.Line {
	t := turns[i]
	tokens := make([]string, len(t))
	in := int64(0) // the revision at which the whole turn was in
	for j, a := range t {
		tokens[j] = fmt.Sprint(a.token)
		in = max(in, a.begin)
	}
	passed := "-" // nobody had waited
	if i > 0 {
		if d, ok := handover(turns[i-1], t); ok {
			passed = millis(d)
		}
	}
	holders, width := s.columns()
	return screen.Line{
		s.stamp(t.start()),
		screen.Bold(t.names(" ")),
		screen.Plain(screen.Pad(s.how(t), holders-len(t.names(" "))) + " "),
		screen.Plain(screen.Pad(strings.Join(tokens, " "), 1-width)),
		screen.Green(screen.Pad(passed, -11)),
		screen.Plain("  " + places(waitingAt(acqs, t.last(), in))),
	}
}

// how says how a turn holds the lock.
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
		return " in a row" // each came when the one before had left
	}
	return " overlapping"
}

// places writes who waits in which place. Readers that will be granted together share
// a place.
func places(waiting []turn) string {
	ps := make([]string, len(waiting))
	for i, t := range waiting {
		ps[i] = fmt.Sprintf("%d %s", i+1, t.names(","))
	}
	return strings.Join(ps, "  ")
}

func (s *story) note(at time.Time, what string) screen.Line {
	return screen.Line{s.stamp(at), screen.Red(what)}
}

func (s *story) stamp(at time.Time) screen.Span {
	return screen.Dim("  " + screen.Pad(seconds(at.Sub(s.zero)), -7) + "  ")
}

// sum is the last line about a lock.
func (s *story) sum() screen.Line {
	ds := handovers(s.rec.ordered())
	if len(ds) == 0 {
		return screen.Text("  no hand-overs")
	}
	return screen.Text(fmt.Sprintf("  hand-overs, Unlock called to Lock returned: %d, median %s, longest %s",
		len(ds), millis(ds[len(ds)/2]), millis(slices.Max(ds))))
}

func millis(d time.Duration) string {
	if d < 100*time.Microsecond {
		return "< 0.1 ms" // the clock does not show less
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
