package waitlist

import (
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
// that is not any more drops its watch.
func TestPart_Begins(t *testing.T) {
	l := New("a")
	part := enqueued(l, "a/r5", 5, true)
	first, second := enqueued(l, "a/r5-1", 6, false), enqueued(l, "a/r5-2", 7, false)
	require.Equal(t, Wait, part.Next().Do)
	require.Equal(t, Open, first.Next().Do)
	for _, e := range []*Entry{first, second} {
		e.Opened(&Watch{From: "a/5", To: "a/8", At: 8})
		told(e)
	}
	part.Begin()
	require.True(t, told(part))
	require.Equal(t, Open, part.Next().Do)
	require.True(t, told(second))
	require.Equal(t, Drop, second.Next().Do)
	require.NotEqual(t, Drop, first.Next().Do)
}

// A part that nobody waits for yet has its lock as soon as the list knows that.
func TestPart_GrantedBeforeItBegins(t *testing.T) {
	l := New("a")
	part, e := enqueued(l, "a/r5", 5, true), enqueued(l, "a/r5-1", 6, false)
	s := e.Next()
	require.Equal(t, Open, s.Do)
	e.Opened(&Watch{From: s.From, To: s.To, At: 8})
	s = e.Next()
	require.Equal(t, Read, s.Do)
	e.Saw(&s, &Listing{At: 8, Low: 1, High: 8, Keys: append(others, queue.Entry{Key: "a/r5", Rev: 5}, queue.Entry{Key: "a/r5-1", Rev: 6})})
	told(part)
	e.Heard([]Deletion{{"a/7", 9}})
	require.True(t, e.Granted())
	if s, ok := part.Look(); ok {
		part.Saw(&s, s.Listing(9, nil, false, 2, []queue.Entry{{Key: "a/r5", Rev: 5}}))
	}
	require.True(t, part.Granted())
	require.True(t, told(part))
}

// A part is read for beside others if nobody asks for it: nobody waits for it, nor for one before it.
func TestPart_Look(t *testing.T) {
	l := New("a")
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
	l := New("a")
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
