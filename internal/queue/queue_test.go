package queue

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

func TestBlockers(t *testing.T) {
	x := func(rev int64) Entry { return Entry{"a/1", rev} }
	y := func(rev int64) Entry { return Entry{"a/2-1", rev} }
	z := func(rev int64) Entry { return Entry{"a/9", rev} }
	r := func(rev int64) Entry { return Entry{"a/r3", rev} }
	r2 := func(rev int64) Entry { return Entry{"a/r4-a", rev} }
	f := func(rev int64) Entry { return Entry{"a/b/5", rev} }
	x2 := func(rev int64) Entry { return Entry{"a/3", rev} }
	many := []Entry{{"a/r3", 3}, {"a/r4", 4}, {"a/r5", 5}, {"a/r6", 6}, {"a/r7", 7}}
	for _, tc := range []struct {
		name       string
		wants      keyspace.Kind
		queue      []Entry
		incomplete bool
		blockers   []Entry
		next       []Entry
		last       bool
		unknown    bool
	}{
		{name: "empty", wants: keyspace.Exclusive, last: true},
		{name: "empty, reader", wants: keyspace.Shared, last: true},
		{name: "only later ones", wants: keyspace.Exclusive, queue: []Entry{x(10), r(12)}, last: true},
		{name: "one writer", wants: keyspace.Exclusive, queue: []Entry{x(3)}, blockers: []Entry{x(3)}, last: true},
		{name: "reader behind a writer", wants: keyspace.Shared, queue: []Entry{x(3)}, blockers: []Entry{x(3)}, last: true},
		{name: "reader behind a write lock's two keys", wants: keyspace.Shared, queue: []Entry{x(3), r(3)}, blockers: []Entry{x(3)}, last: true},
		{name: "writer behind a write lock's two keys", wants: keyspace.Exclusive, queue: []Entry{x(3), r(3)}, blockers: []Entry{x(3), r(3)}, last: true},
		{name: "two writers", wants: keyspace.Exclusive, queue: []Entry{x(3), y(5)}, blockers: []Entry{x(3), y(5)}, last: true},
		{name: "three writers, the earlier one first", wants: keyspace.Exclusive, queue: []Entry{x(3), z(4), y(5)}, blockers: []Entry{x(3)}, next: []Entry{z(4), y(5)}},
		{name: "three writers, in another order", wants: keyspace.Exclusive, queue: []Entry{y(5), x(3), z(4)}, blockers: []Entry{x(3)}, next: []Entry{z(4), y(5)}},
		{name: "four writers, the last but two first", wants: keyspace.Exclusive, queue: []Entry{x(3), x2(6), z(4), y(5)}, blockers: []Entry{z(4)}, next: []Entry{y(5), x2(6)}},
		{name: "reader behind two writers", wants: keyspace.Shared, queue: []Entry{y(5), x(3)}, blockers: []Entry{x(3), y(5)}, last: true},
		{name: "reader behind three writers", wants: keyspace.Shared, queue: []Entry{y(5), x(3), z(4)}, blockers: []Entry{x(3)}, next: []Entry{z(4), y(5)}},
		{name: "key order is no order", wants: keyspace.Exclusive, queue: []Entry{x(6), y(5), z(3)}, blockers: []Entry{z(3)}, next: []Entry{y(5), x(6)}},
		{name: "readers don't wait for readers", wants: keyspace.Shared, queue: []Entry{r(3), r2(4)}, last: true},
		{name: "reader behind reader behind writer", wants: keyspace.Shared, queue: []Entry{x(3), r(4)}, blockers: []Entry{x(3)}, last: true},
		{name: "writer behind readers", wants: keyspace.Exclusive, queue: []Entry{r(3), r2(4)}, blockers: []Entry{r(3), r2(4)}, last: true},
		{name: "writer behind a few readers behind writer", wants: keyspace.Exclusive, queue: []Entry{x(2), r(3), r2(4)}, blockers: []Entry{x(2), r(3), r2(4)}, last: true},
		{name: "writer behind many readers behind writer", wants: keyspace.Exclusive, queue: append(many, x(2)), blockers: []Entry{x(2)}},
		{name: "writer behind many readers", wants: keyspace.Exclusive, queue: many, blockers: many, last: true},
		{name: "reader between writers", wants: keyspace.Exclusive, queue: []Entry{x(2), r(3), y(4)}, blockers: []Entry{x(2), r(3), y(4)}, last: true},
		{name: "foreign keys don't block", wants: keyspace.Exclusive, queue: []Entry{f(2), f(3)}, last: true},
		{name: "foreign keys don't count", wants: keyspace.Exclusive, queue: []Entry{f(2), x(3)}, blockers: []Entry{x(3)}, last: true},
		{name: "part that shows the last writer", wants: keyspace.Exclusive, queue: []Entry{r(5), x(4)}, incomplete: true, blockers: []Entry{x(4)}},
		{name: "part that shows the last two", wants: keyspace.Exclusive, queue: []Entry{r(5), x(4), y(3)}, incomplete: true, blockers: []Entry{x(4), y(3)}},
		{name: "part that shows the last three", wants: keyspace.Exclusive, queue: []Entry{z(5), x(4), y(3)}, incomplete: true, blockers: []Entry{y(3)}, next: []Entry{x(4), z(5)}},
		{name: "part that shows readers only", wants: keyspace.Exclusive, queue: []Entry{r(5), r2(4)}, incomplete: true, unknown: true},
		{name: "part that shows foreign keys only", wants: keyspace.Shared, queue: []Entry{f(5)}, incomplete: true, unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, ok := Blockers("a", tc.wants, 10, tc.queue, !tc.incomplete)
			require.Equal(t, !tc.unknown, ok)
			require.ElementsMatch(t, tc.blockers, v.Blockers)
			if ok {
				require.Equal(t, tc.last, v.Last)
				require.Equal(t, tc.next, v.Next)
			}
		})
	}
}

