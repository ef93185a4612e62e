package waitlist

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Clauses that random worlds, and the scenes of cases_test.go, do without.

// A holder is told that another entry of the list waits for what it excludes: at once, also if that entry came first. It is told once.
func TestWhenContended(t *testing.T) {
	for name, c := range map[string]struct {
		hold, comes []string
		told        bool
	}{
		"a writer behind a writer": {[]string{"a/5"}, []string{"a/5-1"}, true},
		"a reader behind a writer": {[]string{"a/5"}, []string{"a/r5-1"}, true},
		"a writer behind a reader": {[]string{"a/r5"}, []string{"a/5-1"}, true},
		"a reader behind a reader": {[]string{"a/r5"}, []string{"a/r5-1"}, false},
	} {
		for _, late := range []bool{false, true} {
			s := newScene(t)
			h, told := s.enqueue(c.hold...), 0
			ask := func() { h.WhenContended(func() { told++ }) }
			if !late {
				ask()
				require.Zero(t, told, name)
			}
			p := s.enqueue(c.comes...)
			if late {
				ask()
			}
			require.Equal(t, c.told, told == 1, name)
			s.enqueue("a/r5-2")
			s.leave(p)
			require.Equal(t, c.told, told == 1, name)
		}
	}
	s := newScene(t)
	told := false
	s.enqueue("a/r5").WhenContended(func() { told = true })
	s.granted(s.blind("a/r5-1"), false)
	require.False(t, told, "it waits for an answer, and not for the holder")

	s = newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	p.WhenContended(func() { told = true })
	s.leave(s.enqueue("a/5-1"))
	require.False(t, told, "it does not have the lock")
	left := s.enqueue("a/5-1")
	left.Leave(false)
	s.ask()
	s.tell(s.l.watches[0], "a/7")
	s.granted(p, true)
	require.False(t, told, "nobody waits any more")
}

// While an exclusive entry of the list has the lock, nobody else waits for those below it.
func TestCovered(t *testing.T) {
	s := newScene(t)
	r := s.enqueue("a/r5")
	require.False(t, r.OwnWriterHolds())
	r.Leave(false)
	w := s.enqueue("a/5")
	s.granted(w, true)
	require.True(t, r.OwnWriterHolds())
	w.Leave(false)
	require.False(t, r.OwnWriterHolds())
}

// What has broken a watch is forgotten when nobody waits any more, also where the list knows of other things still.
func TestBrokeForNobodyThatIsThere(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now)) // which stays
	s.l.Opened(newWatch("a/5", "a/6", s.now))
	s.l.need.Broke(errors.New("broken"))
	s.leave(p)
	require.NotNil(t, s.l.knowledge)
	s.enqueue("a/5-1")
	require.NotContains(t, s.ask()[0], "pause")
}

// A watch on which nobody relies may break: the front does not pause for that.
func TestKeptWatchBreaks_V6(t *testing.T) {
	s := newScene(t)
	s.size = 1000
	s.put("a/7")
	s.enqueue("a/5")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now)) // which stays
	s.ask()
	require.Len(t, s.l.watches, 2)
	s.l.watches[0].Broke(errors.New("broken"))
	require.NotContains(t, strings.Join(s.ask(), " "), "pause")
}

// More readers than one reading asks for by name are asked for in turn.
func TestReaders_AskedForInTurn(t *testing.T) {
	s := newLongQueue(t)
	var readers []*Part
	for i := range readersMax + 2 {
		readers = append(readers, s.enqueue(fmt.Sprintf("a/r5-%x", i+1)))
	}
	s.remove("a/1")
	most, reads := 0, 0
	for step := s.step(); step.Do != Rest; step = s.step() {
		if most = max(most, len(step.Keys)); step.Do == Read {
			reads++
		}
		s.answer(&step)
		require.Less(t, reads, 6)
	}
	require.Equal(t, readersMax, most)
	for _, p := range readers {
		s.granted(p, true)
	}
}

// A session that has held readers asks by name for those that wait.
func TestReaders_OnlyThoseThatWait(t *testing.T) {
	s := newLongQueue(t)
	var readers []*Part
	for i := range 3 {
		readers = append(readers, s.enqueue(fmt.Sprintf("a/r5-%x", i+1)))
	}
	readers[1].state = granted // it was seen later
	require.Equal(t, []*Part{readers[0], readers[2]}, s.l.readersLocked(readers[0]))
}

