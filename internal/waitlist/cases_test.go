package waitlist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// What random worlds find too seldom.

// scene is a list, and an etcd that answers what its agent asks, when the test says so. Watches tell only what the test
// has them tell.
type scene struct {
	*testing.T
	l       *List
	now     int64
	keys    []queue.Entry // in the queue
	before  map[int64][]queue.Entry
	size    int64 // of the queue, if it is larger than that
	timers  []func()
	reading *Step // the last one
}

func newScene(t *testing.T) *scene {
	s := &scene{T: t, l: newList(), now: 1, before: map[int64][]queue.Entry{}}
	s.l.After = func(_ time.Duration, f func()) { s.timers = append(s.timers, f) }
	return s
}

// put writes keys, of another session unless the list knows them.
func (s *scene) put(keys ...string) int64 {
	s.before[s.now] = slices.Clone(s.keys)
	s.now++
	for _, key := range keys {
		s.keys = append(s.keys, queue.Entry{Key: key, Rev: s.now})
	}
	return s.now
}

func (s *scene) remove(keys ...string) int64 {
	s.before[s.now] = s.keys
	s.now++
	s.keys = slices.DeleteFunc(slices.Clone(s.keys), func(q queue.Entry) bool { return slices.Contains(keys, q.Key) })
	return s.now
}

// tell removes keys, and has the watch tell of that.
func (s *scene) tell(w *Watch, keys ...string) (lost []*Part) {
	for _, key := range keys {
		lost = append(lost, w.Heard([]Deletion{{key, s.remove(key)}})...)
	}
	return lost
}

func twoOf(keys []string) (key, shared string) {
	if len(keys) > 1 {
		shared = keys[1]
	}
	return keys[0], shared
}

func register(l *List, kind keyspace.Kind, keys ...string) *Part {
	p := &Part{}
	p.Rekey(twoOf(keys))
	l.Register(p, kind)
	return p
}

func (s *scene) register(keys ...string) *Part {
	p := register(s.l, keyspace.KindOf("a", keys[0]), keys...)
	p.Woken()
	return p
}

// known is what the list knows, if only that it is nothing.
func (s *scene) known() *List {
	s.l.lock()
	s.l.mu.Unlock()
	return s.l
}

// shown is what the txn of an entry shows.
func (s *scene) shown(kind keyspace.Kind) *Listing {
	seen := &Listing{Shared: kind == keyspace.Exclusive, Size: max(s.size, int64(len(s.keys)))}
	for _, q := range s.keys {
		if seen.Shared || keyspace.KindOf("a", q.Key) != keyspace.Shared {
			seen.Keys = append(seen.Keys, q)
		}
	}
	slices.SortFunc(seen.Keys, func(a, b queue.Entry) int { return strings.Compare(a.Key, b.Key) }) // as etcd does
	return seen
}

// enqueue puts an entry into the queue, whose txn shows all that is before it.
func (s *scene) enqueue(keys ...string) *Part {
	p := s.register(keys...)
	s.enqueued(p)
	return p
}

func (s *scene) enqueued(p *Part) {
	seen := s.shown(p.kind)
	seen.At = s.put(p.Keys()...)
	seen.UpTo = seen.At
	p.Enqueued(seen.At, seen)
}

// blind is enqueue by a txn that shows nothing.
func (s *scene) blind(keys ...string) *Part {
	p := s.register(keys...)
	p.Enqueued(s.put(keys...), nil)
	return p
}

// step is what the agent has to do next.
func (s *scene) step() Step {
	if s.known().agent == nil {
		return Step{}
	}
	return s.l.Next(s.l.agent)
}

// ask has the agent at work until there is nothing to ask. It returns what it did.
func (s *scene) ask() (did []string) {
	for step := s.step(); step.Do != Rest; step = s.step() {
		did = append(did, s.answer(&step))
		require.Less(s, len(did), 10, did)
	}
	return did
}

func (s *scene) answer(step *Step) string {
	what, at := "down", s.now
	if step.Do == Open {
		s.l.Opened(newWatch(step.From, step.To, s.now))
		return "watch " + step.From + ".." + step.To
	}
	if step.Upward {
		what = "up"
	}
	if step.Err != nil {
		what = "pause, " + what
	}
	if step.At > 0 {
		at = step.At
		what += fmt.Sprint(" at ", at)
	}
	s.reading = step
	s.l.Saw(step, s.listing(step, at))
	return what
}

// listing is what the reading shows now.
func (s *scene) listing(step *Step, at int64) *Listing {
	var ranged, asked []queue.Entry
	keys := s.keys
	if at < s.now {
		keys = s.before[at]
	}
	for _, q := range keys {
		if step.From <= q.Key && q.Key < step.To && (step.Upward || q.Rev <= step.Max) {
			ranged = append(ranged, q)
		}
		if slices.Contains(step.Keys, q.Key) {
			asked = append(asked, q)
		}
	}
	slices.SortFunc(ranged, byRev)
	if !step.Upward {
		slices.Reverse(ranged)
	}
	more := step.Limit > 0 && int64(len(ranged)) > step.Limit
	if more {
		ranged = ranged[:step.Limit]
	}
	return step.Listing(at, reply(ranged, more, max(int(s.size), len(s.keys))), reply(asked, false, 0))
}

// leave releases or withdraws an entry, and removes it.
func (s *scene) leave(p *Part) {
	next := p.Leave(false)
	s.removed(p, next, true)
}

func (s *scene) removed(p *Part, next []queue.Entry, found bool) {
	at := s.remove(p.Keys()...)
	there := slices.DeleteFunc(slices.Clone(next), func(q queue.Entry) bool { return !slices.Contains(s.keys, q) })
	p.Removed(at, found, next, there)
}

func (s *scene) granted(p *Part, want bool) {
	s.Helper()
	granted, err := p.Outcome()
	require.NoError(s, err)
	require.Equal(s, want, granted)
}

func (s *scene) gone(p *Part) {
	s.Helper()
	_, err := p.Outcome()
	require.ErrorIs(s, err, ErrRemoved)
}

