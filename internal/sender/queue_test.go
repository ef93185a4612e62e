package sender

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func ops(n int) []clientv3.Op { return make([]clientv3.Op, n) }

func enqueueOf(names ...string) *Command {
	return &Command{Names: names, Then: ops(2)}
}

func removalOf(name string) *Command {
	return &Command{Names: []string{name}, Then: ops(1), Did: neverDid}
}

func neverDid(Reply) bool { return false }

// come has a command come and wait.
func (q *queue) come(c *Command) {
	q.came++
	c.turn = q.came
	q.add(c)
}

// takeAll takes requests until nothing waits.
func (q *queue) takeAll(l *limits) (all [][]*Command) {
	for q.len() > 0 {
		b := q.take(l, false)
		for _, c := range b {
			c.state = sent
		}
		all = append(all, b)
	}
	return all
}

func TestQueue_WhatGoesTogether(t *testing.T) {
	a1, a2, b1, ab, b2 := enqueueOf("a"), enqueueOf("a"), enqueueOf("b"), enqueueOf("a", "b"), enqueueOf("b")
	a3, a4 := enqueueOf("a"), enqueueOf("a")
	ra, rb, c1 := removalOf("a"), removalOf("b"), enqueueOf("c")
	large, huge := enqueueOf("d"), enqueueOf("e")
	large.Then = ops(maxOps + 1)
	huge.Then[0] = clientv3.OpPut("e", string(make([]byte, maxBytes)))
	half, rest := enqueueOf("f"), enqueueOf("g")
	half.Then[0] = clientv3.OpPut("f", string(make([]byte, maxBytes/2)))
	rest.Then[0] = clientv3.OpPut("g", string(make([]byte, maxBytes/2)))
	for name, tc := range map[string]struct {
		waiting []*Command
		limits  *limits
		want    [][]*Command
	}{
		"different names":                     {[]*Command{a1, b1, c1}, &limits{most: 64}, [][]*Command{{a1, b1, c1}}},
		"two enqueues of a name":              {[]*Command{a1, a2, b1}, &limits{most: 64}, [][]*Command{{a1, b1}, {a2}}},
		"several names at once":               {[]*Command{a1, ab, b1, b2}, &limits{most: 64}, [][]*Command{{a1}, {ab}, {b1}, {b2}}},
		"removals go before enqueues":         {[]*Command{a1, ra, b1, rb}, &limits{most: 64}, [][]*Command{{ra, rb, a1, b1}}},
		"removals pass what is left behind":   {[]*Command{a1, a2, ra}, &limits{most: 64}, [][]*Command{{ra, a1}, {a2}}},
		"no more than etcd allows":            {[]*Command{a1, b1, c1, ra, rb}, &limits{most: 2}, [][]*Command{{ra, a1}, {rb, b1}, {c1}}},
		"etcd allows nothing else":            {[]*Command{a1, b1}, &limits{most: 1}, [][]*Command{{a1}, {b1}}},
		"one of many operations goes alone":   {[]*Command{a1, large, b1}, &limits{most: 64}, [][]*Command{{a1, b1}, {large}}},
		"at once, if nobody came before":      {[]*Command{large, a1, b1}, &limits{most: 64}, [][]*Command{{large}, {a1, b1}}},
		"so does one that puts much":          {[]*Command{a1, huge, b1}, &limits{most: 64}, [][]*Command{{a1, b1}, {huge}}},
		"no more than a request puts":         {[]*Command{half, rest, c1}, &limits{most: 64}, [][]*Command{{half, c1}, {rest}}},
		"what was refused, stays by itself":   {[]*Command{a1, b1, c1}, refusing("b"), [][]*Command{{a1, c1}, {b1}}},
		"a crowd on one name delays no other": {[]*Command{a1, a2, a3, ab, a4, c1, b2}, &limits{most: 64}, [][]*Command{{a1, c1}, {a2}, {a3}, {ab}, {a4, b2}}},
		"and keeps the order with its names":  {[]*Command{a1, ab, b2, c1}, refusing("a"), [][]*Command{{a1}, {ab}, {b2, c1}}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue{names: lines{}}
			for _, c := range tc.waiting {
				c.state = waits
				q.come(c)
			}
			require.Equal(t, labels(tc.want), labels(q.takeAll(tc.limits)))
			require.Empty(t, q.names)
			require.Nil(t, q.removals)
			require.Nil(t, q.enqueues)
		})
	}
}