// V4: a key that a reading shows no more had gone by then, and not before. Who was seen before that may have been removed first.
func TestShownNoMore_V4(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.removedFirst(s.enqueue("a/r5"))
}

// What a listing shows once more is no news, nor is what has left of the list's own: readers behind a writer of the list have the
// lock at once when the writer leaves, though each of their txns has shown the writers anew.
func TestShownOnceMore_V4(t *testing.T) {
	s := newScene(t)
	first, second := s.enqueue("a/5"), s.enqueue("a/5-1")
	readers := []*Part{s.enqueue("a/r5"), s.enqueue("a/r5-1")}
	next := first.Leave(false)
	s.removed(first, next, true)
	readers = append(readers, s.enqueue("a/r5-2"))
	s.granted(second, true)
	second.Leave(false)
	for _, p := range readers {
		s.granted(p, true)
	}

	s = newScene(t)
	first, second = s.enqueue("a/5"), s.enqueue("a/5-1")
	p := s.enqueue("a/r5")
	first.Leave(false)
	s.remove("a/5")
	s.enqueue("a/r5-1") // in the request that removes the first, whose reply is not there yet
	second.Leave(false)
	s.granted(p, true)
}

// Nor is what a watch tells of an own entry that is over.
func TestToldOfOneThatIsOver_V4(t *testing.T) {
	s := newScene(t)
	first, second, p := s.enqueue("a/5"), s.enqueue("a/5-1"), s.enqueue("a/r5")
	s.l.Opened(newWatch("a/5", "a/5\x00", s.now))
	first.Leave(false)
	s.tell(s.l.watches[0], "a/5")
	second.Leave(false)
	s.granted(p, true)
}

// A listing that is about no key at all takes nothing from what is known.
func TestShownInPart_V2(t *testing.T) {
	s := newScene(t)
	at := s.put("a/7")
	s.enqueue("a/5")
	p := s.register("a/5-1")
	rev := s.put("a/5-1")
	p.Enqueued(rev, &Listing{At: rev, Shared: true, Size: 20})
	require.Contains(t, s.l.views[0].keys, queue.Entry{Key: "a/7", Rev: at})
}

// What a listing shows beyond what it is about is not known to be next below anything.
func TestShownBeyond_V2(t *testing.T) {
	s := newScene(t)
	first, last := queue.Entry{Key: "a/6", Rev: s.put("a/6")}, queue.Entry{Key: "a/7", Rev: s.put("a/7")}
	s.blind("a/5")
	step := Step{Upward: true, shared: true}
	s.l.Saw(&step, step.Listing(s.now, reply([]queue.Entry{first, last}, true, 1000)))
	require.Equal(t, []queue.Entry{first}, s.l.views[0].keys)
}

// A view that reaches further than a later listing stays if watches tell of other sessions' keys in it. One that reaches as far
// does not: what it has may have gone, and the watch may be late.
func TestReachesFurther_V2(t *testing.T) {
	s := newScene(t)
	at := s.put("a/7")
	p, second := s.enqueue("a/5"), s.enqueue("a/5-1")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now))
	seen := Listing{At: s.put("x"), UpTo: p.rev, Shared: true, Keys: []queue.Entry{{Key: "a/7", Rev: at}, p.entry()}}
	s.l.Saw(&Step{}, &seen)
	require.Equal(t, second.rev, s.l.views[0].upTo)
	s.remove("a/7")
	s.l.Saw(&Step{}, &Listing{At: s.now, UpTo: second.rev, Shared: true, Keys: []queue.Entry{p.entry(), second.entry()}})
	s.granted(p, true)
}

// A key that one request has deleted and written anew is there, whatever is told of the deletion.
func TestKeyUsedAnewInOneRequest_V3(t *testing.T) {
	for _, pending := range []bool{false, true} { // its listing comes before the watch tells, or after
		s := newScene(t)
		rev := s.put("a/7")
		s.l.Opened(newWatch("a/7", "a/7\x00", 1))
		w := s.l.watches[0]
		p := s.register("a/5")
		seen := s.shown(p.kind)
		if pending {
			w.Heard([]Deletion{{"a/7", rev}})
		}
		seen.At = s.put("a/5")
		seen.UpTo = seen.At
		p.Enqueued(seen.At, seen)
		if !pending {
			w.Heard([]Deletion{{"a/7", rev}})
		}
		s.granted(p, false)
	}
}

