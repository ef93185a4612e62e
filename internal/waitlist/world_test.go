package waitlist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// world is etcd with one lock's queue, a session with its list, and others, all of whose
// requests and events are carried out and delivered in any order that choose says.
type world struct {
	t       *testing.T
	choose  func(n int) int // one of 0..n-1
	l       *List
	states  []map[string]int64 // by revision: the keys there, and when they were created
	dels    []Deletion
	own     []*actor
	others  []other
	used    map[string]bool // keys of the session that are not free
	vacant  map[string]bool // those of them that another process has, and nobody uses
	watches []*openWatch
	closed  []*openWatch // that may still tell of something, and then end
	checks  []func()     // readings of own entries, on their way
	timers  []func()     // of the list
	agents  []*asker     // the one at work, and those that were dismissed and have a request on its way
	limit   int          // of every listing
	mercy   bool         // nothing bad happens any more
	heir    bool         // the process before has left entries on the session's lease
	room    int          // how many entries the session has at most
	refuses bool         // etcd refuses readings and watches now and then
	slow    bool         // watches tell of deletions late
	lossy   bool         // watches miss deletions of other sessions' keys, and agents hang; a recheck is made now and then
	log     []string
	failed  bool
}

// other is another session's entry.
type other struct {
	queue.Entry
	shared string // the other key of a write lock, "" of most
}

// keys are those of its keys that are in a state, the exclusive one first.
func (o other) keys(s map[string]int64) (keys []string) {
	for _, k := range []string{o.Key, o.shared} {
		if s[k] == o.Rev {
			keys = append(keys, k)
		}
	}
	return keys
}

// asker is an agent of the list.
type asker struct {
	ctx   context.Context
	next  func() // what goes on: a request, or its reply
	asked Step   // the last reading that etcd has answered
	again int    // so often in a row
	front *Part  // for whom it has asked last
	at    int64  // etcd's revision then
	reads int    // how often since
	hangs bool   // its request does not return for long
}

// actor is an acquisition of the session.
type actor struct {
	name    string
	p       *Part
	kind    keyspace.Kind
	keys    []string
	rev     int64 // as etcd says, when that is known
	put     bool
	next    func() // what goes on: a request, or its reply
	held    bool
	over    bool // released or withdrawn
	fence   bool
	lost    bool
	gone    bool
	hurt    bool // somebody else removed its entry
	refused bool // etcd has refused what was asked for it
	half    bool // likewise, but only the other key than the one that it is known by
	adopted bool
	command command // that waits to be sent, nil if there is none
	enters  bool    // the command enqueues the entry
	part    bool    // of an acquisition that waits for another one, and has not come to this
	woken   bool    // it looks what has become of it
	looks   *Step   // a reading for it is on its way
}

type openWatch struct {
	*Watch
	told   int64
	missed map[Deletion]bool
}

// recheck is what a session does each half TTL: it looks for its own entries, and for what they wait for. It reports whether
// anything came of that.
func (w *world) recheck() bool {
	for _, a := range w.own {
		if a.rev > 0 && !a.over && a.next == nil && w.state()[a.keys[0]] != a.rev {
			w.logf("%s is found to be missing", a.name)
			w.lose(a.p.Missing(a.keys[0], w.now()))
			return true
		}
	}
	stale := func() bool { return w.l.knowledge != nil && w.l.stale }
	was, agents := stale(), len(w.agents)
	if q, ok := w.l.Awaited(); ok && w.state()[q.Key] != q.Rev {
		w.l.Refresh()
	}
	refreshed := stale() != was || len(w.agents) > agents
	w.logf("a recheck, refreshed %t", refreshed)
	return refreshed
}

