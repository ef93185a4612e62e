package waitlist

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// What random worlds find too seldom.

// newList is a list whose timers go off when the test calls expire.
func newList() *List {
	l := New("a", func(string) {})
	l.after = func(time.Duration, func()) {}
	return l
}

func newWatch(from, to string, at int64) *Watch {
	return &Watch{From: from, To: to, At: at, Close: func() {}}
}

func listing(at int64, keys ...queue.Entry) *Listing {
	return &Listing{At: at, Low: 1, High: at, Shared: true, Keys: keys, Size: int64(len(keys))}
}

// holder is a list with an entry that has the lock, at revision 5.
func holder(t *testing.T) (l *List, h *Entry) {
	l = newList()
	h = l.Register(nil, keyspace.Exclusive, "a/5")
	h.Enqueued(5, listing(4))
	require.Equal(t, Grant, h.Next().Do)
	return l, h
}

var held5 = queue.Entry{Key: "a/5", Rev: 5}

// An entry whose txn has not shown what was below may have been removed while another session's key,
// which nobody knew of, was still in its way. So that a later reading shows nothing below does not do: it
// has to show the entry.
func TestCompleteLater(t *testing.T) {
	for name, learn := range map[string]func(l *List, e *Entry){
		"before a reading": func(l *List, e *Entry) {
			e.Enqueued(12, nil)
			l.Saw(&Listing{At: 20, Low: 1, High: 20, Keys: []queue.Entry{held5}})
		},
		"after it": func(l *List, e *Entry) {
			l.Saw(&Listing{At: 20, Low: 1, High: 20, Keys: []queue.Entry{held5}})
			e.Enqueued(12, nil)
		},
		"after it, with what is gone by then": func(l *List, e *Entry) {
			l.Saw(&Listing{At: 20, Low: 1, High: 20, Keys: []queue.Entry{held5}})
			e.Enqueued(12, &Listing{At: 11, Low: 1, High: 11, Keys: []queue.Entry{held5, {Key: "a/7", Rev: 8}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, h := holder(t)
			e := l.Register(nil, keyspace.Shared, "a/r5")
			learn(l, e)
			h.Leave(false)
			s := e.Next()
			require.Equal(t, Read, s.Do)
			require.GreaterOrEqual(t, s.At, int64(20))
			e.Saw(&s, s.Listing(20, nil, false, 2, nil))
			require.Equal(t, Gone, e.Next().Do)
		})
	}
}

// A key that a watch has told of before anybody knew it is not there, whatever an older reading shows.
func TestToldBeforeKnown(t *testing.T) {
	l, h := holder(t)
	e, next := l.Register(nil, keyspace.Exclusive, "a/5-1"), l.Register(nil, keyspace.Exclusive, "a/5-2")
	e.Enqueued(8, listing(7, held5, queue.Entry{Key: "a/7", Rev: 6}))
	next.Enqueued(12, nil)
	s := e.Next()
	require.Equal(t, Open, s.Do)
	e.Opened(newWatch(s.From, s.To, 12))
	s = e.Next()
	e.Saw(&s, s.Listing(12, []queue.Entry{held5, {Key: "a/7", Rev: 6}, {Key: "a/5-1", Rev: 8}}, true, 5, nil))
	require.Equal(t, Wait, e.Next().Do)
	e.watch.Heard([]Deletion{{"a/3", 14}, {"a/7", 15}})
	h.Leave(false)
	require.Equal(t, Grant, e.Next().Do)
	l.Saw(&Listing{At: 13, Low: 1, High: 13, Shared: true, Keys: []queue.Entry{held5, {Key: "a/3", Rev: 9}, {Key: "a/5-1", Rev: 8}, {Key: "a/5-2", Rev: 12}}})
	require.Equal(t, Step{Guard: true}, next.Next(), "a/3 is not there to wait for")
	e.Leave(false)
	require.Equal(t, Grant, next.Next().Do)
}

// Whoever was behind such a key has to have been there when it had gone.
func TestThereWhenTheToldHadGone(t *testing.T) {
	l, h := holder(t)
	e, next := l.Register(nil, keyspace.Exclusive, "a/5-1"), l.Register(nil, keyspace.Exclusive, "a/5-2")
	e.Enqueued(8, listing(7, held5))
	next.Enqueued(12, nil)
	e.Opened(newWatch("a/3", "a/4", 12))
	e.watch.Heard([]Deletion{{"a/3", 14}})
	l.Saw(listing(13, held5, queue.Entry{Key: "a/5-1", Rev: 8}, queue.Entry{Key: "a/3", Rev: 9}, queue.Entry{Key: "a/5-2", Rev: 12}))
	h.Leave(false)
	require.Equal(t, Grant, e.Next().Do)
	e.Leave(false)
	s := next.Next()
	require.Equal(t, Step{Do: Read, At: 14, Keys: []string{"a/5-2"}}, s)
	next.Saw(&s, s.Listing(14, nil, false, 0, nil))
	require.Equal(t, Gone, next.Next().Do)
}

// A reading is behind what a watch tells meanwhile, and so may be the next one, and the next. Still one reading is
// enough: what it shows, and the watch has not told of, is there.
func TestToldDuringAReading(t *testing.T) {
	keys := func(from, n int) (qs []queue.Entry) {
		for rev := from; rev < from+n; rev++ {
			qs = append(qs, queue.Entry{Key: fmt.Sprintf("a/6-%x", rev), Rev: int64(rev)})
		}
		return qs
	}
	for _, during := range []int{1, maxTold + 1} {
		l := newList()
		first, second := l.Register(nil, keyspace.Exclusive, "a/5"), l.Register(nil, keyspace.Exclusive, "a/5-1")
		before, between := keys(1, maxTold+2), keys(201, 3)
		first.Enqueued(200, listing(199, before...))
		second.Enqueued(300, nil)
		first.Opened(newWatch("a/0", "a/s", 300))
		all := slices.Concat(before, []queue.Entry{{Key: "a/5", Rev: 200}}, between, []queue.Entry{{Key: "a/5-1", Rev: 300}})
		s := second.Next()
		require.Equal(t, Read, s.Do)
		for i := range during {
			first.watch.Heard([]Deletion{{before[i].Key, int64(301 + i)}})
		}
		second.Saw(&s, s.Listing(300, all, false, 20, nil))
		if during > maxTold { // it does not remember that many
			s = second.Next()
			require.Equal(t, Read, s.Do)
			second.Saw(&s, s.Listing(s.At, all[during:], false, 20, nil))
		}
		at := int64(301 + during)
		for _, q := range before[during:] {
			require.Equal(t, Step{}, first.Next())
			require.Equal(t, Step{}, second.Next())
			first.watch.Heard([]Deletion{{q.Key, at}})
			at++
		}
		require.Equal(t, Grant, first.Next().Do)
		first.Stop()
		first.Leave(false)
		for _, q := range between {
			require.Equal(t, Step{}, second.Next())
			second.watch.Heard([]Deletion{{q.Key, at}})
			at++
		}
		require.Equal(t, Grant, second.Next().Do)
	}
}

// A key of an entry whose reply is on its way is nobody's until the reply tells whose.
func TestKeyOfAPendingEntry(t *testing.T) {
	for name, mine := range map[string]bool{"its own": true, "of others": false} {
		t.Run(name, func(t *testing.T) {
			l, h := holder(t)
			pending := l.Register(nil, keyspace.Exclusive, "a/5-1", "a/r5")
			e := l.Register(nil, keyspace.Exclusive, "a/5-2")
			seen := listing(7, held5, queue.Entry{Key: "a/5-1", Rev: 6}, queue.Entry{Key: "a/r5", Rev: 6})
			e.Enqueued(8, seen)
			require.Equal(t, Step{}, e.Next(), "it asks nothing")
			h.Leave(false)
			require.Equal(t, Step{}, e.Next())
			if mine {
				pending.Enqueued(6, listing(5, held5))
				require.Equal(t, Grant, pending.Next().Do)
				pending.Leave(false)
				require.Equal(t, Grant, e.Next().Do)
				return
			}
			pending.Rekey("a/5-3", "a/r5-1")
			require.Equal(t, Open, e.Next().Do)
		})
	}
}

// A late reply shows an entry that has left since. It is not in the way.
func TestLeftSince(t *testing.T) {
	l, h := holder(t)
	e := l.Register(nil, keyspace.Exclusive, "a/5-1")
	h.Leave(false)
	h.Removed(9, true, nil, nil)
	e.Enqueued(8, listing(7, held5))
	require.Equal(t, Grant, e.Next().Do)
}

// The watch on all of the queue stays for the entries to come: one that enters the queue needs no reading then.
func TestWideWatchIsKept(t *testing.T) {
	l := newList()
	w, closed := newWatch("a/0", "a/s", 6), 0
	w.Close = func() { closed++ }
	turn := func(rev int64) {
		e := l.Register(nil, keyspace.Exclusive, "a/5")
		other := queue.Entry{Key: "a/7", Rev: rev - 2}
		e.Enqueued(rev, listing(rev-1, other))
		if s := e.Next(); rev == 5 {
			require.Equal(t, Step{Do: Open, From: "a/0", To: "a/s"}, s)
			e.Opened(w)
			s = e.Next()
			e.Saw(&s, s.Listing(6, []queue.Entry{other, {Key: "a/5", Rev: rev}}, false, 2, nil))
		}
		require.Equal(t, Step{}, e.Next())
		second := l.Register(nil, keyspace.Exclusive, "a/5-1")
		second.Enqueued(rev+1, listing(rev, other, queue.Entry{Key: "a/5", Rev: rev}))
		l.expire() // one relies on it
		l.expire()
		w.Heard([]Deletion{{"a/5", rev - 1}, {"a/7", rev + 2}})
		require.Equal(t, Grant, e.Next().Do)
		e.Stop()
		e.Leave(false)
		e.Removed(rev+4, true, nil, nil)
		require.Equal(t, Grant, second.Next().Do)
		second.Stop()
		second.Leave(false)
		second.Removed(rev+5, true, nil, nil)
		require.True(t, l.expires)
		require.False(t, l.Empty())
		l.expire() // nobody does, but somebody did
	}
	for rev := range int64(3) {
		turn(5 + 10*rev)
	}
	require.Zero(t, closed)
	l.expire()
	require.Equal(t, 1, closed)
	require.True(t, l.Empty())
	require.Empty(t, l.open)
	w.Broke(errors.New("closed")) // which is no news
	require.Equal(t, 1, closed)
}

// So is the watch on the one before in a long queue, since that one comes again under the same key. The watch near the
// front is not.
func TestSingleWatchIsKept(t *testing.T) {
	l := newList()
	at := int64(0)
	var opened []*Watch
	turn := func() (opens int) {
		e := l.Register(nil, keyspace.Exclusive, "a/5")
		first := at + 1
		var others []queue.Entry
		for i := range int64(2*ManyShare - 1) {
			others = append(others, queue.Entry{Key: fmt.Sprintf("a/6%x", i), Rev: first + i})
		}
		at += 2 * ManyShare
		mine := queue.Entry{Key: "a/5", Rev: at}
		e.Enqueued(at, listing(at-1, others...))
		for s := e.Next(); s.Do != Grant; s = e.Next() {
			switch s.Do {
			case Open:
				opens++
				opened = append(opened, newWatch(s.From, s.To, at))
				e.Opened(opened[len(opened)-1])
				require.LessOrEqual(t, len(l.open), 2)
			case Read:
				e.Saw(&s, s.Listing(at, append([]queue.Entry{mine}, others...), false, int64(len(others)+1), nil))
			default:
				at++
				for _, w := range l.open {
					if w.covers(others[0].Key) {
						w.Heard([]Deletion{{others[0].Key, at}})
					}
				}
				others = others[1:]
			}
		}
		e.Stop()
		require.Len(t, l.open, 1)
		require.Equal(t, "a/6c", l.open[0].From)
		e.Leave(false)
		e.Removed(at+1, true, nil, nil)
		at++
		return opens
	}
	require.Equal(t, 2, turn())
	require.Equal(t, 1, turn())
	require.Equal(t, 1, turn())
	l.expire()
	l.expire()
	require.Empty(t, l.open)
	require.Equal(t, 2, turn())
}

// Two entries share a watch, if that covers what both wait for. It stays for the second when the first has the lock.
func TestNarrowWatchIsShared(t *testing.T) {
	l := newList()
	others := []queue.Entry{{Key: "a/7", Rev: 2}, {Key: "a/6", Rev: 6}}
	first, second := l.Register(nil, keyspace.Exclusive, "a/5"), l.Register(nil, keyspace.Exclusive, "a/5-1")
	size := func(seen *Listing) *Listing { seen.Size = 100; return seen }
	first.Enqueued(5, size(listing(4, others[0])))
	second.Enqueued(8, size(listing(7, others[0], held5, others[1])))
	s := first.Next()
	require.Equal(t, Step{Do: Open, From: "a/5", To: "a/7\x00"}, s)
	w := newWatch(s.From, s.To, 8)
	first.Opened(w)
	for _, e := range []*Entry{first, second} {
		for s = e.Next(); s.Do == Read; s = e.Next() {
			e.Saw(&s, s.Listing(8, []queue.Entry{others[0], held5, others[1], {Key: "a/5-1", Rev: 8}}, false, 100, nil))
		}
		require.Equal(t, Step{}, s)
	}
	w.Heard([]Deletion{{"a/7", 9}})
	require.Equal(t, Grant, first.Next().Do)
	first.Stop()
	require.Equal(t, []*Watch{w}, l.open)
	require.Equal(t, Step{}, second.Next())
	w.Heard([]Deletion{{"a/6", 10}})
	first.Leave(false)
	require.Equal(t, Grant, second.Next().Do)
	require.Empty(t, l.open)
}

// At most two are open, those that nobody relies on included, and two on all of the queue only while both are used.
func TestTwoWatches(t *testing.T) {
	l := newList()
	there := []queue.Entry{{Key: "a/7", Rev: 4}}
	var es []*Entry
	for i, key := range []string{"a/5", "a/5-1", "a/5-2"} {
		e := l.Register(nil, keyspace.Exclusive, key)
		e.Enqueued(int64(5+i), listing(int64(4+i), there...))
		es, there = append(es, e), append(there, queue.Entry{Key: key, Rev: int64(5 + i)})
	}
	wide := func() *Watch { return newWatch("a/0", "a/s", 8) }
	single, narrow, third := newWatch("a/7", "a/7\x00", 8), newWatch("a/5", "a/7\x00", 8), wide()
	es[0].Opened(single)
	es[0].Opened(narrow)
	require.Equal(t, []*Watch{single, narrow}, l.open)
	es[2].Opened(wide())
	es[1].Opened(third)
	require.Len(t, l.open, 3, "all are in use")
	es[2].Next() // others ask for it
	require.Equal(t, []*Watch{narrow, third}, l.open)
	es[0].Opened(wide())
	es[0].Stop()
	require.Equal(t, []*Watch{third}, l.open)
}

// A watch that breaks has those that rely on it ask anew, and nobody else.
func TestWatchBreaks(t *testing.T) {
	l := newList()
	other := queue.Entry{Key: "a/7", Rev: 2}
	first, second := l.Register(nil, keyspace.Exclusive, "a/5"), l.Register(nil, keyspace.Exclusive, "a/5-1")
	first.Enqueued(5, listing(4, other))
	second.Enqueued(6, listing(5, other, held5))
	w := newWatch("a/0", "a/s", 6)
	w.Close = func() { t.Error("who has broken it closes it") }
	first.Opened(w)
	broken := errors.New("broken")
	w.Broke(broken)
	require.Empty(t, l.open)
	require.Equal(t, Step{Do: Pause, Err: broken}, first.Next())
	require.Equal(t, Read, first.Next().Do)
	require.Equal(t, Step{}, second.Next(), "that reading serves both")
	// Also if another one covers the same.
	l.Saw(listing(6, other, held5, queue.Entry{Key: "a/5-1", Rev: 6}))
	second.Opened(newWatch("a/0", "a/s", 6))
	w = newWatch("a/5", "a/7\x00", 6)
	first.Opened(w)
	for range len(first.Wake()) {
		<-first.Wake()
	}
	w.Broke(broken)
	require.Len(t, first.Wake(), 1)
	require.Equal(t, Step{Do: Pause, Err: broken}, first.Next())
	second.Stop()
	l.expire()
	l.expire()
	second.Begin()
	// Nobody relies on one that is kept.
	w = newWatch("a/7", "a/7\x00", 6)
	first.Opened(w)
	first.Stop()
	first.Begin()
	require.Equal(t, []*Watch{w}, l.open)
	w.Broke(broken)
	require.Empty(t, l.open)
	require.Equal(t, Read, first.Next().Do)
}

// A session watches no more than it waits for if keys of other names lie among those of the queue, since their locks may
// be busy.
func TestNamesAreNested(t *testing.T) {
	nested := queue.Entry{Key: "a/b/1", Rev: 1}
	other := queue.Entry{Key: "a/7", Rev: 2}
	for _, told := range []bool{false, true} { // by a watch, or by a listing
		l := newList()
		e := l.Register(nil, keyspace.Exclusive, "a/5")
		if told {
			e.Enqueued(5, listing(4, other))
			require.Equal(t, Step{Do: Open, From: "a/0", To: "a/s"}, e.Next())
			e.Opened(newWatch("a/0", "a/s", 4))
			e.watch.Heard([]Deletion{{nested.Key, 6}})
			require.Empty(t, l.open)
		} else {
			e.Enqueued(5, listing(4, nested, other))
		}
		require.Equal(t, Step{Do: Open, From: "a/5", To: "a/7\x00"}, e.Next())
	}
}

// It is not kept, nor opened for one that waits, if that would have too many clients hear of each release, and
// nobody closes it while it is in use.
func TestWideWatchOfFew(t *testing.T) {
	others := func(n int) (qs []queue.Entry) {
		for i := range n {
			qs = append(qs, queue.Entry{Key: fmt.Sprintf("a/6-%x", i+1), Rev: int64(i + 1)})
		}
		return qs
	}
	for n, wide := range map[int]bool{ManyShare: true, ManyShare + 1: false} {
		l := newList()
		e := l.Register(nil, keyspace.Exclusive, "a/5")
		e.Enqueued(50, listing(49, others(n)...))
		require.Equal(t, wide, e.Next().To == "a/s", n)
	}
	for n, kept := range map[int]bool{ManyShare: true, ManyShare + 1: false} {
		l := newList()
		e := l.Register(nil, keyspace.Exclusive, "a/5")
		e.Enqueued(50, listing(49, others(1)...))
		w := newWatch("a/0", "a/s", 60)
		e.Opened(w)
		l.expire()
		l.expire()
		s := Step{}
		e.Saw(&s, &Listing{At: 60, Low: 1, High: 60, Shared: true, Keys: append(others(1), queue.Entry{Key: "a/5", Rev: 50}), Size: int64(n)})
		require.Equal(t, Wait, e.Next().Do)
		require.Len(t, l.open, 1, n)
		w.Heard([]Deletion{{others(1)[0].Key, 61}})
		require.Equal(t, Grant, e.Next().Do)
		e.Stop()
		require.Equal(t, kept, l.expires, n)
		require.Equal(t, kept, len(l.open) == 1, n)
	}
}

// A downgrade lets nobody in whom its request has not looked for, before somebody has.
func TestDowngradeLooks(t *testing.T) {
	l := newList()
	h := l.Register(nil, keyspace.Exclusive, "a/5", "a/r5")
	h.Enqueued(5, listing(4))
	h.Downgrading()
	require.Empty(t, h.Behind())
	e := l.Register(nil, keyspace.Shared, "a/r5-1")
	e.Enqueued(8, &Listing{At: 7, Low: 1, High: 7, Keys: []queue.Entry{held5}})
	h.Downgraded(20, nil, nil)
	s := e.Next()
	require.Equal(t, Read, s.Do)
	e.Saw(&s, s.Listing(20, nil, false, 2, nil))
	require.Equal(t, Gone, e.Next().Do)
}

// Entries whose txns did not show the whole queue are read for together, by one at a time, and before their
// turn.
func TestReadsForAll(t *testing.T) {
	l, h := holder(t)
	h.Leave(true) // so that nobody has the lock before it is gone
	var waiting []*Entry
	state := []queue.Entry{{Key: h.keys[0], Rev: h.rev}}
	for i := range 20 {
		key := fmt.Sprintf("a/5-%x", i+1)
		e := l.Register(nil, keyspace.Exclusive, key)
		e.Enqueued(h.rev+2+int64(i), nil)
		waiting, state = append(waiting, e), append(state, queue.Entry{Key: key, Rev: e.rev})
	}
	step := waiting[0].Next()
	require.Equal(t, Read, step.Do)
	require.Equal(t, waiting[19].rev, step.At, "at which all are there")
	require.Equal(t, Wait, waiting[1].Next().Do, "the first one asks for all")
	require.Equal(t, Wait, waiting[2].Next().Do)
	waiting[0].Saw(&step, step.Listing(step.At, state[1:5], true, 21, nil)) // as if there was a smaller limit
	require.Equal(t, Wait, waiting[1].Next().Do, "which is shown")
	for i, e := range waiting[2:] {
		want := Wait
		if i == 2 { // the first behind what was shown
			want = Read
		}
		require.Equal(t, want, e.Next().Do, i)
	}
}

// run is a list whose entries wait one behind the other, behind another session's key at revision 2, in a long queue.
func run(t *testing.T, n int) (l *List, es []*Entry, there []queue.Entry) {
	l, there = newList(), []queue.Entry{{Key: "a/7", Rev: 2}}
	for i := range n {
		e := l.Register(nil, keyspace.Exclusive, fmt.Sprintf("a/5-%x", i+1))
		rev := int64(5 + i)
		seen := listing(rev-1, there...)
		seen.Size = 1000
		e.Enqueued(rev, seen)
		es, there = append(es, e), append(there, queue.Entry{Key: e.keys[0], Rev: rev})
	}
	require.Equal(t, Open, es[0].Next().Do)
	return l, es, there
}

// The first one of a run looks for those behind it, at the revision from which its watch tells of all of them. So the lock
// goes through the run without a reading, although others have left meanwhile.
func TestRunIsSeenBefore(t *testing.T) {
	l, es, there := run(t, 4)
	behind := l.Register(nil, keyspace.Exclusive, "a/5-5") // not behind this one
	behind.Enqueued(12, listing(11, append(there, queue.Entry{Key: "a/8", Rev: 11})...))
	l.size = 1000
	s := es[0].Next()
	es[0].Opened(newWatch(s.From, s.To, 20))
	s = es[0].Next()
	require.Equal(t, Read, s.Do)
	require.Equal(t, []string{"a/5-2", "a/5-3", "a/5-4"}, askBehind(&s, es[0]))
	es[0].Saw(&s, s.Listing(20, there[:2], false, 1000, there[2:]))
	require.Equal(t, Step{}, es[0].Next())
	es[0].watch.Heard([]Deletion{{"a/7", 30}})
	for _, e := range es {
		require.Equal(t, Grant, e.Next().Do)
		e.Stop()
		e.Leave(false)
	}
}

// askBehind has the step read downward, as it does where the list knows that upward would take too long.
func askBehind(s *Step, e *Entry) []string {
	if s.Upward {
		e.notReached = true
		e.l.reader = nil
		*s = e.Next()
	}
	return s.Keys
}

// If they were not, one reading finds all of them.
func TestRunIsConfirmedTogether(t *testing.T) {
	l, es, there := run(t, 4)
	l.Saw(&Listing{At: 30, Asked: []string{"a/7"}, Low: 1, High: 0}) // the other one has gone
	s := es[0].Next()
	require.Equal(t, Step{Do: Read, At: 30, Keys: []string{"a/5-1", "a/5-2", "a/5-3", "a/5-4"}}, s)
	es[0].Saw(&s, s.Listing(30, nil, false, 0, there[1:]))
	for _, e := range es {
		require.Equal(t, Grant, e.Next().Do)
		e.Leave(false)
	}
}

// While the lock goes through the list, the third one reads what nobody knows yet, and not again what is known. If a
// other session's key is before it, that can wait.
func TestReadsAheadFromTheMark(t *testing.T) {
	for _, others := range []int64{0, 8, 30} {
		l, h := holder(t)
		seen := &Listing{At: 9, Low: 1, High: 9, Shared: true, Keys: []queue.Entry{held5}}
		if others > 0 {
			seen.Keys = append(seen.Keys, queue.Entry{Key: "a/7", Rev: others})
		}
		l.Saw(seen)
		var es []*Entry
		for i := range 3 {
			e := l.Register(nil, keyspace.Exclusive, fmt.Sprintf("a/5-%x", i+1))
			e.Enqueued(int64(20+i), nil)
			es = append(es, e)
		}
		l.marks = [2]int64{20, 20} // as if the first two were complete
		require.Equal(t, Grant, h.Next().Do)
		s := es[2].Next()
		if others == 8 {
			require.Equal(t, Step{}, s)
			continue
		}
		require.Equal(t, Read, s.Do)
		require.True(t, s.Upward)
		require.EqualValues(t, 21, s.Min)
	}
}

// An entry lists nothing if it is known to be behind more than it would list: of the list, or other sessions' that a
// watch would tell if they left. Others that may have left long ago do not count.
func TestBehindMore(t *testing.T) {
	l, h := holder(t)
	e, next := l.Register(nil, keyspace.Exclusive, "a/5-1"), l.Register(nil, keyspace.Exclusive, "a/5-2")
	there := []queue.Entry{held5, {Key: "a/6", Rev: 6}, {Key: "a/7", Rev: 7}, {Key: "a/r8", Rev: 8}}
	e.Enqueued(12, listing(11, there...))
	behind := func(e *Entry) (n int) {
		for e.BehindMore(n) {
			n++
		}
		return n
	}
	require.Equal(t, 2, behind(next), "the two of the list")
	e.Opened(newWatch("a/6", "a/z", 20))
	require.Equal(t, 2, behind(next), "the watch would not tell of what left before")
	l.Saw(listing(20, append(there, queue.Entry{Key: "a/5-1", Rev: 12})...))
	require.Equal(t, 5, behind(next))
	require.Equal(t, 4, behind(l.Register(nil, keyspace.Shared, "a/r5")), "no reader blocks a reader")
	e.watch.Heard([]Deletion{{"a/7", 22}})
	require.Equal(t, 4, behind(next))
	h.Leave(false)
	require.Equal(t, 3, behind(next))
}

// While the watch on all of the queue tells of all that the two in front wait for, they do nothing, and events that
// leave it so wake nobody.
func TestRestsBehindTheWideWatch(t *testing.T) {
	others := []queue.Entry{{Key: "a/6", Rev: 2}, {Key: "a/7", Rev: 3}, {Key: "a/8", Rev: 4}}
	all := append(others, queue.Entry{Key: "a/5-1", Rev: 5}, queue.Entry{Key: "a/5-2", Rev: 6})
	watched := func(t *testing.T) (l *List, first, second *Entry) {
		l = newList()
		first, second = l.Register(nil, keyspace.Exclusive, "a/5-1"), l.Register(nil, keyspace.Exclusive, "a/5-2")
		first.Enqueued(5, listing(4, others...))
		second.Enqueued(6, listing(5, all[:4]...))
		s := first.Next()
		require.Equal(t, Step{Do: Open, From: "a/0", To: "a/s"}, s)
		first.Opened(newWatch(s.From, s.To, 20))
		return l, first, second
	}
	t.Run("rests", func(t *testing.T) {
		l, first, second := watched(t)
		l.Saw(listing(20, all...))
		for _, e := range []*Entry{first, second} {
			require.Equal(t, Step{}, e.Next())
			<-e.Wake()
		}
		first.watch.Heard([]Deletion{{"a/7", 21}})
		require.Empty(t, first.Wake())
		require.Empty(t, second.Wake())
		l.Refresh()
		require.Len(t, first.Wake(), 1)
		require.Equal(t, Read, first.Next().Do, "what the watch may have missed")
	})
	t.Run("not if nobody has seen it behind the watch", func(t *testing.T) {
		l, first, _ := watched(t)
		<-first.Wake()
		l.Saw(&Listing{At: 20, Low: 1, Asked: []string{"a/6", "a/7", "a/8"}, Keys: others})
		require.Len(t, first.Wake(), 1)
		require.Equal(t, Read, first.Next().Do)
	})
	t.Run("not if others may be in the way that nobody knows", func(t *testing.T) {
		l, first, second := watched(t)
		second.Leave(false)
		l.Saw(listing(20, all...))
		third := l.Register(nil, keyspace.Exclusive, "a/5-3")
		l.marks = [2]int64{4, 4} // as if nobody knew the rest
		third.Enqueued(22, &Listing{At: 21, Low: 10, High: 21, Shared: true, Keys: []queue.Entry{{Key: "a/9", Rev: 15}}})
		require.Equal(t, Step{}, first.Next())
		require.Len(t, third.Wake(), 1)
		require.Equal(t, Read, third.Next().Do)
	})
}

// The second asks if it waits for others for which the first, a reader, does not.
func TestSecondAsksMore(t *testing.T) {
	for readers, want := range []Action{Wait, Open} {
		l := newList()
		first, second := l.Register(nil, keyspace.Shared, "a/r5"), l.Register(nil, keyspace.Exclusive, "a/5")
		there := []queue.Entry{{Key: "a/6", Rev: 2}, {Key: "a/r7", Rev: 3}}[:1+readers]
		first.Enqueued(5, &Listing{At: 4, Low: 1, High: 4, Keys: there[:1]})
		second.Enqueued(6, listing(5, append(there, queue.Entry{Key: "a/r5", Rev: 5})...))
		require.Equal(t, Open, first.Next().Do)
		require.Equal(t, want, second.Next().Do)
	}
}

// A reading shows what is there at a revision that is not before anything that a watch of the list has told of. One from
// before would say nothing new, and be asked for again and again.
func TestReadsWhatTheWatchesHaveTold(t *testing.T) {
	others := func(revs ...int64) (qs []queue.Entry) {
		for i, rev := range revs {
			qs = append(qs, queue.Entry{Key: fmt.Sprintf("a/%x", 7+i), Rev: rev})
		}
		return qs
	}
	two := func(l *List) (first, second *Entry) {
		first, second = l.Register(nil, keyspace.Exclusive, "a/5-1"), l.Register(nil, keyspace.Exclusive, "a/5-2")
		return first, second
	}
	open := func(e *Entry, at int64) {
		s := e.Next()
		require.Equal(t, Open, s.Do)
		e.Opened(newWatch(s.From, s.To, at))
	}
	t.Run("deep", func(t *testing.T) {
		l := newList()
		first, second := two(l)
		first.Enqueued(5, listing(4, others(2)...))
		all := append(others(2, 10, 11, 12), queue.Entry{Key: "a/5-1", Rev: 5})
		second.Enqueued(20, listing(19, all...))
		l.size = 1000
		open(first, 25)
		open(second, 30)
		first.watch.Heard([]Deletion{{"a/6", 40}})
		s := second.Next()
		require.Equal(t, Step{Do: Read, At: 40, Keys: []string{"a/8"}}, s)
	})
	t.Run("guard", func(t *testing.T) {
		l, h := holder(t)
		first, second := two(l)
		first.Enqueued(6, listing(5, held5))
		second.Enqueued(20, listing(19, append(others(10), held5, queue.Entry{Key: "a/5-1", Rev: 6})...))
		l.size = 1000
		first.Guard()
		open(first, 25)
		open(second, 30)
		second.watch.Heard([]Deletion{{"a/6", 40}})
		s := first.Next()
		require.Equal(t, Step{Do: Read, At: 40, Keys: []string{"a/5-1", h.keys[0]}}, s)
	})
}
