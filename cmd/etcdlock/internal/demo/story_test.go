package demo

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func told(s *story) string {
	var b strings.Builder
	for _, l := range s.next() {
		b.WriteString(strings.TrimRight(l.Text(), " ") + "\n")
	}
	return b.String()
}

func TestStoryMutex(t *testing.T) {
	s := newSim("mutex", "p1", "p2", "p3")
	st := &story{rec: s.rec, zero: simZero}
	a := s.queue("p1")
	require.Empty(t, told(st), "nobody has the lock yet")
	b, c := s.queue("p2"), s.queue("p3")
	s.enter(a)
	require.Equal(t, "   0.00 s  p1          11          -  1 p2  2 p3\n", told(st))
	s.leave(a)
	require.Empty(t, told(st))
	s.enter(b)
	require.Equal(t, "   0.01 s  p2          12     1.2 ms  1 p3\n", told(st))
	s.die(b)
	s.enter(c)
	require.Equal(t, "   2.01 s  p3          13     0.1 ms\n", told(st))
	s.leave(c)
	st.over = true
	require.Empty(t, told(st))
	require.Equal(t, "  hand-overs, Unlock called to Lock returned: 1, median 1.2 ms, longest 1.2 ms", st.sum().Text())
}

// Readers share a line, which comes when the next writer has its turn.
func TestStoryReaders(t *testing.T) {
	s := newSim("rw", "w1", "w2", "r1", "r2", "r3")
	st := &story{rec: s.rec, zero: simZero, rw: true}
	w := s.queue("w1")
	s.enter(w)
	r1, r2, w2, r3 := s.queue("r1"), s.queue("r2"), s.queue("w2"), s.queue("r3")
	s.leave(w)
	require.Equal(t, "   0.00 s  w1 writes                          11          -\n", told(st))
	s.enter(r1)
	s.enter(r2)
	require.Empty(t, told(st))
	s.leave(r1)
	s.leave(r2)
	s.enter(w2)
	require.Equal(t, "   0.01 s  r1 r2 together                  13 14     2.3 ms  1 w2  2 r3\n"+
		"   0.01 s  w2 writes                          15     1.2 ms  1 r3\n", told(st))
	s.leave(w2)
	s.enter(r3)
	s.leave(r3)
	require.Empty(t, told(st), "another reader might still come")
	st.over = true
	require.Equal(t, "   0.02 s  r3 reads                           16     1.2 ms\n", told(st))
}

func TestHow(t *testing.T) {
	s := &story{rw: true}
	r := func(begin, end int64) *acquisition { return &acquisition{shared: true, begin: begin, end: end} }
	require.Equal(t, " together", s.how(turn{r(1, 4), r(2, 5), r(3, 6)}))
	require.Equal(t, " overlapping", s.how(turn{r(1, 3), r(2, 5), r(4, 6)}))
	require.Equal(t, " in a row", s.how(turn{r(1, 2), r(3, 4)}))
}

func TestBoard(t *testing.T) {
	s := newSim("rw", "w1", "w2", "r1", "r2")
	p := &phase{rec: s.rec, spec: spec{rw: true}, ttl: 2 * time.Second}
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	for _, name := range []string{"w1", "w2", "r1", "r2"} {
		p.procs = append(p.procs, &process{job: job{Worker: name, Rounds: 2}, proc: self})
	}
	board := func() string {
		var lines []string
		for _, l := range p.board(s.now) {
			lines = append(lines, l.Text())
		}
		return strings.Join(lines, "\n")
	}
	require.Contains(t, board(), "queue   empty")
	require.Contains(t, board(), "starts")
	for i, w := range p.procs {
		w.lease = 1
		w.rounds = i % 2
	}
	a := s.queue("w1")
	require.Contains(t, board(), "is next")
	s.enter(a)
	r1, r2 := s.queue("r1"), s.queue("r2")
	s.queue("w2")
	require.Contains(t, board(), "queue   w1 ← (r1 r2) ← w2")
	require.Contains(t, board(), "○○   writes with token 11 for 0.00 s")
	require.Contains(t, board(), "●○   waits in place 2, revision 15")
	s.leave(a)
	s.enter(r1)
	s.enter(r2)
	require.Contains(t, board(), "queue   (r1 r2) ← w2")
	require.Contains(t, board(), "reads with token 13")
	require.Contains(t, board(), "works elsewhere")
	r1.killed, p.procs[2].killed = s.now, true
	require.Contains(t, board(), "killed 0.00 s ago; its lease of 2 s still lasts")
}