func labels(all [][]*Command) (s []string) {
	for _, b := range all {
		text := ""
		for _, c := range b {
			text += fmt.Sprintf("%p %v %t, ", c, c.Names, c.enqueues())
		}
		s = append(s, text)
	}
	return s
}

func refusing(name string) *limits {
	l := &limits{most: 64}
	l.refused.Add([]string{name}, time.Minute)
	return l
}

// Whatever waits, and whoever gives up: each command goes once; no two enqueues of a name go together, or in another
// order than they came; who waits longest goes next; and nobody waits who could go.
func TestQueue_Random(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		l := &limits{most: 1 + r.IntN(8)}
		q := queue{names: lines{}}
		var came, gone []*Command
		for len(gone) < 200 {
			for range r.IntN(max(1, min(12, 50-q.len()))) {
				c := enqueueOf(string(rune('a' + r.IntN(5))))
				switch r.IntN(4) {
				case 0:
					c.Did = neverDid
				case 1:
					c.Names = append(c.Names, string(rune('f'+r.IntN(5))), string(rune('k'+r.IntN(2))))
				}
				if r.IntN(10) == 0 {
					c.Then = ops(maxOps + 1)
				}
				q.come(c)
				came = append(came, c)
			}
			for range r.IntN(3) {
				if c := came[max(0, len(came)-1-r.IntN(20)):]; len(c) > 0 && c[0].state == waits {
					q.forget(c[0])
				}
			}
			if q.len() == 0 {
				continue
			}
			first, before := came[slices.IndexFunc(came, func(c *Command) bool { return c.state == waits })], q.len()
			require.Same(t, first, q.first(), "seed %d", seed)
			b := q.take(l, false)
			require.Equal(t, before-len(b), q.len(), "seed %d", seed)
			require.Contains(t, b, first, "seed %d", seed)
			require.LessOrEqual(t, len(b), l.most)
			require.True(t, slices.IsSortedFunc(b, func(x, y *Command) int { return btoi(x.enqueues()) - btoi(y.enqueues()) }))
			names := map[string]bool{}
			for _, c := range b {
				require.Equal(t, waits, c.state, "seed %d", seed)
				require.True(t, len(b) == 1 || c.ops() <= maxOps)
				c.state = sent
				for _, name := range c.Names {
					require.False(t, c.enqueues() && names[name], "seed %d: two enqueues of %s", seed, name)
					names[name] = names[name] || c.enqueues()
				}
			}
			for i, c := range came {
				if c.state != waits && !slices.Contains(b, c) {
					continue
				}
				behind := slices.ContainsFunc(came[:i], func(o *Command) bool {
					waited := o.state == waits || slices.Contains(b, o)
					return waited && c.enqueues() && o.enqueues() && slices.ContainsFunc(o.Names, func(n string) bool { return slices.Contains(c.Names, n) })
				})
				require.False(t, behind && slices.Contains(b, c), "seed %d: an enqueue was passed", seed)
				full := len(b) == l.most || l.alone(b[0]) || !c.enqueues() && len(b) == l.most-1
				require.False(t, c.state == waits && !behind && !full && !l.alone(c), "seed %d: %v could go", seed, c.Names)
			}
			for _, c := range b {
				if r.IntN(10) == 0 { // it waits again
					c.state = waits
					q.add(c)
				} else {
					gone = append(gone, c)
				}
			}
		}
		q.takeAll(l)
		require.Empty(t, q.names)
		require.Zero(t, q.len())
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// An enqueue that was on its way and waits again goes before those of its names that came later, and not together with them.
func TestQueue_Again(t *testing.T) {
	q, l := queue{names: lines{}}, &limits{most: 64}
	a1, ab, a2 := enqueueOf("a"), enqueueOf("a", "b"), enqueueOf("a")
	q.come(a1)
	require.Equal(t, []*Command{a1}, q.take(l, false))
	q.come(ab)
	q.come(a2)
	require.Equal(t, []*Command{ab}, q.take(l, false))
	q.add(ab)
	q.add(a1)
	require.Same(t, a1, q.first())
	require.Equal(t, labels([][]*Command{{a1}, {ab}, {a2}}), labels(q.takeAll(l)))
	require.Empty(t, q.names)
}

// A burst costs few requests, whether all stay or most give up, and leaves nothing.
func TestQueue_Burst(t *testing.T) {
	for _, leave := range []bool{false, true} {
		q := queue{names: lines{}}
		l := &limits{most: maxCommands}
		var all []*Command
		for i := range 10_000 {
			c := enqueueOf(fmt.Sprint(i))
			all = append(all, c)
			q.come(c)
		}
		want := 157
		if leave {
			for _, c := range all[:9_900] {
				q.forget(c)
			}
			require.Len(t, q.enqueues, 100, "those that have left don't stay")
			want = 2
		}
		require.Len(t, q.takeAll(l), want)
		require.Zero(t, q.waiting)
		require.Nil(t, q.removals)
		require.Nil(t, q.enqueues)
		require.Empty(t, q.names)
	}
}

// Of many that go by themselves, a request looks at some only.
func TestQueue_ManyByThemselves(t *testing.T) {
	q := queue{names: lines{}}
	l := refusing("refused")
	q.come(enqueueOf("a"))
	for range 2 * maxPassed {
		q.come(enqueueOf("refused"))
		q.come(removalOf("refused"))
	}
	q.come(enqueueOf("b"))
	q.come(removalOf("c"))
	taken := q.take(l, false)
	require.Len(t, taken, 2, "the removal of c is behind too many")
	require.Equal(t, []string{"a", "b"}, []string{taken[0].Names[0], taken[1].Names[0]})
	require.Equal(t, 4*maxPassed+1, q.len())
}

// A command that alone has more operations than etcd allows has each request refused that it shares. From then on it goes by itself,
// and requests are as large as before. If all commands are small, there were too many of them.
func TestLimits_TooMany(t *testing.T) {
	valueOf := func(name string, bytes int) *Command {
		c := enqueueOf(name)
		c.Then = []clientv3.Op{clientv3.OpPut(name+"/1", strings.Repeat("x", bytes))}
		return c
	}
	large := enqueueOf("m")
	large.Then = ops(20)
	b := []*Command{enqueueOf("a"), large, enqueueOf("c")}
	l := &limits{most: maxCommands}
	l.tooMany(b, rpctypes.ErrTooManyOps)
	require.Equal(t, maxCommands, l.most)
	require.True(t, l.alone(large))
	require.False(t, l.alone(b[0]))

	l = &limits{most: maxCommands}
	l.tooMany(b, rpctypes.ErrRequestTooLarge)
	require.Equal(t, 1, l.most)

	l = &limits{most: maxCommands}
	l.tooMany([]*Command{enqueueOf("a"), valueOf("v", 8<<10), enqueueOf("c")}, rpctypes.ErrRequestTooLarge)
	require.Equal(t, maxCommands, l.most)
	require.True(t, l.alone(valueOf("w", 8<<10)))
	require.False(t, l.alone(valueOf("w", 4000)))
	require.False(t, l.alone(b[0]))
	l.tooMany(b, rpctypes.ErrTooManyOps) // the number, of those that put little
	require.Equal(t, maxCommands, l.most)

	l = &limits{most: maxCommands}
	for range 40 {
		b = append(b, enqueueOf("x"))
	}
	l.tooMany(b, rpctypes.ErrTooManyOps)
	require.Equal(t, 21, l.most)
	require.False(t, l.alone(large))
}