// The predicate, clause by clause: each alone keeps an entry from its lock.
func TestEntitled_I1(t *testing.T) {
	const rev = 10
	own := func(l *List, key string, state state) *Part {
		p := &Part{l: l, keys: [2]string{key}, kind: keyspace.KindOf("a", key), rev: 5, state: state}
		l.parts = append([]*Part{p}, l.parts...)
		return p
	}
	clauses := []struct {
		name              string
		change            func(l *List, p *Part)
		exclusive, shared bool // entitled all the same
	}{
		{"all is well", func(*List, *Part) {}, true, true},
		{"it was seen when the last one had gone", func(l *List, _ *Part) { l.goneBy = 20 }, true, true},
		{"it was not seen since something had gone", func(l *List, _ *Part) { l.goneBy = 21 }, false, false},
		{"a watch would have told that it is not there", func(l *List, _ *Part) {
			l.goneBy, l.watches = 21, []*Watch{{From: "a/", To: "a0", At: 20, told: 21}}
		}, true, true},
		{"a watch that is younger than that would not", func(l *List, _ *Part) {
			l.goneBy, l.watches = 22, []*Watch{{From: "a/", To: "a0", At: 21, told: 22}}
		}, false, false},
		{"a watch on others would not", func(l *List, _ *Part) {
			l.goneBy, l.watches = 21, []*Watch{{From: "a/6", To: "a/7", At: 20, told: 21}, {From: "a/4", To: "a/5", At: 20, told: 21}}
		}, false, false},
		{"nobody knows what exclusive keys are far below", func(l *List, _ *Part) { l.views[0].low = 1 }, false, false},
		{"nobody knows what exclusive keys are next below", func(l *List, _ *Part) { l.views[0].upTo = rev - 1 }, false, false},
		{"nobody knows what shared keys are far below", func(l *List, _ *Part) { l.views[1].low = 1 }, false, true},
		{"nobody knows what shared keys are next below", func(l *List, _ *Part) { l.views[1].upTo = rev - 1 }, false, true},
		{"an exclusive key is below", func(l *List, _ *Part) { l.views[0].keys = []queue.Entry{{Key: "a/7", Rev: 5}} }, false, false},
		{"a shared key is below", func(l *List, _ *Part) { l.views[1].keys = []queue.Entry{{Key: "a/r7", Rev: 5}} }, false, true},
		{"keys are above", func(l *List, _ *Part) { l.views[0].keys = []queue.Entry{{Key: "a/7", Rev: 11}} }, true, true},
		{"an own key of another revision is below", func(l *List, _ *Part) {
			own(l, "a/5", left)
			l.views[0].keys = []queue.Entry{{Key: "a/5", Rev: 4}}
		}, false, false},
		{"another session's key is below, with the revision of an own entry that was released", func(l *List, _ *Part) {
			own(l, "a/5", left)
			l.views[0].keys = []queue.Entry{{Key: "a/7", Rev: 5}}
		}, false, false},
		{"an own entry is below that was released", func(l *List, _ *Part) {
			own(l, "a/5", left)
			l.views[0].keys = []queue.Entry{{Key: "a/5", Rev: 5}}
		}, true, true},
		{"that was lost while it waited", func(l *List, _ *Part) { own(l, "a/5", evicted) }, true, true},
		{"that waits", func(l *List, _ *Part) { own(l, "a/5", waiting) }, false, false},
		{"that has the lock", func(l *List, _ *Part) { own(l, "a/5", granted) }, false, false},
		{"that left with a fence", func(l *List, _ *Part) { own(l, "a/5", removing) }, false, false},
		{"a reader that has the lock", func(l *List, _ *Part) { own(l, "a/r5", granted) }, false, true},
	}
	for _, c := range clauses {
		for _, kind := range []keyspace.Kind{keyspace.Exclusive, keyspace.Shared} {
			l := newList()
			l.knowledge = &knowledge{}
			p := &Part{l: l, keys: [2]string{"a/5-1"}, kind: kind, rev: rev, seen: 20, state: waiting}
			l.parts, l.goneBy = []*Part{p}, 20
			l.views = [2]view{{listed: 15, upTo: rev}, {listed: 15, upTo: rev}}
			c.change(l, p)
			require.Equal(t, map[keyspace.Kind]bool{keyspace.Exclusive: c.exclusive, keyspace.Shared: c.shared}[kind], l.entitledLocked(p), "%s, kind %v", c.name, kind)
		}
	}
}

// An entry whose txn has not shown what was below may have been removed while another session's key,
// which nobody knew of, was still in its way. So that a later reading shows nothing below does not do: it
// has to show the entry.
func TestCompleteLater_V4(t *testing.T) {
	for name, learn := range map[string]func(s *scene, p *Part, rev int64, at *Listing){
		"before a reading": func(s *scene, p *Part, rev int64, at *Listing) {
			p.Enqueued(rev, nil)
			s.l.Saw(&Step{}, at)
		},
		"after it": func(s *scene, p *Part, rev int64, at *Listing) {
			s.l.Saw(&Step{}, at)
			p.Enqueued(rev, nil)
		},
		"after it, with what is gone by then": func(s *scene, p *Part, rev int64, at *Listing) {
			s.l.Saw(&Step{}, at)
			p.Enqueued(rev, &Listing{At: rev, UpTo: rev, Keys: []queue.Entry{{Key: "a/5", Rev: 2}, {Key: "a/7", Rev: 3}}})
		},
	} {
		for _, key := range []string{"a/r5", "a/5-1"} {
			t.Run(name+" "+key, func(t *testing.T) {
				s := newScene(t)
				h := s.enqueue("a/5")
				s.granted(h, true)
				s.put("a/7")
				p := s.register(key)
				rev := s.put(key)
				s.remove(key)
				at := s.remove("a/7")
				learn(s, p, rev, &Listing{At: at, UpTo: at, Shared: p.kind == keyspace.Exclusive, Keys: []queue.Entry{{Key: "a/5", Rev: 2}}})
				h.Leave(false)
				granted, _ := p.Outcome()
				require.False(t, granted)
				s.ask()
				s.gone(p)
			})
		}
	}
}

// A reading is behind what a watch tells meanwhile. What it shows, and the watch has told of, is not there; what
// comes under the same key since then is.
func TestToldDuringAReading_V3(t *testing.T) {
	s := newScene(t)
	s.put("a/6")
	s.put("a/7")
	first := s.enqueue("a/5")
	s.ask()
	w := s.l.watches[0]
	second := s.blind("a/5-1")
	s.l.Refresh()
	step := s.step()
	require.Equal(t, Read, step.Do)
	seen := s.listing(&step, s.now)
	s.tell(w, "a/6")
	s.put("a/6")
	for range 200 { // far more than it keeps of what no request can be behind
		s.tell(w, "a/8")
	}
	s.l.Saw(&step, seen)
	require.Equal(t, []queue.Entry{{Key: "a/7", Rev: 3}, {Key: "a/5", Rev: 4}, {Key: "a/5-1", Rev: 5}}, s.l.views[0].keys)
	require.Empty(t, s.l.heard, "no request is on its way")
	require.Empty(t, s.ask())
	s.tell(w, "a/7")
	s.granted(first, true)
	s.leave(first)
	s.granted(second, true)
}