func newWorld(t *testing.T, choose func(n int) int) *world {
	w := &world{t: t, choose: choose, l: newList(), states: []map[string]int64{{}, {}}, used: map[string]bool{}, vacant: map[string]bool{}, limit: 2 + choose(4)}
	w.lossy, w.heir, w.slow, w.refuses = choose(4) == 0, choose(4) == 0, choose(3) == 0, choose(4) == 0
	w.room = 14
	w.l.UpLimit, w.l.ManyShare = int64(w.limit), []int64{ManyShare, 2, 1, 0}[choose(4)]
	w.l.After = func(_ time.Duration, f func()) { w.timers = append(w.timers, f) }
	w.l.Ask = func(ctx context.Context, _ *List) {
		if slices.ContainsFunc(w.agents, func(g *asker) bool { return g.ctx.Err() == nil }) {
			w.fail("a second agent")
		}
		w.agents = append(w.agents, &asker{ctx: ctx})
	}
	return w
}

func (w *world) now() int64              { return int64(len(w.states) - 1) }
func (w *world) state() map[string]int64 { return w.states[w.now()] }

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d: ", w.now())+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if !w.failed {
		w.failed = true
		w.t.Errorf(format+"\n%v", append(args, w.l.dump()+join(w.log))...)
	}
}

func join(lines []string) (s string) {
	for _, l := range lines {
		s += l + "\n"
	}
	return s
}

func (w *world) write(change func(s map[string]int64, rev int64)) int64 {
	next := maps.Clone(w.state())
	rev := w.now() + 1
	change(next, rev)
	gone := slices.Sorted(maps.Keys(w.state()))
	gone = slices.DeleteFunc(gone, func(key string) bool { return next[key] > 0 })
	if len(gone) > 1 && w.choose(2) == 0 { // those of one revision are told of in the order of the request
		slices.Reverse(gone)
	}
	for _, key := range gone {
		w.dels = append(w.dels, Deletion{key, rev})
	}
	w.states = append(w.states, next)
	return rev
}

func (w *world) remove(keys ...string) int64 {
	return w.write(func(s map[string]int64, _ int64) {
		for _, k := range keys {
			delete(s, k)
		}
	})
}

// entries are those of a state in a range, by key.
func entries(s map[string]int64, from, to string) (q []queue.Entry) {
	for _, k := range slices.Sorted(maps.Keys(s)) {
		if from <= k && k < to {
			q = append(q, queue.Entry{Key: k, Rev: s[k]})
		}
	}
	return q
}

// inWay are the keys of a state that block an entry.
func inWay(s map[string]int64, rev int64, kind keyspace.Kind) (q []queue.Entry) {
	for k, r := range s {
		if kk := keyspace.KindOf("a", k); r < rev && queue.Blocks(kk, kind) {
			q = append(q, queue.Entry{Key: k, Rev: r})
		}
	}
	return q
}

func (w *world) freeKey(base string) string {
	for i := 0; ; i++ {
		k := base
		if i > 0 {
			k = fmt.Sprintf("%s-%x", base, i)
		}
		if !w.used[k] {
			w.used[k] = true
			return k
		}
	}
}

func (w *world) takeKeys(a *actor, write bool) {
	a.keys = nil
	if a.kind == keyspace.Exclusive {
		a.keys = append(a.keys, w.freeKey("a/5"))
	}
	if a.kind == keyspace.Shared || write {
		a.keys = append(a.keys, w.freeKey("a/r5"))
	}
}

// begin starts an acquisition.
func (w *world) begin() {
	kind, write := keyspace.Exclusive, false
	switch w.choose(4) {
	case 0:
		kind = keyspace.Shared
	case 1:
		write = true
	}
	w.register(kind, write)
}

func (w *world) register(kind keyspace.Kind, write bool) *actor {
	a := &actor{name: fmt.Sprint("p", len(w.own)), kind: kind, woken: true}
	w.takeKeys(a, write)
	a.p = register(w.l, a.kind, a.keys...)
	a.p.Owner = a
	if w.choose(4) == 0 {
		a.part = true
		a.p.WakeWith(a.p)
	}
	w.own = append(w.own, a)
	w.logf("%s registers %v, a part %t", a.name, a.keys, a.part)
	w.enqueue(a, write)
	return a
}

