package demo

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecord(t *testing.T) {
	s := simRW()
	acqs := s.rec.ordered()
	require.Len(t, acqs, 4)
	require.Empty(t, s.rec.odd)
	require.Empty(t, s.rec.current)
	require.Equal(t, "w1", acqs[0].worker)
	require.False(t, acqs[0].shared, "a write lock's second entry is shared, the lock is not")
	require.True(t, acqs[1].shared)
	for _, a := range acqs {
		require.Greater(t, a.begin, a.token)
		require.Greater(t, a.end, a.begin)
		require.Greater(t, a.gone, a.end)
		require.False(t, a.releasing.Before(a.granted))
	}
	require.Len(t, s.rec.counter, 2)
}

func TestRecordOdd(t *testing.T) {
	for name, spoil := range map[string]func(s *sim, a *acquisition){
		"foreign entry":       func(s *sim, _ *acquisition) { s.put("demo/mutex/abc", "", 77) },
		"entry without lease": func(s *sim, _ *acquisition) { s.put("demo/mutex/abc", "", 0) },
		"entry written again": func(s *sim, _ *acquisition) { s.put("demo/mutex/1", "", 1) },
		"unknown entry gone":  func(s *sim, _ *acquisition) { s.del("demo/mutex/abc") },
		"data deleted":        func(s *sim, _ *acquisition) { s.del(s.rec.paths.counter()) },
		"counter is no JSON":  func(s *sim, _ *acquisition) { s.put(s.rec.paths.counter(), "x", 0) },
		"section is no JSON":  func(s *sim, a *acquisition) { s.put(s.rec.paths.section(a.token), "x", 0) },
		"section of nobody":   func(s *sim, _ *acquisition) { s.put(s.rec.paths.sections()+"x", "{}", 0) },
		"section begun twice": func(s *sim, a *acquisition) { s.put(s.rec.paths.section(a.token), "{}", 0) },
		"other data":          func(s *sim, _ *acquisition) { s.put(s.rec.paths.Data+"/x", "", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim("mutex", "p1")
			a := s.queue("p1")
			s.enter(a)
			s.step()
			require.Empty(t, s.rec.odd)
			spoil(s, a)
			require.Len(t, s.rec.odd, 1)
		})
	}
}

// A token that only a worker claims is not an acquisition.
func TestRecordClaimed(t *testing.T) {
	s := simMutex()
	s.tell(eventGranted, &acquisition{token: 999})
	p := &phase{rec: s.rec}
	l, _ := p.outcome(finalState{})
	require.Len(t, l.acqs, 4)
	require.Len(t, l.claimed, 1)
}
