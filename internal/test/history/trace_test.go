package history

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A story is a run that is made up: etcd's history, and the steps of its processes. Each
// of them takes a millisecond, and an observer hears of a change a millisecond later.
type story struct {
	*script
	ms    int
	steps []Step
}

func newStory() *story { return &story{script: newScript()} }

func (s *story) tick() { s.ms++ }

func (s *story) step(what What, name string, token, lease int64) {
	s.tick()
	s.steps = append(s.steps, Step{What: what, At: at(s.ms), Name: name, Token: token, Lease: lease})
}

// enqueue writes entries of a lease, and has its process know.
func (s *story) enqueue(lease int64, keys ...string) int64 {
	s.tick()
	token := s.put(lease, keys...)
	s.step(Enqueued, "lock/x", token, lease)
	return token
}

func (s *story) all(token, lease int64, what ...What) {
	for _, w := range what {
		s.step(w, "lock/x", token, lease)
	}
}

// remove deletes keys, and has an observer hear of that.
func (s *story) remove(keys ...string) {
	s.tick()
	s.delAt(s.ms, keys...)
}

const xa, xb, xra, xrb = "lock/x/a", "lock/x/b", "lock/x/ra", "lock/x/rb"

// grantedOnceRemoved has an entry granted after somebody else has removed it.
func grantedOnceRemoved(s *story) {
	ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
	s.all(ta, 1, Granted)
	s.log.WillRemove(Entry{Key: xb, Created: tb})
	s.remove(xb)
	s.all(ta, 1, GaveBack)
	s.remove(xa)
	s.all(tb, 2, Granted, Lost)
}

