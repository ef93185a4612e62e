package waitlist

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// others are before the entries of the tests, in a long queue.
var others = []queue.Entry{{Key: "a/7", Rev: 2}}

// enqueued is a new entry at that revision, of the kind that its key has. Nobody waits for a part.
func enqueued(l *List, key string, rev int64, part bool) *Entry {
	e := l.Register(nil, keyspace.KindOf("a", key), key)
	if part {
		e.WakeWith(e)
	}
	seen := listing(rev-1, others...)
	for _, p := range l.places {
		if p.own != nil {
			seen.Keys = append(seen.Keys, p.Entry)
		}
	}
	seen.Size = 1000
	e.Enqueued(rev, seen)
	return e
}

// told reports whether the entry was woken since.
func told(e *Entry) bool {
	select {
	case <-e.Wake():
		return true
	default:
		return false
	}
}

// A part that nobody waits for yet asks nothing, so those behind it ask. When its turn comes it is in front, and the one
// that is not any more has no use for its watch.
func TestPart_Begins(t *testing.T) {
	l := newList()
	part := enqueued(l, "a/r5", 5, true)
	first, second := enqueued(l, "a/r5-1", 6, false), enqueued(l, "a/r5-2", 7, false)
	require.Equal(t, Wait, part.Next().Do)
	require.Equal(t, Open, first.Next().Do)
	for _, e := range []*Entry{first, second} {
		e.Opened(newWatch("a/5", "a/8", 8))
		told(e)
	}
	part.Begin()
	require.True(t, told(part))
	require.Equal(t, Open, part.Next().Do)
	require.Nil(t, second.watch)
	require.NotNil(t, first.watch)
	require.Len(t, l.open, 1)
	second.Opened(newWatch("a/5", "a/7", 8)) // as it was about to
	require.Equal(t, Step{}, second.Next())
	require.Nil(t, second.watch)
	require.Len(t, l.open, 1)
}

// A part that nobody waits for yet has its lock as soon as the list knows that.
func TestPart_GrantedBeforeItBegins(t *testing.T) {
	l := newList()
	part, e := enqueued(l, "a/r5", 5, true), enqueued(l, "a/r5-1", 6, false)
	s := e.Next()
	require.Equal(t, Open, s.Do)
	e.Opened(newWatch(s.From, s.To, 8))
	s = e.Next()
	require.Equal(t, Read, s.Do)
	e.Saw(&s, &Listing{At: 8, Low: 1, High: 8, Keys: append(others, queue.Entry{Key: "a/r5", Rev: 5}, queue.Entry{Key: "a/r5-1", Rev: 6})})
	told(part)
	e.watch.Heard([]Deletion{{"a/7", 9}})
	require.True(t, e.Granted())
	if s, ok := part.Look(); ok {
		part.Saw(&s, s.Listing(9, nil, false, 2, []queue.Entry{{Key: "a/r5", Rev: 5}}))
	}
	require.True(t, part.Granted())
	require.True(t, told(part))
}

// A part that nobody waits for yet may be removed by somebody. The one behind it asks for it, as for a holder: nobody else
// does.
func TestPart_RemovedBeforeItBegins(t *testing.T) {
	l := newList()
	part, e := enqueued(l, "a/5", 5, true), enqueued(l, "a/5-1", 6, false)
	l.Saw(&Listing{At: 9, Low: 1, Asked: []string{"a/7"}})
	s := e.Next()
	require.Equal(t, Step{Do: Read, At: 9, Keys: []string{"a/5-1"}}, s)
	e.Saw(&s, s.Listing(9, nil, false, 0, []queue.Entry{{Key: "a/5-1", Rev: 6}}))
	require.Equal(t, Step{Guard: true}, e.Next())
	e.Guard()
	s = e.Next()
	require.Equal(t, Step{Do: Open, From: "a/5", To: "a/5-1\x00"}, s)
	e.Opened(newWatch(s.From, s.To, 10))
	s = e.Next()
	require.Equal(t, Read, s.Do)
	require.Equal(t, []string{"a/5-1", "a/5"}, s.Keys)
	e.Saw(&s, s.Listing(10, nil, false, 0, []queue.Entry{{Key: "a/5-1", Rev: 6}}))
	require.True(t, part.Gone())
	require.Equal(t, Grant, e.Next().Do)
}

