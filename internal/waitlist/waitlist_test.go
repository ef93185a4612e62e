package waitlist

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// play has steps things happen, and then everybody leave in turn.
func play(t *testing.T, steps int, choose func(n int) int) {
	w := newWorld(t, choose)
	w.litter()
	w.inherit()
	w.crowd()
	for range steps {
		if w.failed {
			return
		}
		w.happen()
	}
	w.mercy = true
	for round := 0; !w.failed; round++ {
		if w.rest() {
			break
		}
		if round > 3000 {
			w.fail("it does not end: %v", w.state())
		}
	}
	if w.failed {
		return
	}
	for _, a := range w.own {
		if !a.over {
			w.fail("%s at %d is forgotten in %v", a.name, a.rev, w.state())
		}
	}
	for len(w.timers) > 0 && !w.failed {
		w.tick()
	}
	if len(w.agents) > 0 {
		w.fail("agents: %v", w.agents)
	}
	if w.l.knowledge != nil {
		w.fail("the list remembers what is over")
	}
	if !w.l.Empty() || len(w.l.parts) > 0 || len(w.watches) > 0 {
		w.fail("the list keeps %v, %v", w.l.parts, w.watches)
	}
}

// happen is one thing that happens.
func (w *world) happen() {
	switch n := w.choose(22); {
	case n < 3 && len(w.own) < w.room:
		w.begin()
	case n >= 20 && w.heir && len(w.own) < w.room && w.choose(4) == 0 && w.adopt():
	case n == 3 && len(w.others) < 14:
		w.otherComes()
	case n == 4 && len(w.others) > 0:
		if i := w.choose(len(w.others)); w.choose(4) == 0 {
			w.otherHalves(w.others[i])
		} else {
			w.otherLeaves(i)
		}
	case n == 5 && len(w.own) > 0:
		w.hurt(w.own[w.choose(len(w.own))])
	case n == 6 && len(w.own) > 0:
		w.giveUp(w.own[w.choose(len(w.own))])
	case n == 7 && len(w.own) > 0:
		if a := w.own[w.choose(len(w.own))]; a.held && !a.over && w.choose(3) == 0 {
			a.fence = true
			if a.kind == keyspace.Exclusive && len(a.keys) > 1 && w.choose(2) == 0 {
				w.downgrade(a)
			}
		}
	case n == 8 && w.choose(4) == 0 && len(w.timers) > 0:
		w.tick()
	case n == 9 && w.choose(4) == 0:
		w.write(func(map[string]int64, int64) {}) // a holder publishes a value: its key is written anew
	case n == 9 && w.lossy:
		w.recheck()
	case n == 10 && w.choose(4) == 0:
		w.trouble()
	case n > 12 && n < 17 && len(w.agents) > 0:
		if g := w.agents[w.choose(len(w.agents))]; !g.hangs {
			w.ask(g)
		}
	case n >= 17 && n < 20 && len(w.watches) > 0 && (!w.slow || w.choose(6) == 0):
		w.deliver(w.watches[w.choose(len(w.watches))])
	case len(w.own) > 0:
		w.advance(w.own[w.choose(len(w.own))])
	}
}

// tick has a timer of the list go off.
func (w *world) tick() {
	i := w.choose(len(w.timers))
	f := w.timers[i]
	w.timers = slices.Delete(w.timers, i, i+1)
	w.logf("a timer goes off")
	f()
}

func (w *world) otherComes() {
	base := []string{"a/", "a/r"}[w.choose(2)]
	key := fmt.Sprintf("%s%x", base, 3+w.choose(5)) // 5 is the session's own lease, which is adopted
	if n := w.choose(4); n > 0 {
		key = fmt.Sprintf("%s-%d", key, n) // several of one session follow each other
	}
	if w.choose(64) == 0 { // a key of a lock whose name is nested in this one
		w.write(func(s map[string]int64, rev int64) { s["a/b/1"] = rev })
		w.remove("a/b/1")
		return
	}
	shared := ""
	if base == "a/" && w.choose(3) == 0 {
		if shared = "a/r" + strings.TrimPrefix(key, "a/"); w.choose(2) == 0 { // its number may differ
			lease, _, _ := strings.Cut(shared, "-")
			shared = lease + "-f"
		}
	}
	w.otherPuts(key, shared)
}