// Whoever was behind such a key has to have been there when it had gone.
func TestThereWhenTheToldHadGone_V3(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	s.put("a/7")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now))
	w := s.l.watches[0]
	p := s.blind("a/5-1")
	step := s.step()
	seen := s.listing(&step, s.now)
	s.remove("a/5-1")
	s.tell(w, "a/7")
	s.l.Saw(&step, seen)
	require.Equal(t, s.now, s.l.goneBy)
	h.Leave(false)
	s.granted(p, false)
	s.ask()
	s.gone(p)
}

// It was there when the last of several had gone, in whatever order the reply shows them.
func TestThereWhenTheLastOfTheToldHadGone_V3(t *testing.T) {
	s := newScene(t)
	s.enqueue("a/5")
	s.put("a/6")
	s.put("a/7")
	s.blind("a/5-1")
	step := s.step()
	s.l.Opened(newWatch("a/6", "a/7\x00", s.now))
	seen := s.listing(&step, s.now)
	s.tell(s.l.watches[0], "a/7", "a/6")
	s.l.Saw(&step, seen)
	require.Equal(t, s.now, s.l.goneBy)
}

// A watch may be behind what a request has shown: what it tells of a key says nothing about an entry that was written
// under that key since then.
func TestKeyUsedAnewBehindTheWatch_V3(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	first := s.enqueue("a/5")
	s.ask()
	at := s.remove("a/7")
	s.put("a/7")
	second := s.enqueue("a/5-1")
	s.l.watches[0].Heard([]Deletion{{"a/7", at}})
	s.granted(first, true)
	s.leave(first)
	s.granted(second, false)
}

// Nor does the reply to a removal, which has not found its entry.
func TestKeyUsedAnewBeforeTheRemoval_V3(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	s.remove("a/5")
	rev := s.put("a/5") // another session's: the lease was adopted
	p := s.enqueue("a/5-1")
	s.gone(h)
	h.Removed(s.put("x"), false, nil, nil)
	require.Contains(t, s.l.views[0].keys, queue.Entry{Key: "a/5", Rev: rev})
	s.ask()
	s.granted(p, false)
}

// Nor does an older reading say anything about an entry that has the key since then.
func TestKeyUsedAnewDuringAReading_V2(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.blind("a/r5")
	step := s.step()
	seen := s.listing(&step, s.now)
	s.leave(p)
	p = s.enqueue("a/r5")
	s.l.Saw(&step, seen)
	s.granted(p, false)
}

// V4: a watch on what an entry waits for says that this has gone, and not that the entry was still there.
func TestThereWhenAWatchTells_V4(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now))
	s.remove("a/5")
	s.tell(s.l.watches[0], "a/7")
	s.granted(p, false)
	s.ask()
	s.gone(p)
}

// V3: an entry of the process before enters long after it was written, and what was told of it before that is not in the log. So
// no watch counts for it, nor a reading from before, until the entry is read.
func TestAdoptedAfterItsEndWasTold_V3(t *testing.T) {
	for name, order := range map[string][]string{"it waited": {"a/7", "a/r5"}, "it had the lock": {"a/r5", "a/7"}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.put(order[0])
			s.put(order[1])
			last := s.blind("a/5")
			s.l.Opened(newWatch("a/5", "a/s", 1)) // by a member that lags
			s.ask()
			rev, read := s.keys[slices.Index(order, "a/r5")].Rev, s.now
			s.tell(s.l.watches[0], "a/r5")
			p := s.register("a/r5")
			if rev == 2 { // nothing is before it
				seen := Shown(read, rev, nil, false)
				p.Enqueued(rev, &seen)
			} else {
				p.Enqueued(rev, nil)
			}
			s.tell(s.l.watches[0], "a/7")
			s.ask()
			s.gone(p)
			s.granted(last, true)
		})
	}
}

// V4: who has removed an entry that waited may have removed those behind it.
func TestAbsentWhileItWaited_V4(t *testing.T) {
	s := newScene(t)
	h, first, second := s.enqueue("a/5"), s.enqueue("a/5-1"), s.enqueue("a/5-2")
	first.Missing("a/5-1", s.remove("a/5-1", "a/5-2"))
	h.Leave(false)
	s.granted(second, false)
	s.ask()
	s.gone(second)
}

// A waiter that was evicted keeps nobody. One that is known by its other key by now, since it was downgraded, is not missing.
func TestMissing(t *testing.T) {
	s := newScene(t)
	h, w, r := s.enqueue("a/r5"), s.enqueue("a/5"), s.enqueue("a/r5-1")
	require.Empty(t, s.ask())
	require.Empty(t, w.Missing("a/5", s.remove("a/5")))
	s.ask()
	s.granted(r, true)
	require.Equal(t, []*Part{h}, h.Missing("a/r5", s.remove("a/r5")))

	s = newScene(t)
	h = s.enqueue("a/5", "a/r5")
	h.Downgrading()
	require.Empty(t, h.Missing("a/5", s.remove("a/5")))
	s.granted(h, true)
	pending := s.register("a/5-1")
	require.Empty(t, pending.Missing("a/5-1", s.now), "nobody knows whether it was written")
}

// V5: a reading is at a revision that is not before any deletion that the list has heard of, in whatever order.
func TestReadsAtTheLatest_V5(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.blind("a/5")
	w, late := newWatch("a/6", "a/z", s.now), newWatch("a/6", "a/7", s.now)
	s.l.Opened(w)
	s.l.Opened(late)
	first := s.remove("a/6")
	last := s.remove("a/8")
	w.Heard([]Deletion{{"a/6", first}, {"a/8", last}})
	late.Heard([]Deletion{{"a/6", first}})
	require.Equal(t, last, s.step().At)
	p.Leave(false)
}

// The log keeps what a request that is on its way may not know of, whichever other one is answered.
func TestLogOfTwoReadings_V3(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	s.ask()
	first := s.l.fliesLocked(nil)
	s.tell(s.l.watches[0], "a/6")
	second := s.l.fliesLocked(nil)
	s.l.landedLocked(flight{since: second})
	require.Len(t, s.l.heard, 1)
	s.l.landedLocked(flight{since: first})
	require.Empty(t, s.l.heard)
}

// The log is trimmed of what all requests on their way come after.
func TestLogIsTrimmed_V3(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	s.ask()
	s.l.fliesLocked(nil)
	for range 1000 { // one is always on its way
		s.l.fliesLocked(nil)
		s.l.landedLocked(s.l.flights[0])
		s.tell(s.l.watches[0], "a/6")
	}
	require.Less(t, len(s.l.heard), 200)
	require.Equal(t, s.now, s.l.heard[len(s.l.heard)-1].at)
}