func (w *world) lose(lost []*Part) {
	for _, p := range lost {
		a := p.Owner.(*actor)
		w.logf("%s is told that it is lost", a.name)
		if !a.hurt {
			w.fail("%s: lost for no reason", a.name)
		}
		w.end(a, true)
	}
}

// end gives the entry back.
func (w *world) end(a *actor, lost bool) {
	if a.over {
		return
	}
	a.over, a.lost = true, lost
	a.fence = a.fence || a.adopted && a.held // the process before may have given a guard out
	if a.looks != nil {
		w.l.Dropped(a.looks)
		a.looks = nil
	}
	var next []queue.Entry
	if !lost {
		next = a.p.Leave(a.fence)
		w.logf("%s leaves, fence %t", a.name, a.fence)
	}
	w.remover(a, next)
}

// attend has the owner of a part come to it, or not yet. It may be granted before that, or found to be gone.
func (w *world) attend(a *actor) bool {
	switch {
	case isGone(a.p):
		if !a.hurt {
			w.fail("%s: gone for no reason", a.name)
		}
		a.gone = true
		w.end(a, false)
	case a.p.Granted():
		a.part, a.held = false, true
		w.checkGrant(a)
	case w.mercy && w.state()[a.keys[0]] != a.rev: // the session checks its entries now and then
		w.logf("%s is found to be missing", a.name)
		w.lose(a.p.Missing(a.keys[0], w.now()))
	case w.mercy:
		return false
	case w.choose(4) == 0:
		a.part, a.woken = false, true
		a.p.Begin()
		w.logf("%s is waited for", a.name)
	case w.choose(4) == 0:
		s, ok := a.p.Look()
		if ok {
			w.logf("%s looks: %+v", a.name, s)
			read := w.read(s)
			a.looks = &s
			a.next = func() {
				a.next, a.looks = nil, nil
				if seen := read(); seen == nil {
					w.l.Fail(&s, nil)
				} else {
					w.logf("%s sees %+v", a.name, seen)
					w.lose(w.l.Saw(&s, seen))
				}
			}
		}
		return ok
	default:
		return false
	}
	return true
}

// look has a waiting entry see what has become of it.
func (w *world) look(a *actor) bool {
	granted, err := a.p.Outcome()
	switch {
	case granted:
		a.held = true
		w.checkGrant(a)
	case errors.Is(err, errRefused) && a.refused:
		w.logf("%s waits in vain", a.name)
		w.end(a, false)
	case err != nil:
		if !a.hurt {
			w.fail("%s: gone for no reason", a.name)
		}
		a.gone = true
		w.end(a, false)
	default:
		return false
	}
	return true
}