func TestCheckTrace(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(s *story)
		want string // nothing: it is as the model has it
	}{
		{"one after the other", func(s *story) {
			ta := s.enqueue(1, xa)
			s.all(ta, 1, Granted)
			tb := s.enqueue(2, xb)
			s.all(ta, 1, GaveBack)
			s.remove(xa)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xb)
		}, ""},
		{"granted before anybody heard of the deletion", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.all(tb, 2, Granted)
			s.remove(xa)
			s.all(tb, 2, GaveBack)
			s.remove(xb)
		}, ""},
		{"two at a time", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Granted)
			s.all(tb, 2, Granted)
			s.all(ta, 1, GaveBack)
			s.remove(xa)
			s.all(tb, 2, GaveBack)
			s.remove(xb)
		}, "nobody has begun to remove it"},
		{"one that waits is passed", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xb)
			s.all(ta, 1, Granted, GaveBack)
			s.remove(xa)
		}, "nobody has begun to remove it"},
		{"hand-over inside a session", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.all(tb, 1, Granted, GaveBack)
			s.remove(xb)
			s.remove(xa)
		}, ""},
		{"hand-over inside a session that ends before the removal", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(ta, 1, Granted)
			s.all(ta, 1, Lost)
			s.steps[len(s.steps)-1].WithSession = true
			s.all(tb, 1, Granted)
			s.step(Ended, "", 0, 1)
			s.remove(xa, xb)
			s.all(tb, 1, Lost)
		}, ""},
		{"hand-over of a hold that was lost with the session", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(ta, 1, Granted)
			s.step(Ended, "", 0, 1)
			s.all(ta, 1, Lost)
			s.steps[len(s.steps)-1].WithSession = true
			s.all(tb, 1, Granted)
			s.remove(xa, xb)
			s.all(tb, 1, Lost)
		}, "at no revision was it in the queue"},
		{"one that its own session has abandoned is passed", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(ta, 1, Abandoned)
			s.all(tb, 1, Granted)
			s.write(1, xb, tb)
			s.remove(xa)
			s.all(tb, 1, GaveBack)
			s.remove(xb)
		}, ""},
		{"one that its own session abandons later is passed", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(tb, 1, Granted)
			s.write(1, xb, tb)
			s.all(ta, 1, Abandoned)
			s.remove(xa)
			s.all(tb, 1, GaveBack)
			s.remove(xb)
		}, "it has not had the lock"},
		{"one that others have removed is passed before its owner gives it up", func(s *story) {
			ta, tb := s.enqueue(1, xa, xra), s.enqueue(1, xb)
			s.log.WillRemove(Entry{Key: xa, Created: ta})
			s.remove(xa)
			s.all(tb, 1, Granted)
			s.write(1, xb, tb)
			s.all(ta, 1, Abandoned)
			s.remove(xra)
			s.all(tb, 1, GaveBack)
			s.remove(xb)
		}, ""},
		{"one that others have removed is passed, and has the lock later", func(s *story) {
			ta, tb := s.enqueue(1, xa, xra), s.enqueue(1, xb)
			s.log.WillRemove(Entry{Key: xa, Created: ta})
			s.remove(xa)
			s.all(tb, 1, Granted, GaveBack)
			s.remove(xb)
			s.all(ta, 1, Granted, GaveBack)
			s.remove(xra)
		}, "at no revision was it in the queue"},
		{"one that another session has abandoned is passed", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Abandoned)
			s.all(tb, 2, Granted)
			s.write(2, xb, tb)
			s.remove(xa)
			s.all(tb, 2, GaveBack)
			s.remove(xb)
		}, "it has not had the lock"},
		{"hand-over to another session", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xb)
			s.remove(xa)
		}, "at no revision was it in the queue"},
		{"hand-over past another session", func(s *story) {
			ta, tc, tb := s.enqueue(1, xa), s.enqueue(2, "lock/x/c"), s.enqueue(1, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.all(tb, 1, Granted, GaveBack)
			s.remove(xa)
			s.remove(xb)
			s.all(tc, 2, Granted, GaveBack)
			s.remove("lock/x/c")
		}, "nobody has begun to remove it"},
		{"readers together, after a downgrade", func(s *story) {
			ta, tb := s.enqueue(1, xa, xra), s.enqueue(2, xrb)
			s.all(ta, 1, Granted)
			s.remove(xa)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xrb)
			s.all(ta, 1, GaveBack)
			s.remove(xra)
		}, ""},
		{"a reader beside a writer", func(s *story) {
			ta, tb := s.enqueue(1, xa, xra), s.enqueue(2, xrb)
			s.all(ta, 1, Granted)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xrb)
			s.all(ta, 1, GaveBack)
			s.remove(xa, xra)
		}, "at no revision was it in the queue"},
		{"a hold whose entry went by itself", func(s *story) {
			ta := s.enqueue(1, xa)
			s.all(ta, 1, Granted)
			s.remove(xa)
			s.all(ta, 1, Lost)
		}, "nobody has begun to remove it"},
		{"a hold whose session has ended", func(s *story) {
			ta := s.enqueue(1, xa)
			s.all(ta, 1, Granted)
			s.step(Ended, "", 0, 1)
			s.remove(xa)
			s.all(ta, 1, Lost)
		}, ""},
		{"a hold whose session ends after its lease", func(s *story) {
			ta := s.enqueue(1, xa)
			s.all(ta, 1, Granted)
			s.remove(xa)
			s.all(ta, 1, Lost)
			s.step(Ended, "", 0, 1)
		}, "nobody has begun to remove it"},
		{"an entry that somebody removes", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Granted)
			s.log.WillRemove(Entry{Key: xa, Created: ta})
			s.remove(xa)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xb)
			s.all(ta, 1, Lost)
		}, ""},
		{"who waits no more is removed at once", func(s *story) {
			ta := s.enqueue(1, xa)
			s.remove(xa)
			s.all(ta, 1, Abandoned)
		}, ""},
		{"a late write", func(s *story) {
			s.put(1, xa)
			tb := s.enqueue(2, xb)
			s.remove(xa)
			s.all(tb, 2, Granted, GaveBack)
			s.remove(xb)
		}, ""},
		{"a late write that stays", func(s *story) {
			s.put(1, xa)
		}, "left in the end"},
		{"a transaction of a former holder", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(1, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.all(tb, 1, Granted)
			s.write(1, xb, tb)
			s.write(1, xa, ta)
			s.remove(xa)
			s.all(tb, 1, GaveBack)
			s.remove(xb)
		}, "it has not had the lock"},
		{"a transaction of a former holder, after its release", func(s *story) {
			ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
			s.all(ta, 1, Granted, GaveBack)
			s.remove(xa)
			s.all(tb, 2, Granted)
			s.write(1, xa, ta)
			s.all(tb, 2, GaveBack)
			s.remove(xb)
		}, "has had the lock after it"},
		{"one that never had the lock acts", func(s *story) {
			ta := s.enqueue(1, xa)
			s.write(1, xa, ta)
			s.remove(xa)
			s.all(ta, 1, Abandoned)
		}, "it has not had the lock"},
		{"one whose removal its watch did not tell of is granted", func(s *story) {
			grantedOnceRemoved(s)
			s.log.LostEvents(time.Time{}, time.Unix(1<<40, 0))
		}, ""},
		{"one whose removal it was told of is granted", grantedOnceRemoved, "at no revision was it in the queue"},
		{"one that waits for ever", func(s *story) {
			ta := s.enqueue(1, xa)
			s.remove(xa)
			_ = ta
		}, "waiting in the end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStory()
			tc.run(s)
			problems := s.log.CheckTrace(s.steps, nil)
			if tc.want == "" {
				require.Empty(t, problems)
			} else {
				require.NotEmpty(t, problems)
				require.Contains(t, fmt.Sprint(problems), tc.want)
			}
		})
	}
}