// What a reading says, and what the txn of an entry has shown. Truncated, it is about the keys that come first; a write lock's
// other key may be cut off.
func TestListing(t *testing.T) {
	q := []queue.Entry{{Key: "a/5", Rev: 5}, {Key: "a/7", Rev: 7}}
	up, down := Step{Upward: true, shared: true}, Step{Max: 8, shared: true}
	for name, c := range map[string]struct {
		seen                  *Listing
		low, upTo, size       int64
		exclusive, shared, of bool // Clear, for an exclusive entry and for a shared one; of shared keys too
	}{
		"all":               {up.Listing(9, reply(nil, false, 3)), 0, 9, 3, true, true, true},
		"upward":            {up.Listing(9, reply(q, true, 3)), 0, 6, 3, false, false, true},
		"upward, no key":    {up.Listing(9, reply(nil, true, 3)), 0, 0, 3, false, false, true},
		"downward":          {down.Listing(9, reply(q[:0], false, 3)), 0, 8, 3, true, true, true},
		"downward, in part": {down.Listing(9, reply([]queue.Entry{q[1], q[0]}, true, 3)), 5, 8, 3, false, false, true},
		"exclusive keys":    {(&Step{Max: 8}).Listing(9, reply(nil, false, 3)), 0, 8, 3, false, true, false},
		"txn":               {listing(Shown(9, 9, &pb.RangeResponse{Count: 3}, true)), 0, 9, 3, true, true, true},
		"txn of a reader":   {listing(Shown(9, 9, &pb.RangeResponse{Count: 3}, false)), 0, 9, 3, false, true, false},
		"txn, in part":      {listing(Shown(9, 9, &pb.RangeResponse{Count: 3, More: true}, true)), 0, 0, 3, false, false, true},
		"a key that blocks": {up.Listing(9, reply(q, false, 3)), 0, 9, 3, false, false, true},
		"low":               {&Listing{Low: 1, UpTo: 9, Shared: true}, 1, 9, 0, false, false, true},
		"a shared key":      {up.Listing(9, reply([]queue.Entry{{Key: "a/r5", Rev: 5}}, false, 3)), 0, 9, 3, false, true, true},
	} {
		require.Equal(t, []int64{c.low, c.upTo, c.size}, []int64{c.seen.Low, c.seen.UpTo, c.seen.Size}, name)
		require.Equal(t, []bool{c.exclusive, c.shared, c.of}, []bool{c.seen.Clear("a", keyspace.Exclusive), c.seen.Clear("a", keyspace.Shared), c.seen.Shared}, name)
	}
	require.False(t, (*Listing)(nil).Clear("a", keyspace.Exclusive))
}

// A list that gets the memory of what another list has known knows nothing of that.
func TestKnowledge_OfAnotherList(t *testing.T) {
	s := newScene(t)
	p := s.register("a/5", "a/r5")
	s.enqueued(p)
	s.granted(p, true)
	s.l.lock()
	known := s.l.knowledge
	known.goneBy, known.size, known.latest, known.struck, known.reach, known.nested = 1, 2, 3, 4, 5, true
	known.views[0].keys, known.heard = []queue.Entry{{Key: "a/5", Rev: 5}}, []hearsay{{key: "a/5"}}
	known.guarded, known.stale, known.broke = p, true, errors.New("broken")
	s.l.unlock()
	require.Nil(t, s.l.knowledge)
	require.Equal(t, knowledge{flights: known.flights}, *known)
	require.Empty(t, known.flights)
	for _, f := range known.flights[:cap(known.flights)] {
		require.Zero(t, f, "it keeps an entry of the list")
	}
}

func listing(seen Listing) *Listing { return &seen }

// A key of an entry whose reply is on its way is nobody's until the reply tells whose.
func TestKeyOfAPendingEntry(t *testing.T) {
	for name, mine := range map[string]bool{"its own": true, "another session's": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			h := s.enqueue("a/5")
			pending := s.register("a/5-1", "a/r5")
			seen := s.shown(keyspace.Exclusive)
			rev := s.put(pending.Keys()...)
			seen.At, seen.UpTo = rev, rev
			p := s.enqueue("a/5-2")
			require.Empty(t, s.ask())
			h.Leave(false)
			require.Empty(t, s.ask(), "it asks nothing")
			if mine {
				pending.Enqueued(rev, seen)
				s.granted(pending, true)
				pending.Leave(false)
				s.granted(p, true)
				return
			}
			pending.Rekey("a/5-3", "a/r5-1")
			require.NotEmpty(t, s.ask())
		})
	}
}

// A late reply shows an entry that has left since. It is not in the way, but what has its key since then is.
func TestLeftSince_V3(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	p := s.register("a/5-1")
	seen := s.shown(keyspace.Exclusive)
	rev := s.put("a/5-1")
	seen.At, seen.UpTo = rev, rev
	s.leave(h)
	p.Enqueued(rev, seen)
	s.granted(p, true)

	late := s.register("a/5-2")
	s.leave(p)
	s.put("a/5") // another session's: the lease was adopted
	s.enqueued(late)
	s.granted(late, false)
}

// V5: an entry that a reading is about, and does not show, is lost: at once if it waits, and its holder is told.
func TestAbsent_V5(t *testing.T) {
	s := newScene(t)
	h, p, r := s.enqueue("a/5"), s.enqueue("a/5-1"), s.enqueue("a/r5")
	at := s.remove("a/5", "a/5-1", "a/r5")
	lost := s.l.Saw(&Step{}, &Listing{At: at, UpTo: at})
	require.Equal(t, []*Part{h}, lost)
	s.gone(p)
	s.gone(h)
	s.granted(r, false)
	require.Len(t, p.Woken(), 1)
	require.Equal(t, at, s.l.goneBy, "who is seen before that may have been removed with them")
	s.ask()
	s.gone(r)
}

// V4: what an entry waits for may be known only in part. Whoever is told by a listing that does not show it that nothing
// is left has to have been there at that time.
func TestKnownInPart_V4(t *testing.T) {
	for _, low := range []int64{0, 2} {
		s := newScene(t)
		s.put("a/7")
		p := s.blind("a/r5")
		if low > 0 {
			s.l.Saw(&Step{}, &Listing{At: s.now, Low: low, UpTo: s.now, More: true})
		}
		s.removedFirst(p)
	}
}

// removedFirst has p, the reader a/r5, removed before a/7, which it waits for. The txn of the next reader, which shows exclusive keys
// only, grants that one alone.
func (s *scene) removedFirst(p *Part) {
	s.remove("a/r5")
	s.remove("a/7")
	later := s.enqueue("a/r5-1")
	s.granted(later, true)
	s.granted(p, false)
	s.ask()
	s.gone(p)
}