// ask has an agent go on.
func (w *world) ask(g *asker) {
	if g.next != nil {
		if w.lossy && !w.mercy && w.choose(32) == 0 {
			w.logf("an agent hangs")
			g.hangs = true
			return
		}
		next := g.next
		g.next = nil
		next()
		return
	}
	s := w.l.Next(g.ctx)
	w.logf("agent: %+v", s)
	if s.Do != Rest && s.For.state != waiting {
		w.fail("it asks for nobody")
	}
	if s.Do != Rest && g.ctx.Err() != nil {
		w.fail("an agent asks that was dismissed")
	}
	if s.Do != Rest && w.refuse(g, s) {
		return
	}
	switch s.Do {
	case Rest:
		w.agents = slices.DeleteFunc(w.agents, func(o *asker) bool { return o == g })
	case Open:
		if w.choose(8) == 0 && !w.mercy {
			g.next = func() { w.l.Fail(&s, nil) }
			break
		}
		g.next = func() {
			at := max(1, w.now()-int64(w.choose(3)))
			g.next = func() {
				ow := &openWatch{Watch: newWatch(s.From, s.To, at), told: at, missed: map[Deletion]bool{}}
				ow.Close = func() { w.close(ow) }
				w.watches = append(w.watches, ow)
				w.logf("agent watches %s..%s from %d", s.From, s.To, at)
				w.l.Opened(ow.Watch)
			}
		}
	case Read:
		g.next = func() {
			read := w.read(s)
			g.next = func() {
				seen := read()
				switch {
				case g.ctx.Err() != nil && w.choose(2) == 0:
					w.l.Dropped(&s)
					return
				case seen == nil:
					w.l.Fail(&s, nil)
					return
				}
				asked := s
				asked.since = 0
				if g.again++; s.At == 0 || !reflect.DeepEqual(asked, g.asked) {
					g.asked, g.again = asked, 0
				}
				if g.again > 3 {
					w.fail("asks again and again what etcd has answered: %+v", s)
				}
				if g.front != s.For || g.at != w.now() {
					g.front, g.at, g.reads = s.For, w.now(), 0
				}
				if g.reads++; g.reads > 8 {
					w.fail("asks %d times for an entry while nothing changes", g.reads)
				}
				w.logf("agent sees %+v", seen)
				w.lose(w.l.Saw(&s, seen))
			}
		}
	}
}

// read is what etcd answers to a reading now, nil if it fails.
func (w *world) read(s Step) func() *Listing {
	at := s.At
	if at > w.now() {
		w.fail("reads the future: %+v", s)
		at = 0
	}
	if at == 0 || w.choose(8) == 0 {
		at = w.now()
	}
	state := w.states[at]
	var ranged, asked []queue.Entry
	more := false
	ranged = entries(state, s.From, s.To)
	slices.SortFunc(ranged, func(a, b queue.Entry) int { return int(a.Rev - b.Rev) })
	if !s.Upward {
		ranged = slices.DeleteFunc(ranged, func(q queue.Entry) bool { return q.Rev > s.Max })
		slices.Reverse(ranged)
	}
	if s.Limit > 0 && len(ranged) > w.limit {
		ranged, more = ranged[:w.limit], true
	}
	for _, k := range s.Keys {
		if r := state[k]; r > 0 {
			asked = append(asked, queue.Entry{Key: k, Rev: r})
		}
	}
	fails := w.choose(10) == 0 && !w.mercy
	return func() *Listing {
		if fails {
			return nil
		}
		return s.Listing(at, reply(ranged, more, len(entries(state, "a/", "a0"))), reply(asked, false, 0))
	}
}

func (w *world) close(ow *openWatch) {
	w.logf("the watch %s..%s is closed", ow.From, ow.To)
	w.closed = append(w.closed, ow)
	w.watches = slices.DeleteFunc(w.watches, func(o *openWatch) bool { return o == ow })
}

// deliver has a watch tell of the next deletions that it has, or that it has ended.
func (w *world) deliver(ow *openWatch) bool {
	if w.choose(20) == 0 && !w.mercy {
		w.watches = slices.DeleteFunc(w.watches, func(o *openWatch) bool { return o == ow })
		w.logf("the watch %s..%s has broken", ow.From, ow.To)
		ow.Broke(errors.New("broken"))
		return true
	}
	return w.tell(ow)
}

// tell has a watch tell of the next deletions that it has.
func (w *world) tell(ow *openWatch) bool {
	var told []Deletion
	for _, d := range w.dels { // all of a revision together
		switch {
		case d.Rev <= ow.told || d.Key < ow.From || d.Key >= ow.To || ow.missed[d]:
			continue
		case w.lossy && !w.mercy && keyspace.LeaseOf("a", d.Key) != "5" && w.choose(8) == 0:
			w.logf("the watch %s..%s misses %v", ow.From, ow.To, d)
			ow.missed[d] = true
			continue
		case len(told) > 0 && told[len(told)-1].Rev < d.Rev && w.choose(2) == 0:
		default:
			told = append(told, d)
			continue
		}
		break
	}
	if len(told) == 0 {
		return false
	}
	ow.told = told[len(told)-1].Rev
	w.logf("the watch %s..%s tells of %v", ow.From, ow.To, told)
	for _, g := range w.agents {
		g.reads = 0
	}
	w.lose(ow.Heard(told))
	return true
}