// Of a part of a run, somebody may have removed an entry at any time. It counts from when etcd did that, though an
// observer may hear of it later than the session of the entry, which ends by it, and than the next holder.
func TestCheckPart_TheObserverIsLast(t *testing.T) {
	s := newStory()
	ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
	s.all(ta, 1, Granted)
	s.all(tb, 2, Granted)
	s.step(Ended, "", 0, 1)
	s.all(ta, 1, Lost)
	s.remove(xa)
	s.all(tb, 2, GaveBack)
	s.remove(xb)
	_, problems := s.log.CheckPart(s.steps)
	require.Empty(t, problems)
	require.Contains(t, fmt.Sprint(s.log.CheckTrace(s.steps, nil)), "has the lock", "in a whole run it would be known that somebody removes it")
}

// Nor are two holders allowed in a part of a run while the entry of the first is there.
func TestCheckPart_TwoAtATime(t *testing.T) {
	s := newStory()
	ta, tb := s.enqueue(1, xa), s.enqueue(2, xb)
	s.all(ta, 1, Granted)
	s.all(tb, 2, Granted, GaveBack)
	s.remove(xb)
	s.all(ta, 1, GaveBack)
	s.remove(xa)
	_, problems := s.log.CheckPart(s.steps)
	require.Contains(t, fmt.Sprint(problems), "at no revision was it in the queue")
}

// TestCheckTraceNeedsEverything: a trace from which a step or a change in etcd is taken out, or in
// which two that depend on each other are swapped, is refused.
func TestCheckTraceNeedsEverything(t *testing.T) {
	// Each change is heard of at once.
	events := []string{
		"put a", "enqueued a", "granted a", "put b", "enqueued b", "put c", "enqueued c", "gaveback a", "del a", "granted b",
		"gaveback b", "del b", "abandoned c", "del c",
	}
	play := func(t *testing.T, events []string) []string {
		s, tokens := newStory(), map[string]int64{}
		whats := map[string]What{"enqueued": Enqueued, "granted": Granted, "gaveback": GaveBack, "abandoned": Abandoned}
		leases := map[string]int64{"a": 1, "b": 2, "c": 3}
		for rev, e := range []string{"a", "b", "c"} { // as if the puts were always in this order
			tokens[e] = int64(rev)
		}
		for _, e := range events {
			var what, who string
			_, err := fmt.Sscan(e, &what, &who)
			require.NoError(t, err)
			key := "lock/x/" + who
			switch what {
			case "put":
				s.tick()
				tokens[who] = s.put(leases[who], key)
			case "del":
				s.remove(key)
			default:
				token := tokens[who]
				if s.created[key] == 0 {
					token = 1000 // which etcd has not given yet
				}
				s.step(whats[what], "lock/x", token, leases[who])
			}
		}
		return slices.Concat(s.log.odd, s.log.CheckTrace(s.steps, nil))
	}
	require.Empty(t, play(t, events))
	for i := range events {
		require.NotEmpty(t, play(t, slices.Delete(slices.Clone(events), i, i+1)), "without %q", events[i])
	}
	who := func(e string) string { return e[len(e)-1:] }
	swapped := 0
	for i := range events {
		for j := i + 1; j < len(events); j++ {
			if who(events[i]) != who(events[j]) || events[i] == "abandoned c" {
				continue // c's removal may begin before it is told
			}
			swap := slices.Clone(events)
			swap[i], swap[j] = swap[j], swap[i]
			require.NotEmpty(t, play(t, swap), "%q and %q swapped", events[i], events[j])
			swapped++
		}
	}
	require.Greater(t, swapped, 20)
	// Of two acquisitions, what depends on each other.
	for _, pair := range [][2]string{{"gaveback a", "granted b"}, {"del a", "granted a"}, {"put a", "put b"}, {"granted a", "granted b"}} {
		i, j := slices.Index(events, pair[0]), slices.Index(events, pair[1])
		swap := slices.Clone(events)
		swap[i], swap[j] = swap[j], swap[i]
		require.NotEmpty(t, play(t, swap), "%q and %q swapped", pair[0], pair[1])
	}
}
