package waitlist

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A view stays if it was listed later than the reply that comes, also if etcd was asked since watches may be silent. Else
// keys would be back that had gone by then, and an entry would wait for the watch that has not told of them.
func TestOlderThanTheView_V2(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	first := s.enqueue("a/5")
	s.ask()
	s.l.Refresh()
	step := s.step()
	require.Equal(t, Read, step.Do)
	seen := s.listing(&step, s.now)
	s.remove("a/7") // the watch does not tell
	second := s.enqueue("a/5-1")
	s.granted(first, true)
	s.l.Saw(&step, seen)
	s.leave(first)
	s.granted(second, true)
}

// So does a view that does not reach as far as the reply. The entry is read for when it comes to the front.
func TestOlderThanAShortView_V2(t *testing.T) {
	s := newScene(t)
	s.l.UpLimit = 1 // so that the front is read for downward
	s.put("a/7")
	first := s.enqueue("a/5")
	s.ask()
	second := s.register("a/5-1")
	seen := s.shown(second.kind)
	seen.At = s.put("a/5-1")
	seen.UpTo = seen.At
	s.remove("a/7") // the watch does not tell
	s.l.Refresh()
	s.ask()
	s.granted(first, true)
	second.Enqueued(seen.At, seen)
	s.leave(first)
	s.ask()
	s.granted(second, true)
}

// What a watch tells while a reading is on its way does not make the reply worthless: it is read through the log.
func TestUsedThoughAWatchHasToldMore_V2(t *testing.T) {
	s := newScene(t)
	s.size = ManyShare + 1
	s.put("a/6")
	s.put("a/7")
	p, second := s.enqueue("a/5"), s.enqueue("a/5-1") // so the view reaches further than what is read for p
	s.leave(second)
	s.remove("a/7")
	step := s.step()
	require.Equal(t, Open, step.Do)
	s.answer(&step)
	step = s.step()
	require.Equal(t, Read, step.Do)
	require.False(t, step.Upward)
	seen := s.listing(&step, s.now)
	s.tell(s.l.watches[0], "a/6")
	s.l.Saw(&step, seen)
	s.granted(p, true)
}

// V3: an entry of the process before has its lock by a reading that is as new as what the list knows. It has not by an older one, if
// its end was told since: also if another entry has the lock since then, and the list has forgotten what it knew while it waited.
func TestAdoptedBeforeItsEndIsTold_V3(t *testing.T) {
	for _, told := range []bool{false, true} {
		s := newScene(t)
		rev := s.put("a/5-1")
		last := s.blind("a/5")
		s.l.Opened(newWatch("a/5", "a/s", 1)) // by a member that lags
		s.ask()
		read := s.now
		if told {
			s.tell(s.l.watches[0], "a/5-1")
		}
		p := s.register("a/5-1")
		seen := Shown(read, rev, nil, true)
		p.Enqueued(rev, &seen)
		if !told {
			s.granted(p, true)
			continue
		}
		s.ask()
		s.gone(p)
		s.granted(last, true)
	}
}

// The guard of a reader does not ask for an entry that is being downgraded. That has the lock under its shared key, which no reading
// for a reader shows, and its own request tells what becomes of it.
func TestGuard_OfOneThatIsDowngraded(t *testing.T) {
	s := newScene(t)
	h, p := s.enqueue("a/5", "a/r5"), s.enqueue("a/r5-1")
	require.Empty(t, s.ask())
	h.Downgrading()
	s.l.reach = 1 // so that the reader is read for downward
	s.put("x")    // so that what was seen is older than the watch
	s.l.tick()
	require.LessOrEqual(t, len(s.ask()), 2)
	h.Downgraded(s.remove("a/5"), nil, nil)
	s.ask()
	s.granted(p, true)
}

// V4: an own entry may have the key that the process before had, on a lease that was adopted. That the own entry has left says that the
// key has gone which a view, or a late reply, shows from before: who was behind may have been removed before that key.
func TestKeyOfTheProcessBefore_V4(t *testing.T) {
	for _, late := range []bool{false, true} {
		s := newScene(t)
		s.put("a/5")
		p := s.enqueue("a/r5")
		if late {
			p.Leave(false)
			p = s.blind("a/5-1")
		}
		s.l.Refresh()
		step := s.step()
		require.Equal(t, Read, step.Do)
		seen := s.listing(&step, s.now)
		if !late {
			s.l.Saw(&step, seen)
		}
		s.remove("a/5", p.Key())
		own := s.register("a/5")
		own.Enqueued(s.put("a/5"), &Listing{At: s.now})
		s.leave(own)
		if late {
			s.l.Saw(&step, seen)
		}
		s.granted(p, false)
		s.ask()
		s.gone(p)
	}
}