// checkGrant: I1, as a reference that knows all of etcd's history.
func (w *world) checkGrant(a *actor) {
	w.logf("%s is granted", a.name)
	ok := false
	for rev := a.rev; rev <= w.now() && !ok; rev++ {
		s := w.states[rev]
		ok = s[a.keys[0]] == a.rev && !slices.ContainsFunc(inWay(s, a.rev, a.kind), func(q queue.Entry) bool { return !w.passesOn(q) })
	}
	if !ok {
		w.fail("%s at %d is granted in %v", a.name, a.rev, w.state())
	}
	w.checkExclusion()
}

// passesOn reports whether a key is of an entry of the session that is over, with no fence in use, or was removed.
func (w *world) passesOn(q queue.Entry) bool {
	return slices.ContainsFunc(w.own, func(o *actor) bool {
		removed := o.hurt && !o.held && o.p != nil && !o.p.Granted() // while it waited: of a write lock the other key may be left
		return o.rev == q.Rev && slices.Contains(o.keys, q.Key) && (o.over && !o.fence && !o.lost || removed)
	})
}

// checkExclusion: no two have the lock that exclude each other, unless somebody has removed the
// entry of one.
func (w *world) checkExclusion() {
	for _, a := range w.own {
		if !a.held || a.over || a.hurt {
			continue
		}
		for _, b := range w.own {
			if b != a && b.held && !b.over && !b.hurt && (a.kind == keyspace.Exclusive || b.kind == keyspace.Exclusive) {
				w.fail("%s and %s have the lock", a.name, b.name)
			}
			if b.fence && !b.hurt && w.state()[b.keys[0]] == b.rev && b.over && b.rev < a.rev && queue.Blocks(b.kind, a.kind) {
				w.fail("%s has the lock while %s's fence is in use", a.name, b.name)
			}
		}
		for _, o := range w.others {
			keys := o.keys(w.state())
			if len(keys) == 0 {
				continue
			}
			kind := keyspace.KindOf("a", keys[0])
			if len(inWay(w.state(), o.Rev, kind)) == 0 && (a.kind == keyspace.Exclusive || kind == keyspace.Exclusive) {
				w.fail("%s and %s of others have the lock", a.name, keys[0])
			}
		}
	}
}

// dump is all of a list, for who looks for what went wrong.
func (l *List) dump() (s string) {
	l.knowledge = cmp.Or(l.knowledge, &knowledge{})
	s = fmt.Sprintf("at %d latest %d size %d nested %v stale %v heard %v flights %v views %+v\n", l.goneBy, l.latest, l.size, l.nested, l.stale, l.heard, l.flights, l.views)
	for _, w := range l.watches {
		s += fmt.Sprintf("watch %s..%s at %d told %d needed %v\n", w.From, w.To, w.At, w.told, w == l.need)
	}
	for _, p := range l.parts {
		s += fmt.Sprintf("%v at %d state %d seen %d %d\n", p.keys, p.rev, p.state, p.seen, l.lastSeenLocked(p))
	}
	return s
}

// newList is a list whose timers go off when the test says so, and whose agent is the test.
func newList() *List {
	return New("a", &Config{
		Life: context.Background(), Ask: func(context.Context, *List) {}, Forget: func(string) {},
		After: func(time.Duration, func()) {}, UpLimit: UpLimit, ManyShare: ManyShare,
	})
}

func newWatch(from, to string, at int64) *Watch {
	return &Watch{From: from, To: to, At: at, Close: func() {}}
}

func isGone(p *Part) bool {
	_, err := p.Outcome()
	return errors.Is(err, ErrRemoved)
}