// An entry that a watch has told of before the reply was there is lost, whatever the reply shows.
func TestToldBeforeTheReply_V3(t *testing.T) {
	s := newScene(t)
	s.l.Opened(newWatch("a/5", "a/5\x00", s.now))
	p := s.register("a/5")
	rev := s.put("a/5")
	s.tell(s.l.watches[0], "a/5")
	p.Enqueued(rev, &Listing{At: rev, UpTo: rev, Shared: true})
	s.gone(p)
}

// V4: a removal that has not found its entry has those behind looked for; so has one of an entry whose fence was in use,
// one of a hold that was lost, and a downgrade. One that has certainly removed it hands the lock over.
func TestLeaves_V4(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(s *scene, h *Part)
		looks bool
	}{
		"found":     {func(s *scene, h *Part) { h.Leave(false); s.removed(h, nil, true) }, false},
		"not found": {func(s *scene, h *Part) { h.Leave(false); s.removed(h, nil, false) }, false}, // it had left before
		"fence":     {func(s *scene, h *Part) { h.Leave(true); s.removed(h, nil, true) }, true},
		"lost":      {func(s *scene, h *Part) { h.Lost(); h.Leave(false); s.removed(h, nil, true) }, true},
		"missing":   {func(s *scene, h *Part) { h.Missing("a/5", s.put("x")); s.removed(h, nil, true) }, true},
		"downgrade": {func(s *scene, h *Part) { h.Downgrading(); h.Downgraded(s.remove("a/5"), nil, nil) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			h := s.enqueue("a/5", "a/r5")
			p := s.enqueue("a/r5-1")
			s.remove("a/r5-1")
			c.leave(s, h)
			s.granted(p, !c.looks)
			if c.looks {
				require.NotEmpty(t, s.ask())
				s.gone(p)
			}
		})
	}
	s := newScene(t)
	h, p, last := s.enqueue("a/5"), s.enqueue("a/5-1"), s.enqueue("a/5-2")
	h.Leave(false)
	s.remove("a/5", "a/5-2")
	h.Removed(s.now, false, nil, nil) // somebody else may have removed them all
	p.Leave(false)
	s.granted(last, false)
	s.ask()
	s.gone(last)
}

// A request that removes an entry, or downgrades it, looks for those that are next.
func TestLooksForTheNext(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5", "a/r5")
	p, far, w := s.enqueue("a/r5-1"), s.enqueue("a/r5-2"), s.enqueue("a/5-1")
	s.enqueue("a/r5-3") // behind the writer
	h.Downgrading()
	next := h.Behind()
	require.Equal(t, []queue.Entry{{Key: "a/r5-1", Rev: p.rev}, {Key: "a/r5-2", Rev: far.rev}}, next)
	at := s.remove("a/5")
	require.Empty(t, h.Downgraded(at, next, next[1:]))
	s.gone(p)
	s.granted(far, true)
	far.Leave(false)
	next = h.Leave(true)
	require.Equal(t, []queue.Entry{{Key: "a/5-1", Rev: w.rev}}, next)
	require.Equal(t, keyspace.Exclusive, w.kind)
	s.removed(h, next, true)
	s.granted(w, true)
	for i := range 2 * nextMax {
		s.enqueue(fmt.Sprintf("a/r5-%x", i+4))
	}
	require.Len(t, w.Behind(), nextMax)
}

// One that was next may have the lock by now, and be downgraded: then its exclusive key is not there, as it should be.
func TestLooksForOneThatIsDowngraded(t *testing.T) {
	s := newScene(t)
	h, p := s.enqueue("a/5"), s.enqueue("a/5-1", "a/r5")
	next := h.Leave(false)
	require.Len(t, next, 1)
	s.granted(p, true)
	p.Downgrading()
	s.remove("a/5-1")
	h.Removed(s.remove("a/5"), true, next, nil)
	s.granted(p, true)
}

// The watch on all of the queue stays for the entries to come: one that enters the queue needs no reading then.
func TestWideWatchIsKept_V6(t *testing.T) {
	s := newScene(t)
	closed := 0
	for turn := range 3 {
		s.put("a/7")
		p, second := s.enqueue("a/5"), s.enqueue("a/5-1")
		if did := s.ask(); turn == 0 {
			require.Equal(t, []string{"watch a/0..a/s"}, did)
			s.l.watches[0].Close = func() { closed++ }
		} else {
			require.Empty(t, did)
		}
		s.l.expire() // it is needed
		s.l.expire()
		s.tell(s.l.watches[0], "a/7")
		s.granted(p, true)
		s.leave(p)
		s.granted(second, true)
		s.leave(second)
		require.True(t, s.l.expires)
		require.False(t, s.l.Empty())
		s.l.expire() // it is not, but it was
	}
	require.Zero(t, closed)
	w := s.l.watches[0]
	s.l.expire()
	require.Equal(t, 1, closed)
	s.l.tick()
	require.True(t, s.l.Empty())
	w.Broke(errors.New("closed")) // which is no news
	require.Equal(t, 1, closed)
}

// So is the watch on the one before in a long queue, since that one comes again under the same key. The watch near the
// front is not.
func TestSingleWatchIsKept_V6(t *testing.T) {
	s := newScene(t)
	turn := func() (opens int) {
		var others []string
		for i := range 2*ManyShare - 1 {
			others = append(others, fmt.Sprintf("a/6%x", 2*ManyShare-2-i)) // not in the order of their keys
			s.put(others[i])
		}
		p := s.enqueue("a/5")
		for _, other := range others {
			for _, did := range s.ask() {
				if did[0] == 'w' {
					opens++
				}
			}
			require.LessOrEqual(t, len(s.l.watches), 2)
			at := s.remove(other)
			for _, w := range s.l.watches {
				if w.tells(other, w.At) {
					w.Heard([]Deletion{{other, at}})
				}
			}
		}
		s.granted(p, true)
		require.Len(t, s.l.watches, 1)
		require.Equal(t, "a/62", s.l.watches[0].From)
		s.leave(p)
		return opens
	}
	require.Equal(t, 2, turn())
	require.Equal(t, 1, turn())
	require.Equal(t, 1, turn())
	s.l.expire()
	s.l.expire()
	require.Nil(t, s.l.knowledge)
	require.Equal(t, 2, turn())
}

// Of the watches that stay at most one is kept beside the one that is needed.
func TestTwoWatches_V6(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	for _, key := range []string{"a/6", "a/7", "a/8"} {
		s.l.Opened(newWatch(key, key+"\x00", s.now))
	}
	require.Len(t, s.l.watches, 2)
	require.Equal(t, "a/7", s.l.watches[0].From)
	require.Equal(t, s.l.need, s.l.watches[1])
}