// Behind many of them an entry asks again only when all that it has asked about have left.
func TestPart_ManyBeforeTheyBegin(t *testing.T) {
	l := newList()
	var parts []*Entry
	for i := range 3 * nextMax {
		parts = append(parts, enqueued(l, fmt.Sprintf("a/5-%x", i+1), int64(5+i), true))
	}
	e := enqueued(l, "a/5", 100, false)
	at := int64(109)
	l.Saw(&Listing{At: at, Low: 1, Asked: []string{"a/7"}})
	e.Guard()
	var asked []Action
	for _, part := range parts {
		for s := e.Next(); s.Do != Wait; s = e.Next() {
			asked = append(asked, s.Do)
			if at++; s.Do == Open {
				e.Opened(newWatch(s.From, s.To, at))
				continue
			}
			var there []queue.Entry
			for _, p := range l.places {
				if slices.Contains(s.Keys, p.Key) {
					there = append(there, p.Entry)
				}
			}
			e.Saw(&s, s.Listing(max(at, s.At), nil, false, 0, there))
		}
		require.True(t, part.Granted())
		part.Leave(false)
	}
	require.Equal(t, []Action{Read, Open, Read, Read, Read}, asked)
	require.Equal(t, Grant, e.Next().Do)
}

// What waits for a holder has a watch on both, and both are seen behind that.
func TestGuard(t *testing.T) {
	for _, keys := range [][2]string{{"a/5", "a/5-1"}, {"a/5-1", "a/5"}} {
		held, waits := queue.Entry{Key: keys[0], Rev: 5}, queue.Entry{Key: keys[1], Rev: 6}
		for _, other := range []string{"a/7", held.Key, waits.Key} {
			l := newList()
			h, e := l.Register(nil, keyspace.Exclusive, held.Key), l.Register(nil, keyspace.Exclusive, waits.Key)
			h.Enqueued(5, listing(4))
			e.Enqueued(6, listing(5, held))
			e.Opened(newWatch(other, other+"\x00", 8))
			l.Saw(listing(9, held, waits))
			e.Guard()
			s := e.Next()
			require.Equal(t, Step{Do: Open, From: "a/5", To: "a/5-1\x00"}, s)
			e.Opened(newWatch(s.From, s.To, 10))
			l.Saw(&Listing{At: 11, Low: 1, Asked: []string{held.Key}, Keys: []queue.Entry{held}})
			s = e.Next()
			require.Equal(t, Read, s.Do)
			e.Saw(&s, s.Listing(11, nil, false, 0, []queue.Entry{held}))
			require.Equal(t, Gone, e.Next().Do)
		}
	}
}

// A part is read for beside others if nobody asks for it: nobody waits for it, nor for one before it.
func TestPart_Look(t *testing.T) {
	l := newList()
	before, part := enqueued(l, "a/5", 5, true), enqueued(l, "a/5-1", 6, true)
	_, ok := part.Look()
	require.True(t, ok)
	part.Fail()
	before.Begin()
	_, ok = part.Look()
	require.False(t, ok)
	_, ok = before.Look()
	require.True(t, ok)
}

// What was seen after another one had left behind it is read at that revision or later: an older reading would not tell
// anything, and be asked for again.
func TestUnsureSeenLater(t *testing.T) {
	l := newList()
	reader, writer := queue.Entry{Key: "a/r4", Rev: 2}, queue.Entry{Key: "a/7", Rev: 4}
	e := l.Register(nil, keyspace.Exclusive, "a/5")
	e.Enqueued(8, listing(7, reader, writer))
	l.Saw(&Listing{At: 32, High: 0, Low: 1, Asked: []string{reader.Key}, Keys: []queue.Entry{reader}})
	l.Saw(&Listing{At: 30, High: 0, Low: 1, Asked: []string{writer.Key}})
	s := e.Next()
	require.Equal(t, Read, s.Do)
	require.Equal(t, int64(32), s.At)
	e.Saw(&s, s.Listing(32, []queue.Entry{reader, {Key: "a/5", Rev: 8}}, false, 2, nil))
	require.Equal(t, Open, e.Next().Do)
}