func TestAhead(t *testing.T) {
	queue := []Entry{{"a/1", 3}, {"a/r1", 3}, {"a/r2", 4}, {"a/r3", 5}, {"a/4", 6}, {"a/x/1", 7}, {"a/5", 9}}
	ahead := func(rev int64, queue []Entry) int {
		revs := make(map[int64]struct{})
		Ahead(revs, "a", rev, queue)
		Ahead(revs, "a", rev, queue[:len(queue)/2]) // what is in two queues counts once
		return len(revs)
	}
	require.Equal(t, 4, ahead(8, queue), "a write lock counts once, foreign keys don't")
	require.Equal(t, 0, ahead(3, queue))
}

// entitled is the definition that blocker serves: who may hold the lock.
func entitled(wants keyspace.Kind, rev int64, queue []Entry) bool {
	for _, q := range queue {
		k := keyspace.KindOf("a", q.Key)
		if q.Rev < rev && (k == keyspace.Exclusive || k == keyspace.Shared && wants == keyspace.Exclusive) {
			return false
		}
	}
	return true
}

// FuzzBlockers plays a queue to its end: entries leave in any order, whether
// granted or not, and an entry that follows blocker's word never has the lock
// before it is entitled, nor waits for somebody who is not there.
func FuzzBlockers(f *testing.F) {
	f.Add(uint64(1), uint64(1), 5)
	f.Add(uint64(7), uint64(3), 12)
	f.Fuzz(func(t *testing.T, a, b uint64, n int) {
		r := rand.New(rand.NewPCG(a, b))
		n = 1 + max(n, -n)%24
		keys := []string{"a/1", "a/2", "a/3-1", "a/r1", "a/r2", "a/r3-1", "a/r4", "a/b/1", "a/stray"}
		var queue []Entry
		for rev := int64(2); len(queue) < n; rev++ {
			q := Entry{keys[r.IntN(len(keys))], rev}
			if slices.ContainsFunc(queue, func(o Entry) bool { return o.Key == q.Key }) {
				q.Key += "f"
			}
			queue = append(queue, q)
		}
		wants, rev := keyspace.Exclusive, int64(r.IntN(n+3)+2)
		if r.IntN(2) == 0 {
			wants = keyspace.Shared
		}
		r.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		v, ok := Blockers("a", wants, rev, queue, true)
		for {
			if !ok {
				t.Fatal("a whole queue suffices")
			}
			if (len(v.Blockers) == 0) != entitled(wants, rev, queue) {
				t.Fatalf("%v at %d in %v: blockers %v", wants, rev, queue, v.Blockers)
			}
			waitsFor := slices.Concat(v.Blockers, v.Next)
			for _, q := range waitsFor {
				if !slices.Contains(queue, q) || q.Rev >= rev {
					t.Fatalf("%v at %d in %v waits for %v", wants, rev, queue, q)
				}
			}
			// Between the blocker and the next ones stands nobody who makes the viewer wait.
			for _, q := range queue {
				if len(v.Next) > 0 && keyspace.KindOf("a", q.Key) == keyspace.Exclusive && q.Rev > v.Blockers[0].Rev && q.Rev < rev && !slices.Contains(v.Next, q) {
					t.Fatalf("%v at %d in %v: %v and then %v, but %v", wants, rev, queue, v.Blockers, v.Next, q)
				}
			}
			// Any part that holds the highest says the same, or that it can't, or
			// knows the last ones only.
			byRev := slices.Clone(queue)
			slices.SortFunc(byRev, func(a, b Entry) int { return int(b.Rev - a.Rev) })
			if p, ok := Blockers("a", wants, rev, byRev[:r.IntN(len(byRev)+1)], false); ok {
				if len(p.Next) > 0 && !slices.Equal(p.Blockers, v.Blockers) || len(p.Blockers) == 0 {
					t.Fatalf("part %v, whole %v", p, v)
				}
				for _, q := range slices.Concat(p.Blockers, p.Next) {
					if !slices.Contains(queue, q) || q.Rev >= rev {
						t.Fatalf("%v at %d in a part of %v waits for %v", wants, rev, queue, q)
					}
				}
				if p.Last {
					t.Fatalf("part %v: it can't know that nothing is left of %v", p, queue)
				}
			}
			if len(v.Blockers) == 0 {
				return
			}
			waitFor := v.Blockers
			for len(waitFor) > 0 {
				i := r.IntN(len(queue))
				gone := queue[i]
				queue = slices.Delete(slices.Clone(queue), i, i+1)
				waitFor = slices.DeleteFunc(slices.Clone(waitFor), func(q Entry) bool { return q == gone })
			}
			if v.Last && !entitled(wants, rev, queue) {
				t.Fatalf("%v at %d in %v: something was left", wants, rev, queue)
			}
			v, ok = Blockers("a", wants, rev, queue, true)
		}
	})
}