// A session watches all of a queue only if it has a good part of it, so that not too many clients hear of each release;
// nor if keys of other names lie there, since their locks may be busy.
func TestWideWatchOfFew_V6(t *testing.T) {
	for n, wide := range map[int]bool{ManyShare: true, ManyShare + 1: false} {
		s := newScene(t)
		for i := range n {
			s.put(fmt.Sprintf("a/6-%x", i+1))
		}
		s.enqueue("a/5")
		require.Equal(t, wide, s.step().To == "a/s", n)
	}
	for n, kept := range map[int64]bool{ManyShare: true, ManyShare + 1: false} {
		s := newScene(t)
		s.put("a/7")
		p := s.enqueue("a/5")
		s.ask()
		s.size = n
		s.l.Refresh()
		s.ask()
		require.Len(t, s.l.watches, 1, "nobody closes it while it is in use")
		s.tell(s.l.watches[0], "a/7")
		s.granted(p, true)
		require.Equal(t, kept, len(s.known().watches) == 1, n)
	}
	for _, told := range []bool{false, true} { // by a watch, or by a listing
		s := newScene(t)
		if !told {
			s.put("a/b/1")
		}
		s.put("a/7")
		s.enqueue("a/5")
		if told {
			require.Equal(t, []string{"watch a/0..a/s"}, s.ask())
			s.tell(s.l.watches[0], "a/b/1")
			require.Empty(t, s.l.watches)
		}
		require.Equal(t, "watch a/5..a/7\x00", s.ask()[0])
	}
}

// A watch that breaks has the agent pause, and then read the present and watch anew. So has a watch that may be silent,
// but for the pause. Nobody relies on one that is kept.
func TestWatchBreaks(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	s.enqueue("a/5-1")
	s.ask()
	broken := errors.New("broken")
	w := s.l.watches[0]
	w.Close = func() { t.Error("who has broken it closes it") }
	w.Broke(broken)
	require.Empty(t, s.l.watches)
	step := s.step()
	require.Equal(t, p, step.For)
	require.Equal(t, broken, step.Err)
	require.Equal(t, "pause, up", s.answer(&step))
	require.Equal(t, []string{"watch a/0..a/s"}, s.ask())
	s.l.Refresh()
	require.Equal(t, []string{"up"}, s.ask())

	s.l.expire()
	s.leave(p)
	s.tell(s.l.watches[0], "a/7")
	require.True(t, s.l.expires)
	s.l.watches[0].Broke(broken)
	require.Empty(t, s.ask())
}

// A watch that breaks is no news any more for an entry that comes when nobody waits.
func TestBrokeForNobody(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	s.ask()
	s.l.watches[0].Broke(errors.New("broken"))
	s.leave(p)
	s.enqueue("a/5-1")
	require.NotContains(t, s.ask()[0], "pause")
}

// A reading of the present that was sent before the list was told that its watches may be silent is not enough.
func TestStaleDuringAReading(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	s.ask()
	s.l.Refresh()
	step := s.step()
	seen := s.listing(&step, s.now)
	s.l.Refresh()
	s.l.Saw(&step, seen)
	require.NotEmpty(t, s.ask())
	// Nor is one that failed, or was given up.
	for _, over := range []func(){func() { s.l.Dropped(&step) }, func() { s.l.Fail(&step, nil) }} {
		s.l.Refresh()
		step = s.step()
		require.Equal(t, Read, step.Do)
		over()
		require.Equal(t, []string{"up"}, s.ask())
	}
}

// What a watch that is silent has not told is not believed to be there, however far the view reaches.
func TestSilentWatch_V2(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.size = ManyShare + 1
	p, second := s.enqueue("a/5"), s.enqueue("a/5-1")
	s.ask()
	s.leave(second)
	s.remove("a/7")
	s.l.Refresh()
	require.Equal(t, []string{"down"}, s.ask())
	s.granted(p, true)
}

// An agent ends when nobody waits, also one that is waiting for etcd's answer: what it asks ends then. The next one is
// another agent.
func TestAgentIsDismissed_V1(t *testing.T) {
	s := newScene(t)
	var agents []context.Context
	s.l.Ask = func(ctx context.Context, _ *List) { agents = append(agents, ctx) }
	s.put("a/7")
	p := s.enqueue("a/5")
	require.Len(t, agents, 1)
	require.Equal(t, Open, s.l.Next(agents[0]).Do)
	p.Leave(false)
	require.Error(t, agents[0].Err())
	s.enqueue("a/5-1")
	require.Len(t, agents, 2)
	require.Equal(t, Step{}, s.l.Next(agents[0]), "which must not do the same")
	require.NoError(t, agents[1].Err())
	require.NotEmpty(t, s.ask())
	require.Error(t, agents[1].Err())
	require.Len(t, agents, 2)
}

// An agent that does not come for what Refresh wants asked is replaced by the next Refresh. One that comes stays.
func TestAgentIsReplaced_V1(t *testing.T) {
	s := newScene(t)
	var agents []context.Context
	s.l.Ask = func(ctx context.Context, _ *List) { agents = append(agents, ctx) }
	s.put("a/7")
	p := s.enqueue("a/5")
	require.Equal(t, Open, s.l.Next(agents[0]).Do)
	s.l.Refresh()
	step := s.l.Next(agents[0])
	require.Equal(t, Read, step.Do)
	s.l.Refresh()
	require.NoError(t, agents[0].Err(), "it has come since")
	require.Len(t, agents, 1)
	s.l.Refresh()
	require.Error(t, agents[0].Err())
	require.Len(t, agents, 2)
	require.Equal(t, Read, s.l.Next(agents[1]).Do)
	s.l.Dropped(&step)
	require.NoError(t, agents[1].Err())
	p.Leave(false)
	require.Error(t, agents[1].Err())
}

// A waiter that nobody is known to be before, and that does not have the lock, has the list asked anew. One that is behind
// an entry of its own list does not.
func TestAwaited(t *testing.T) {
	s := newScene(t)
	awaited := func() queue.Entry {
		q, ok := s.l.Awaited()
		require.Equal(t, ok, q.Key != "")
		return q
	}
	s.put("a/1")
	at := s.put("a/7")
	p, second := s.enqueue("a/5"), s.enqueue("a/5-1")
	require.Equal(t, queue.Entry{Key: "a/7", Rev: at}, awaited(), "which leaves last")
	require.False(t, s.l.stale)
	s.ask()
	s.tell(s.l.watches[0], "a/1", "a/7")
	s.granted(p, true)
	s.ask()
	require.Empty(t, awaited())
	require.False(t, s.l.stale, "it waits for its own list")
	s.remove("a/5", "a/5-1")
	p.Leave(false)
	s.granted(second, true)
	require.Empty(t, awaited())
	require.False(t, s.l.stale, "nobody waits")
}