// otherPuts puts an entry of another session into the queue, of one key, or of a write lock's two.
func (w *world) otherPuts(key, shared string) {
	if s := w.state(); s[key] > 0 || s[shared] > 0 {
		return
	}
	rev := w.write(func(s map[string]int64, rev int64) {
		if s[key] = rev; shared != "" {
			s[shared] = rev
		}
	})
	w.others = append(w.others, other{queue.Entry{Key: key, Rev: rev}, shared})
	w.logf("others put %s %s", key, shared)
	w.checkExclusion()
}

// otherHalves has one key of another session's write lock deleted: by a downgrade, or by somebody.
func (w *world) otherHalves(o other) {
	if keys := o.keys(w.state()); len(keys) == 2 {
		k := keys[w.choose(2)]
		w.logf("others remove %s of %v", k, keys)
		w.remove(k)
		w.checkExclusion()
	}
}

// otherLeaves has an entry of another session leave, alone or with more of that session, whose lease expires.
func (w *world) otherLeaves(i int) {
	gone := []other{w.others[i]}
	if lease := keyspace.LeaseOf("a", gone[0].Key); w.choose(4) == 0 && lease != ownLease {
		gone = slices.DeleteFunc(slices.Clone(w.others), func(o other) bool { return keyspace.LeaseOf("a", o.Key) != lease })
	}
	if w.choose(4) > 0 || w.mercy {
		w.strike(gone, nil)
		return
	}
	// Their session's request puts another entry, at the same revision.
	key := []string{"a/", "a/r"}[w.choose(2)] + keyspace.LeaseOf("a", gone[0].Key) + "-a"
	if w.state()[key] > 0 {
		return
	}
	rev := w.write(func(s map[string]int64, rev int64) {
		for _, o := range gone {
			for _, k := range o.keys(s) {
				delete(s, k)
			}
		}
		s[key] = rev
	})
	w.logf("others remove %v and put %s", gone, key)
	w.others = slices.DeleteFunc(slices.Clone(w.others), func(o other) bool { return slices.Contains(gone, o) })
	w.others = append(w.others, other{queue.Entry{Key: key, Rev: rev}, ""})
	w.checkExclusion()
}

// strike removes other sessions' entries, and own ones that were put, at one revision.
func (w *world) strike(gone []other, own []*actor) {
	var keys []string
	for _, o := range gone {
		keys = append(keys, o.keys(w.state())...)
		w.logf("others remove %v", o)
	}
	for _, a := range own {
		for _, k := range a.keys {
			if a.put && w.state()[k] == a.rev {
				keys = append(keys, k)
				w.logf("%s is removed by somebody", a.name)
				a.hurt = true
			}
		}
	}
	if len(keys) > 0 {
		w.remove(keys...)
	}
	w.others = slices.DeleteFunc(slices.Clone(w.others), func(o other) bool { return slices.Contains(gone, o) })
	w.checkExclusion()
}

// hurt removes an entry by the hand of somebody else, and perhaps more of the queue with it.
func (w *world) hurt(a *actor) {
	if w.choose(4) > 0 && (!a.adopted || w.choose(2) == 0) {
		return
	}
	if len(a.keys) == 2 && w.choose(3) == 0 { // only one of its keys
		if i := w.choose(2); a.put && w.state()[a.keys[i]] == a.rev {
			w.logf("%s is removed, of %s", a.keys[i], a.name)
			a.hurt, a.half = a.hurt || i == 0, a.half || i == 1
			w.remove(a.keys[i])
			w.checkExclusion()
		}
		return
	}
	own := slices.DeleteFunc(slices.Clone(w.own), func(b *actor) bool { return b != a && w.choose(4) > 0 }) // all of them: the lease was revoked
	switch w.choose(3) {
	case 0:
		for _, b := range own {
			w.strike(nil, []*actor{b})
		}
	case 1:
		w.strike(nil, own)
	case 2:
		w.strike(slices.DeleteFunc(slices.Clone(w.others), func(other) bool { return w.choose(2) > 0 }), own)
	}
}

func (w *world) giveUp(a *actor) {
	switch {
	case a.over, a.rev == 0, a.next != nil:
	case a.held && a.hurt && w.choose(2) == 0:
		w.logf("%s finds itself lost", a.name)
		a.p.Lost()
		w.end(a, true)
	default:
		w.end(a, false)
	}
}

