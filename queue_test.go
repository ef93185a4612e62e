package etcdlock

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBlocker(t *testing.T) {
	x := func(rev int64) queued { return queued{"a/1", rev} }
	y := func(rev int64) queued { return queued{"a/2-1", rev} }
	z := func(rev int64) queued { return queued{"a/9", rev} }
	r := func(rev int64) queued { return queued{"a/r3", rev} }
	r2 := func(rev int64) queued { return queued{"a/r4-a", rev} }
	f := func(rev int64) queued { return queued{"a/b/5", rev} }
	x2 := func(rev int64) queued { return queued{"a/3", rev} }
	many := []queued{{"a/r3", 3}, {"a/r4", 4}, {"a/r5", 5}, {"a/r6", 6}, {"a/r7", 7}}
	for _, tc := range []struct {
		name       string
		wants      kind
		queue      []queued
		incomplete bool
		blockers   []queued
		next       []queued
		last       bool
		unknown    bool
	}{
		{name: "empty", wants: exclusive, last: true},
		{name: "empty, reader", wants: shared, last: true},
		{name: "only later ones", wants: exclusive, queue: []queued{x(10), r(12)}, last: true},
		{name: "one writer", wants: exclusive, queue: []queued{x(3)}, blockers: []queued{x(3)}, last: true},
		{name: "reader behind a writer", wants: shared, queue: []queued{x(3)}, blockers: []queued{x(3)}, last: true},
		{name: "reader behind a write lock's two keys", wants: shared, queue: []queued{x(3), r(3)}, blockers: []queued{x(3)}, last: true},
		{name: "writer behind a write lock's two keys", wants: exclusive, queue: []queued{x(3), r(3)}, blockers: []queued{x(3), r(3)}, last: true},
		{name: "two writers", wants: exclusive, queue: []queued{x(3), y(5)}, blockers: []queued{x(3), y(5)}, last: true},
		{name: "three writers, the earlier one first", wants: exclusive, queue: []queued{x(3), z(4), y(5)}, blockers: []queued{x(3)}, next: []queued{z(4), y(5)}},
		{name: "three writers, in another order", wants: exclusive, queue: []queued{y(5), x(3), z(4)}, blockers: []queued{x(3)}, next: []queued{z(4), y(5)}},
		{name: "four writers, the last but two first", wants: exclusive, queue: []queued{x(3), x2(6), z(4), y(5)}, blockers: []queued{z(4)}, next: []queued{y(5), x2(6)}},
		{name: "reader behind two writers", wants: shared, queue: []queued{y(5), x(3)}, blockers: []queued{x(3), y(5)}, last: true},
		{name: "reader behind three writers", wants: shared, queue: []queued{y(5), x(3), z(4)}, blockers: []queued{x(3)}, next: []queued{z(4), y(5)}},
		{name: "key order is no order", wants: exclusive, queue: []queued{x(6), y(5), z(3)}, blockers: []queued{z(3)}, next: []queued{y(5), x(6)}},
		{name: "readers don't wait for readers", wants: shared, queue: []queued{r(3), r2(4)}, last: true},
		{name: "reader behind reader behind writer", wants: shared, queue: []queued{x(3), r(4)}, blockers: []queued{x(3)}, last: true},
		{name: "writer behind readers", wants: exclusive, queue: []queued{r(3), r2(4)}, blockers: []queued{r(3), r2(4)}, last: true},
		{name: "writer behind a few readers behind writer", wants: exclusive, queue: []queued{x(2), r(3), r2(4)}, blockers: []queued{x(2), r(3), r2(4)}, last: true},
		{name: "writer behind many readers behind writer", wants: exclusive, queue: append(many, x(2)), blockers: []queued{x(2)}},
		{name: "writer behind many readers", wants: exclusive, queue: many, blockers: many, last: true},
		{name: "reader between writers", wants: exclusive, queue: []queued{x(2), r(3), y(4)}, blockers: []queued{x(2), r(3), y(4)}, last: true},
		{name: "foreign keys don't block", wants: exclusive, queue: []queued{f(2), f(3)}, last: true},
		{name: "foreign keys don't count", wants: exclusive, queue: []queued{f(2), x(3)}, blockers: []queued{x(3)}, last: true},
		{name: "part that shows the last writer", wants: exclusive, queue: []queued{r(5), x(4)}, incomplete: true, blockers: []queued{x(4)}},
		{name: "part that shows the last two", wants: exclusive, queue: []queued{r(5), x(4), y(3)}, incomplete: true, blockers: []queued{x(4), y(3)}},
		{name: "part that shows the last three", wants: exclusive, queue: []queued{z(5), x(4), y(3)}, incomplete: true, blockers: []queued{y(3)}, next: []queued{x(4), z(5)}},
		{name: "part that shows readers only", wants: exclusive, queue: []queued{r(5), r2(4)}, incomplete: true, unknown: true},
		{name: "part that shows foreign keys only", wants: shared, queue: []queued{f(5)}, incomplete: true, unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, ok := blocker("a", tc.wants, 10, tc.queue, !tc.incomplete)
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
	queue := []queued{{"a/1", 3}, {"a/r1", 3}, {"a/r2", 4}, {"a/r3", 5}, {"a/4", 6}, {"a/x/1", 7}, {"a/5", 9}}
	require.Equal(t, 4, ahead("a", exclusive, 8, queue), "a write lock counts once, foreign keys don't")
	require.Equal(t, 2, ahead("a", shared, 8, queue), "readers before a reader don't count")
	require.Equal(t, 0, ahead("a", exclusive, 3, queue))
}

// entitled is the definition that blocker serves: who may hold the lock.
func entitled(wants kind, rev int64, queue []queued) bool {
	for _, q := range queue {
		k := kindOf("a", q.Key)
		if q.Rev < rev && (k == exclusive || k == shared && wants == exclusive) {
			return false
		}
	}
	return true
}

// FuzzBlocker plays a queue to its end: entries leave in any order, whether
// granted or not, and an entry that follows blocker's word never has the lock
// before it is entitled, nor waits for somebody who is not there.
func FuzzBlocker(f *testing.F) {
	f.Add(uint64(1), uint64(1), 5)
	f.Add(uint64(7), uint64(3), 12)
	f.Fuzz(func(t *testing.T, a, b uint64, n int) {
		r := rand.New(rand.NewPCG(a, b))
		n = 1 + max(n, -n)%24
		keys := []string{"a/1", "a/2", "a/3-1", "a/r1", "a/r2", "a/r3-1", "a/r4", "a/b/1", "a/stray"}
		var queue []queued
		for rev := int64(2); len(queue) < n; rev++ {
			q := queued{keys[r.IntN(len(keys))], rev}
			if slices.ContainsFunc(queue, func(o queued) bool { return o.Key == q.Key }) {
				q.Key += "f"
			}
			queue = append(queue, q)
		}
		wants, rev := exclusive, int64(r.IntN(n+3)+2)
		if r.IntN(2) == 0 {
			wants = shared
		}
		r.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		v, ok := blocker("a", wants, rev, queue, true)
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
				if len(v.Next) > 0 && kindOf("a", q.Key) == exclusive && q.Rev > v.Blockers[0].Rev && q.Rev < rev && !slices.Contains(v.Next, q) {
					t.Fatalf("%v at %d in %v: %v and then %v, but %v", wants, rev, queue, v.Blockers, v.Next, q)
				}
			}
			// Any part that holds the highest says the same, or that it can't, or
			// knows the last ones only.
			byRev := slices.Clone(queue)
			slices.SortFunc(byRev, func(a, b queued) int { return int(b.Rev - a.Rev) })
			if p, ok := blocker("a", wants, rev, byRev[:r.IntN(len(byRev)+1)], false); ok {
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
				waitFor = slices.DeleteFunc(slices.Clone(waitFor), func(q queued) bool { return q == gone })
			}
			if v.Last && !entitled(wants, rev, queue) {
				t.Fatalf("%v at %d in %v: something was left", wants, rev, queue)
			}
			v, ok = blocker("a", wants, rev, queue, true)
		}
	})
}