// A refusal ends the wait of the entry that etcd was asked for. For the next one it is asked again.
func TestRefused(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	first, second := s.enqueue("a/5"), s.enqueue("a/5-1")
	step := s.step()
	require.Equal(t, first, step.For)
	refused := errors.New("refused")
	s.l.Fail(&step, refused)
	require.Len(t, first.Woken(), 1)
	granted, err := first.Outcome()
	require.False(t, granted)
	require.Equal(t, refused, err)
	require.Equal(t, second, s.step().For)
}

// Behind a watch that tells of all that the front waits for, events that leave it so ask nothing.
func TestRestsBehindTheWatch(t *testing.T) {
	s := newScene(t)
	s.put("a/6")
	s.put("a/7")
	p := s.enqueue("a/5")
	require.Equal(t, []string{"watch a/0..a/s"}, s.ask(), "nothing was written since, so nothing is read")
	s.tell(s.l.watches[0], "a/6")
	require.Nil(t, s.l.agent)
	s.tell(s.l.watches[0], "a/7")
	s.granted(p, true)
}

// What was below may have left between the txn and the watch: it is read behind the watch, and the entry with it.
func TestReadsBehindTheWatch(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	s.remove("a/7")
	require.Equal(t, []string{"watch a/0..a/s", "up at 4"}, s.ask())
	s.granted(p, true)
}

// What is read for the front serves those behind it.
func TestReadsForAll(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	var es []*Part
	for i := range 20 {
		es = append(es, s.blind(fmt.Sprintf("a/5-%x", i+1)))
	}
	require.Equal(t, []string{fmt.Sprint("up at ", s.now)}, s.ask())
	for _, p := range append([]*Part{h}, es...) {
		s.granted(p, true)
		p.Leave(false)
	}
}

// A reading upward that did not come to an entry is not repeated for it, until half of what it showed has left. The entry
// is read for downward.
func TestReadsUpwardInVain_V6(t *testing.T) {
	for before, way := range map[int]string{4: "down", 5: "up"} {
		s := newScene(t)
		s.l.UpLimit, s.size = 10, 1000
		for i := range before {
			s.put(fmt.Sprintf("a/6-%x", i+1))
		}
		p := s.blind("a/5")
		for i := range 40 {
			s.put(fmt.Sprintf("a/7-%x", i+1))
		}
		far := s.blind("a/5-1")
		require.Equal(t, fmt.Sprint("up at ", s.now), s.ask()[0])
		for i := range before {
			s.tell(s.l.need, fmt.Sprintf("a/6-%x", i+1))
		}
		s.granted(p, true)
		require.Equal(t, way, strings.Fields(s.ask()[0])[0])
		require.Equal(t, far, s.reading.For)
	}
}

// Behind such a run it watches that key alone: others of the run are not told of.
func TestWatchesOneOfALongRun_V6(t *testing.T) {
	s := newScene(t)
	s.size = 1000
	for i := range 12 {
		s.put(fmt.Sprintf("a/7-%x", i+1))
	}
	s.blind("a/5")
	require.Equal(t, []string{"down at 14", "watch a/7-6..a/7-6\x00"}, s.ask())
}

// If a run of one session's entries is longer than a reading downward shows, what is below is not asked for again and
// again: the entry waits for the lowest key that it knows.
func TestReadsALongRun_V6(t *testing.T) {
	s := newScene(t)
	s.size = 1000
	for i := range 5 {
		s.put(fmt.Sprintf("a/6-%x", i+1))
	}
	for i := range 12 {
		s.put(fmt.Sprintf("a/7-%x", i+1))
	}
	p := s.blind("a/5")
	s.blind("a/5-1")
	rev := func(key string) int64 {
		return s.keys[slices.IndexFunc(s.keys, func(q queue.Entry) bool { return q.Key == key })].Rev
	}
	low := rev("a/6-5")
	s.l.Opened(newWatch("a/5", "a/7.", s.now))
	s.l.Saw(&Step{}, &Listing{At: s.now, Low: low - 1, UpTo: s.now, Shared: true, More: true, Size: 1000, Keys: s.keys[4:]})
	s.tell(s.l.watches[0], "a/6-5")
	require.Equal(t, low, s.l.views[0].low)
	require.Less(t, len(s.ask()), 4)
	s.granted(p, false)
}

// An entry lists nothing if it is behind more keys of its list than it would list.
func TestBehindMore(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5", "a/r5")
	s.enqueue("a/r5-1")
	behind := func(p *Part) (n int) {
		for p.BehindMore(n) {
			n++
		}
		return n
	}
	require.Equal(t, 3, behind(s.register("a/5-1")))
	require.Equal(t, 1, behind(s.register("a/r5-2")), "no reader blocks a reader")
	h.Leave(false)
	require.Equal(t, 1, behind(s.register("a/5-2")))
}

// BehindLeft waits for entries of the list that are on their way out, and for nobody else.
func TestBehindLeft(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	p := s.register("a/5-1")
	require.False(t, p.BehindLeft(), "it is held")
	h.Leave(false)
	require.True(t, p.BehindLeft())
	h.Stuck()
	require.False(t, p.BehindLeft())
	require.Len(t, p.Woken(), 1)
	<-p.Woken()
	s.removed(h, nil, true)
	require.False(t, p.BehindLeft(), "nobody is there")
	require.Len(t, p.Woken(), 1)

	// Of a reader only writers are in the way.
	w := s.enqueue("a/5", "a/r5")
	s.enqueue("a/r5-1")
	r := s.register("a/r5-2")
	require.False(t, r.BehindLeft(), "it is held")
	w.Leave(false)
	require.True(t, r.BehindLeft())
	s.removed(w, nil, true)
	require.False(t, r.BehindLeft(), "only a reader is there")
}

// One that waits for a holder of its own list has, after a while, a watch on both, and both are read behind that.
func TestGuard(t *testing.T) {
	for _, keys := range [][2]string{{"a/5", "a/5-1"}, {"a/5-1", "a/5"}} {
		s := newScene(t)
		s.size = 1000
		h, p := s.enqueue(keys[0]), s.enqueue(keys[1])
		require.Empty(t, s.ask())
		s.remove(keys[1])
		s.l.tick()
		did := s.ask()
		require.Equal(t, "watch a/5..a/5.", did[0])
		require.Len(t, did, 2)
		s.gone(p)
		s.granted(h, true)
		require.Nil(t, s.l.agent)
	}
}