// downgrade turns a write hold into one for reading.
func (w *world) downgrade(a *actor) {
	exclusive := a.keys[0]
	a.keys, a.kind = []string{a.keys[1], a.keys[0]}, keyspace.Shared
	a.hurt = a.hurt || a.half // the key that it is known by from now on is not there
	a.p.Downgrading()
	next := a.p.Behind()
	w.logf("%s is to be downgraded", a.name)
	a.command, a.enters = func(s map[string]int64, _ int64) func(at int64) {
		if s[a.keys[0]] != a.rev || s[exclusive] != a.rev && w.choose(2) == 0 { // else an attempt before has no reply
			return func(int64) { a.p.Lost(); w.end(a, true) }
		}
		there := slices.DeleteFunc(slices.Clone(next), func(q queue.Entry) bool { return s[q.Key] != q.Rev })
		delete(s, exclusive)
		return func(at int64) {
			w.logf("%s is downgraded", a.name)
			w.lose(a.p.Downgraded(at, next, there))
		}
	}, false
	a.next = func() { w.request(a) }
}

// advance has an acquisition go on.
func (w *world) advance(a *actor) bool {
	switch {
	case a.next != nil:
		a.next()
		return true
	case a.over || a.held:
		return false
	case a.part && a.rev > 0:
		return w.attend(a)
	}
	select {
	case <-a.p.Woken():
		a.woken = true
	default:
	}
	if !a.woken || a.rev == 0 {
		return false
	}
	a.woken = false
	return w.look(a)
}

// rest has all go on until nothing does; then others leave, then holders. It returns true when
// nobody is left.
func (w *world) rest() bool {
	moved := false
	for _, a := range w.own {
		moved = w.advance(a) || moved
	}
	for _, g := range slices.Clone(w.agents) {
		if !g.hangs {
			w.ask(g)
			moved = true
		}
	}
	for _, ow := range slices.Clone(w.watches) {
		moved = w.deliver(ow) || moved
	}
	w.checkExclusion()
	if moved || w.failed {
		return false
	}
	if w.lossy && w.recheck() {
		return false
	}
	k := *cmp.Or(w.l.knowledge, &knowledge{}) // it need not know anything
	if len(w.watches) > 2 || len(w.watches) != len(k.watches) {
		w.fail("watches: %v, and the list knows %v", w.watches, k.watches)
	}
	if k.ticks == nil {
		w.checkNobodyForgotten()
	}
	if len(w.timers) > 0 && (k.ticks != nil || w.choose(2) == 0) {
		w.tick()
		return false
	}
	if i := slices.IndexFunc(w.agents, func(g *asker) bool { return g.hangs && g.ctx.Err() != nil }); i >= 0 {
		w.agents[i].hangs = false // its reply comes after all
		return false
	}
	if len(w.others) > 0 {
		w.otherLeaves(0)
		return false
	}
	for _, a := range w.own {
		if a.held && !a.over {
			w.end(a, false)
			return false
		}
	}
	for _, a := range w.own {
		if a.part && !a.over {
			a.part, a.woken = false, true
			a.p.Begin()
			return false
		}
	}
	return true
}

// checkNobodyForgotten: at rest, whoever can have the lock has it, unless nobody asks for it.
func (w *world) checkNobodyForgotten() {
	for _, a := range w.own {
		if a.held || a.over || a.part || w.state()[a.keys[0]] != a.rev {
			continue
		}
		if len(inWay(w.state(), a.rev, a.kind)) == 0 {
			w.fail("%s at %d is forgotten in %v", a.name, a.rev, w.state())
		}
	}
}

// seeds is how many worlds are played.
var seeds = flag.Uint64("seeds", map[bool]uint64{false: 500, true: 5000}[sample.Full()], "how many random worlds are played")
var first = flag.Uint64("first", 0, "")

func TestModel_I1(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		play(t, 20+r.IntN(150), r.IntN)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzModel_I1(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		play(t, len(data), func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		})
	})
}

// Many entries of one session come at once, behind 100 of other sessions, on whose keys there is a watch.
func BenchmarkCrowd(b *testing.B) {
	const crowd, others = 4000, 100
	for b.Loop() {
		l := newList()
		l.Ask = func(ctx context.Context, l *List) {
			if step := l.Next(ctx); step.Do == Open {
				l.Opened(newWatch(step.From, step.To, others))
				l.Next(ctx) // which finds nothing to ask
			}
		}
		seen := &Listing{At: others + 1, UpTo: others + 1, Shared: true, Size: others}
		for i := range int64(others) {
			seen.Keys = append(seen.Keys, queue.Entry{Key: fmt.Sprintf("a/7%02x", i), Rev: i + 1})
		}
		var parts []*Part
		for i := range crowd {
			parts = append(parts, register(l, keyspace.Exclusive, fmt.Sprintf("a/5-%x", i+1)))
		}
		for i, p := range parts {
			p.Enqueued(int64(others+1+i), seen)
			seen = nil
		}
	}
}