// What is below a key that has left has to be read if no watch tells of it, but for own keys and readers, who are read behind the
// next watch. What is known below and watched is waited for, whatever is further below.
func TestCut_V6(t *testing.T) {
	narrow := func() *scene { s := newScene(t); s.size = 1000; return s }
	s := narrow()
	h := s.enqueue("a/5")
	s.put("a/7")
	p := s.enqueue("a/5-1")
	s.l.Opened(newWatch("a/5-", "a/8", s.now))
	s.tell(s.l.watches[0], "a/7")
	h.Leave(false)
	s.granted(p, true)

	s = narrow()
	s.put("a/r6")
	s.put("a/7")
	s.enqueue("a/5")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now))
	s.tell(s.l.watches[0], "a/7")
	require.Zero(t, s.l.views[0].low)
	require.Len(t, s.l.views[1].keys, 1)

	s = narrow()
	s.put("a/6")
	s.put("a/7")
	p = s.blind("a/5")
	s.l.Saw(&Step{}, &Listing{At: s.now, Low: 1, UpTo: p.rev, Shared: true, More: true, Keys: s.keys})
	s.l.Opened(newWatch("a/5", "a/8", s.now))
	s.tell(s.l.watches[0], "a/7")
	require.EqualValues(t, 1, s.l.views[0].low)

	s = narrow()
	s.put("a/6")
	s.put("a/7")
	p = s.blind("a/5")
	s.l.Saw(&Step{}, &Listing{At: s.now, Low: 2, UpTo: p.rev, Shared: true, More: true, Keys: s.keys[1:]})
	s.l.Opened(newWatch("a/5", "a/8", s.now))
	s.tell(s.l.watches[0], "a/7")
	step := s.step()
	require.Equal(t, Read, step.Do)
	require.EqualValues(t, downLimit, step.Limit)
}

// When the key has left that a deep entry has watched, it is near the front, and so perhaps are others of the list: they are read
// for together. The entry alone is read for downward, and not in all of the queue, here and when it has watched that key.
func TestReadsWhenItIsNear_V6(t *testing.T) {
	for _, alone := range []bool{false, true} {
		s := newScene(t)
		s.size, s.l.UpLimit = 1000, 2
		for i := range downLimit + 2 {
			s.put(fmt.Sprintf("a/%d", 6+i))
		}
		p := s.blind("a/5")
		if !alone {
			s.blind("a/5-1")
		}
		s.ask()
		require.EqualValues(t, downLimit, s.reading.Limit)
		require.Equal(t, s.l.need.From+"\x00", s.l.need.To)
		s.tell(s.l.need, s.l.need.From)
		s.l.struck = 0
		step := s.step()
		require.Equal(t, Open, step.Do)
		s.answer(&step)
		step = s.step()
		require.Equal(t, p, step.For)
		require.Equal(t, !alone, step.Upward)
		require.EqualValues(t, map[bool]int64{true: downLimit, false: s.l.UpLimit}[alone], step.Limit)
	}
	s := newScene(t)
	for i := range ManyShare + 1 {
		s.put(fmt.Sprintf("a/6%d", i))
	}
	s.enqueue("a/5") // which shows all of them
	s.put("x")
	s.ask()
	require.EqualValues(t, downLimit, s.reading.Limit)
}

// A reading upward that came to the end of the queue says nothing about those who come later.
func TestReadsUpwardToTheEnd_V6(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.blind("a/5")
	s.blind("a/5-1")
	s.ask()
	require.True(t, s.reading.Upward)
	first, last := s.l.parts[0], s.blind("a/5-2")
	s.leave(first)
	s.leave(s.l.parts[0])
	s.put("a/8")
	s.blind("a/5-3")
	s.ask()
	require.Equal(t, last, s.reading.For)
	require.True(t, s.reading.Upward)
}

// Where names are nested in this one, a reading is limited all the same if another session's key is known that the entry waits for.
func TestReadsBesideNestedNames(t *testing.T) {
	s := newScene(t)
	s.put("a/6")
	s.put("a/7")
	p := s.blind("a/5")
	s.known().nested = true
	step := s.step()
	require.Zero(t, step.Limit)
	s.l.Saw(&step, &Listing{At: s.now, Low: 2, UpTo: p.rev, Shared: true, More: true, Keys: s.keys[1:]})
	require.EqualValues(t, downLimit, s.l.readLocked(p, false).Limit)
}