// While the lock goes from one entry to the next, the guard costs one timer.
func TestGuardTimer(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	for i := range 5 {
		p := s.enqueue(fmt.Sprint("a/5-", i+1))
		s.leave(h)
		s.granted(p, true)
		h = p
		s.leave(s.enqueue("a/5-a"))
	}
	require.Len(t, s.timers, 1)
	s.timers[0]()
	require.Nil(t, s.known().ticks)
}

// A list with a holder that nobody waits for knows nothing, and costs little: also when others have waited.
func TestRestsAtAHolder(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5", "a/r5")
	require.Nil(t, s.l.knowledge)
	p := s.enqueue("a/5-1")
	require.NotNil(t, s.l.knowledge)
	s.leave(h)
	s.granted(p, true)
	require.NotNil(t, s.l.knowledge, "its timer is set")
	s.l.tick()
	require.Nil(t, s.l.knowledge)
	pending := s.register("a/5-2")
	require.NotNil(t, s.l.knowledge)
	pending.Leave(false)
	require.Nil(t, s.l.knowledge)
	s.leave(p)
	require.True(t, s.l.Empty())
}

// A part that nobody waits for yet asks nothing, so the agent asks for those behind it. When its turn comes it is in front.
func TestPart_Begins(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	part := s.register("a/r5")
	part.WakeWith(part)
	s.enqueued(part)
	require.Nil(t, s.l.agent)
	p := s.enqueue("a/r5-1")
	require.Equal(t, p, s.step().For)
	part.Begin()
	require.Equal(t, part, s.step().For)
	s.ask()
	s.tell(s.l.watches[0], "a/7")
	s.granted(part, true)
	s.granted(p, true)
	require.Len(t, part.Woken(), 1)
}

// It may be removed by somebody. The one behind it asks for it, as for a holder: nobody else does. Behind many of them
// it asks again only when all that it has asked about have left.
func TestPart_ManyBeforeTheyBegin(t *testing.T) {
	s := newScene(t)
	var parts []*Part
	for i := range 3 * nextMax {
		part := s.register(fmt.Sprintf("a/5-%x", i+1))
		part.WakeWith(part)
		s.enqueued(part)
		parts = append(parts, part)
	}
	s.put("a/7")
	p := s.enqueue("a/5")
	s.ask()
	s.tell(s.l.watches[0], "a/7")
	s.ask()
	s.l.tick()
	for _, part := range parts {
		s.granted(part, true)
		s.remove(part.Keys()...)
		require.LessOrEqual(t, len(s.ask()), 2)
		part.Leave(false)
	}
	s.ask()
	s.granted(p, true)
}

// A part that still waits may be removed by somebody. A reader behind it, for whom nothing else is in the way, is told.
func TestPart_RemovedBeforeItBegins(t *testing.T) {
	s := newScene(t)
	s.put("a/r7")
	part := s.register("a/5")
	part.WakeWith(part)
	s.enqueued(part)
	p := s.enqueue("a/r5-1")
	require.Empty(t, s.ask())
	s.l.tick()
	require.NotEmpty(t, s.ask())
	s.tell(s.l.watches[0], "a/5")
	s.gone(part)
	s.granted(p, true)
}

// A part is read for beside others if nobody asks for it: nobody waits for it, nor for one before it.
func TestPart_Look(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	var parts []*Part
	for _, key := range []string{"a/5", "a/5-1"} {
		part := s.register(key)
		part.WakeWith(part)
		s.enqueued(part)
		parts = append(parts, part)
	}
	_, ok := parts[1].Look()
	require.True(t, ok, "nobody asks for the one before it either")
	step, ok := parts[0].Look()
	require.True(t, ok)
	require.Zero(t, step.At)
	s.remove("a/7")
	s.l.Saw(&step, s.listing(&step, s.now))
	s.granted(parts[0], true)
	_, ok = parts[0].Look()
	require.False(t, ok, "it has the lock")
	parts[0].Begin()
	require.Empty(t, s.l.flights[1:])
}

// newLongQueue is a scene whose queue is longer than a reading upward shows: a writer, and readers behind it.
func newLongQueue(t *testing.T) *scene {
	s := newScene(t)
	s.l.UpLimit = 2
	s.put("a/1")
	s.put("a/r2", "a/r3", "a/r4")
	return s
}

// Where a reading upward does not come to the readers of a list, etcd is asked for those together that are granted together:
// not for one behind a writer of the list.
func TestReaders_AskedForTogether(t *testing.T) {
	s := newLongQueue(t)
	for _, key := range []string{"a/r5", "a/r5-1", "a/5", "a/r5-2"} {
		s.enqueue(key)
	}
	t.Log(s.ask())
	require.Equal(t, []string{"a/r5", "a/r5-1"}, s.reading.Keys)
}

// Readers that are granted together need one reading, however many they are: it is about what is below the last of them.
func TestReaders_ReadForTogether(t *testing.T) {
	s := newLongQueue(t)
	var readers []*Part
	for i := range 20 {
		readers = append(readers, s.enqueue(fmt.Sprintf("a/r5-%x", i+1)))
	}
	s.remove("a/1")
	require.Less(t, len(s.ask()), 5)
	for _, p := range readers {
		s.granted(p, true)
	}
}

// A reader behind another session's writer is not granted with those before that writer.
func TestReaders_NotBehindAWriter(t *testing.T) {
	s := newLongQueue(t)
	first := s.enqueue("a/r5")
	s.put("a/7")
	second := s.enqueue("a/r5-1")
	s.ask()
	require.Equal(t, []string{"a/r5"}, s.reading.Keys)
	require.Equal(t, first.rev, s.reading.Max)
	s.tell(s.l.watches[0], "a/1")
	s.ask()
	s.granted(first, true)
	s.granted(second, false)
}

// Many writers that nobody has seen, between readers of a list, do not hide what is before the first of these.
func TestReaders_ManyWritersBetween(t *testing.T) {
	s := newLongQueue(t)
	first, second := s.blind("a/r5"), s.blind("a/r5-1")
	for i := range 2 * downLimit {
		s.put(fmt.Sprintf("a/7-%x", i+1))
	}
	third := s.blind("a/r5-2")
	ask := func() {
		steps := 0
		for step := s.step(); step.Do != Rest; step = s.step() {
			require.Less(t, steps, 6)
			steps++
			require.True(t, step.Do != Read || step.Limit > 0, "it reads all writers")
			s.answer(&step)
		}
	}
	ask()
	s.tell(s.l.watches[0], "a/1")
	ask()
	s.granted(first, true)
	s.granted(second, true)
	s.granted(third, false)
}