// A writer behind more readers than a reading shows reads them all once, and then waits for them without asking.
func TestReadsAllReaders_V6(t *testing.T) {
	s := newScene(t)
	s.size = 1000
	var readers []string
	for i := range 3 * downLimit {
		readers = append(readers, fmt.Sprintf("a/r7-%x", i+1))
		s.put(readers[i])
	}
	p := s.blind("a/5")
	require.Len(t, s.ask(), 3, "a reading in part, one of all, and the watch")
	for _, key := range readers {
		s.tell(s.l.watches[0], key)
		require.Empty(t, s.ask())
	}
	s.granted(p, true)
}

// A part is not read for if another entry is in front of it, whose agent asks, nor if it waits for entries of its list alone.
func TestPart_LooksInVain(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	front := s.enqueue("a/5")
	part := s.register("a/5-1")
	part.WakeWith(part)
	s.enqueued(part)
	_, ok := part.Look()
	require.False(t, ok, "another one is in front")
	s.ask()
	s.tell(s.l.watches[0], "a/7")
	s.granted(front, true)
	_, ok = part.Look()
	require.False(t, ok, "it waits for its own list")
}

// The size of a queue is that of the last reading. Keys count that are about to be there.
func TestMany_V6(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.size = 1000
	s.enqueue("a/5")
	s.size = 0
	s.enqueue("a/5-1")
	require.Equal(t, "a/s", s.step().To, "it has shrunk")

	s = newScene(t)
	s.register("a/5-1")
	for i := range 2*ManyShare - 1 {
		s.put(fmt.Sprintf("a/6-%x", i+1))
	}
	s.enqueue("a/5")
	require.Equal(t, "a/s", s.step().To)
}

// A writer that has a watch on all of the queue waits for those readers that it knows, and does not ask who else is below.
func TestManyReaders_V6(t *testing.T) {
	s := newScene(t)
	s.l.ManyShare = 100
	for i := range 10 {
		s.put(fmt.Sprintf("a/r7-%x", i+1))
	}
	p := s.blind("a/5")
	s.l.Saw(&Step{}, &Listing{At: s.now, Low: 5, UpTo: p.rev, Shared: true, More: true, Size: 11, Keys: s.keys[4:]})
	require.Equal(t, []string{"watch a/0..a/s"}, s.ask())
}

// Beside a watch on all of the queue no other one stays.
func TestWideWatchAlone_V6(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	s.l.Opened(newWatch("a/7", "a/7\x00", s.now))
	s.l.Opened(newWatch("a/0", "a/s", s.now))
	require.Len(t, s.l.watches, 1)
	require.Equal(t, "a/s", s.l.watches[0].To)
}

// What a watch has told stays true when it has ended.
func TestToldByAWatchThatHasEnded_V4(t *testing.T) {
	s := newScene(t)
	s.put("a/6")
	s.put("a/7")
	p := s.enqueue("a/5")
	s.ask()
	s.tell(s.l.watches[0], "a/6")
	s.l.watches[0].Broke(errors.New("broken"))
	require.Equal(t, s.now, p.seen)
}

// A watch that stays may be the only one that tells of a key. When the watch is closed, the key is read.
func TestKeptWatchIsClosed_V6(t *testing.T) {
	s := newScene(t)
	s.size = 1000
	s.put("a/6")
	p := s.enqueue("a/5")
	s.enqueue("a/5-1") // so the view reaches further than what is read for p
	s.l.reach = 1      // downward
	s.l.Opened(newWatch("a/6", "a/6\x00", s.now))
	s.remove("a/6")
	s.l.Opened(newWatch("a/5", "a/6\x00", s.now))
	require.NotEmpty(t, s.ask())
	require.Len(t, s.l.watches, 2) // and before the first one tells, it is closed
	s.l.expire()
	s.l.expire()
	require.Len(t, s.l.watches, 1)
	require.NotEmpty(t, s.ask())
	s.granted(p, true)
}

// A reading that was sent since watches may be silent is given up. Whoever waits by then has it asked anew.
func TestStaleForTheNext(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	first := s.enqueue("a/5")
	s.ask()
	s.l.Refresh()
	step := s.step()
	s.leave(first)
	s.enqueue("a/5-1")
	s.ask()
	s.l.Dropped(&step)
	require.NotEmpty(t, s.ask())

	s = newScene(t)
	s.put("a/7")
	s.l.Opened(newWatch("a/0", "a/s", s.now))
	s.l.Opened(newWatch("a/0", "a/s", s.now))
	s.known().size = 1
	pending := s.register("a/5")
	s.l.Refresh() // nobody waits
	s.enqueued(pending)
	require.NotContains(t, fmt.Sprint(s.ask()), "up")
}

// BehindLeft waits for an entry that left with a fence too, and Woken tells of what happens from then on.
func TestBehindLeft_Fence(t *testing.T) {
	s := newScene(t)
	h := s.enqueue("a/5")
	p := register(s.l, keyspace.Exclusive, "a/5-1")
	h.Leave(true)
	require.True(t, p.BehindLeft())
	s.removed(h, nil, true)
	require.Len(t, p.Woken(), 1)
}

// Somebody may come to wait for an entry that was removed meanwhile: he waits in vain.
func TestBegin_Removed(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p := s.enqueue("a/5")
	p.WakeWith(p)
	p.Missing("a/5", s.now)
	p.Begin()
	require.True(t, isGone(p))
}

// Where the lock goes from turn to turn there is one timer for the watch that stays, not one for each turn.
func TestKeptWatch_OneTimer(t *testing.T) {
	s := newScene(t)
	timers := 0
	s.l.After = func(time.Duration, func()) { timers++ }
	for range 3 {
		s.put("a/7")
		p := s.enqueue("a/5")
		s.ask()
		s.tell(s.l.watches[0], "a/7")
		s.granted(p, true)
		s.leave(p)
	}
	require.Equal(t, 1, timers)
}

// What etcd has refused is nothing to an entry that was released meanwhile.
func TestRefused_Left(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	p, behind := s.enqueue("a/5"), s.enqueue("a/5-1")
	step := s.step()
	p.Leave(false)
	s.l.Fail(&step, errors.New("refused"))
	require.Equal(t, left, p.state)
	require.Equal(t, behind, s.step().For)
}

// What the list wants asked is asked, though a step is dropped that was begun before.
func TestDropped_Stale(t *testing.T) {
	s := newScene(t)
	s.blind("a/5")
	step := s.step()
	require.Equal(t, Read, step.Do)
	s.l.Refresh()
	s.l.Dropped(&step)
	require.Zero(t, s.step().At, "the present is read")
}

// How many exclusive keys there are does not tell how long the queue is.
func TestSizeOfExclusiveKeys_V6(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.blind("a/r5")
	s.l.Saw(&Step{}, &Listing{At: s.now, UpTo: s.now, Size: 2, Keys: s.keys})
	require.Zero(t, s.l.size)
	s.l.Saw(&Step{}, &Listing{At: s.now, UpTo: s.now, Size: 2, Keys: s.keys, Shared: true})
	require.EqualValues(t, 2, s.l.size)
}

// A release looks for the entry behind one that was given up, and is still on its way out.
func TestNext_BehindOneThatHasLeft(t *testing.T) {
	s := newScene(t)
	h, given, p := s.enqueue("a/5"), s.enqueue("a/5-1"), s.enqueue("a/5-2")
	given.Leave(false)
	require.Equal(t, []queue.Entry{p.entry()}, h.Leave(false))
	s.granted(p, true)
}

// A list is not forgotten while an entry is about to come, or a reply. Whatever was the last of these has it forgotten.
func TestEmpty(t *testing.T) {
	s := newScene(t)
	forgotten := 0
	s.l.Forget = func(string) {
		require.True(t, s.l.Empty())
		forgotten++
	}
	require.True(t, s.l.Empty())
	p := s.register("a/5")
	require.False(t, s.l.Empty())
	p.Leave(false)
	require.Equal(t, 1, forgotten)
	s.leave(s.enqueue("a/5"))
	require.Equal(t, 2, forgotten)
	s.enqueue("a/5").Forget()
	require.Equal(t, 3, forgotten)
	p = s.blind("a/5-1")
	step := s.step()
	s.leave(p)
	require.False(t, s.l.Empty())
	require.Equal(t, 3, forgotten)
	s.l.Dropped(&step)
	require.Equal(t, 4, forgotten)
}

// The log keeps what the txn of an entry may not know of. While no request is on its way it keeps nothing.
func TestLogOfATxn_V3(t *testing.T) {
	s := newScene(t)
	s.put("a/7")
	s.enqueue("a/5")
	s.ask()
	s.tell(s.l.watches[0], "a/6")
	require.Empty(t, s.l.heard)
	pending := s.register("a/5-1")
	s.tell(s.l.watches[0], "a/6")
	s.l.landedLocked(flight{since: s.l.fliesLocked(nil)})
	require.Len(t, s.l.heard, 1)
	pending.Leave(false)
	require.Empty(t, s.l.heard)
}
