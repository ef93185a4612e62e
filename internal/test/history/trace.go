package history

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// state of an acquisition, as in the model.
type state uint8

const (
	unknown state = iota // its process has not said a word of it
	enqueued
	held
	released
	abandoned
	lost
)

// An acquisition is what one txn wrote into one queue: up to two entries.
type acquisition struct {
	entries []*Entry
	state   state
	had     bool // the lock
	fence   bool // in use: etcd carries out a guarded transaction of it
	told    bool // its process has said anything of it
	removed bool // by others, so far as is known
	coming  []What
}

// trace is the state of one lock.
type trace struct {
	moves    []move // of etcd, those that are still to be followed
	all      map[int64]*acquisition
	ended    map[int64]time.Time // when their sessions have ended, by lease
	revoked  map[int64]bool
	part     bool // see CheckPart
	problems []string
}

func newTrace(moves []move, ended map[int64]time.Time, revoked map[int64]bool, part bool) *trace {
	t := &trace{moves: moves, all: map[int64]*acquisition{}, ended: ended, revoked: revoked, part: part}
	for _, m := range moves {
		if m.entry == nil || m.left {
			continue
		}
		a := t.all[m.entry.Created]
		if a == nil {
			a = &acquisition{}
			t.all[m.entry.Created] = a
		}
		if m.claim != nil {
			a.fence = true
		} else {
			a.entries = append(a.entries, m.entry)
		}
	}
	return t
}

func (t *trace) refuse(what any, why string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf("not as the model has it: %s: %s", what, fmt.Sprintf(why, args...)))
}

// exclusive reports whether the acquisition has an exclusive entry at rev.
func (a *acquisition) exclusive(rev int64) bool {
	return slices.ContainsFunc(a.entries, func(e *Entry) bool { return !e.Shared && e.at(rev) })
}

func (e *Entry) at(rev int64) bool { return e.Created <= rev && (e.Gone == 0 || e.Gone > rev) }

func (a *acquisition) lease() int64 { return a.entries[0].Lease }

// wants reports whether it asked for the lock alone.
func (a *acquisition) wants() (exclusive bool) { return a.exclusive(a.entries[0].Created) }

// lostPlace reports whether others have removed an entry of it while it waited, or may have. Its session may know that
// before its owner gives up what is left of it; it is not granted any more.
func (a *acquisition) lostPlace() bool {
	return a.state == enqueued && slices.Contains(a.coming, Abandoned) && (a.removed || slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Foreign }))
}

// hit reports whether others may have removed its entries by then, or its session had ended.
func (t *trace) hit(a *acquisition, by time.Time) bool {
	end, ended := t.ended[a.lease()]
	return a.removed || ended && !end.After(by) || t.revoked[a.lease()] || slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Foreign })
}

// blocks reports whether e has to be gone before an acquisition is granted that
// asked for the lock alone, or with other readers.
func blocks(e *Entry, exclusive bool) bool { return exclusive || !e.Shared }

// step follows a step of a process.
func (t *trace) step(s Step) {
	a := t.all[s.Token]
	if a == nil {
		t.refuse(s, "etcd never had this entry")
		return
	}
	// What an observer had heard of by then was carried out by then.
	seen := int64(0)
	for _, m := range t.moves {
		if m.left && !m.entry.GoneSeen.After(s.At) {
			seen = m.at
		}
	}
	need, in := t.needs(s, a)
	now := max(seen, need)
	t.follow(now, s)
	a.coming = a.coming[1:]
	from, to := [...]state{unknown, enqueued, held, enqueued, held}[s.What], [...]state{enqueued, held, released, abandoned, lost}[s.What]
	switch {
	case a.state != from:
		t.refuse(s, "it is %s", a.state)
	case s.What == Granted && !in && slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Unheard }):
		a.had = true
	case s.What == Granted && !in:
		t.refuse(s, "at no revision was it in the queue with nothing below that blocks it")
	case s.What == Granted:
		t.exclude(s, a, now)
		a.had = true
	case s.What == Lost && t.ended[a.lease()].IsZero() && !slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Gone != 0 }):
		t.refuse(s, "its entries are in etcd for ever")
	}
	a.state = to
}

func (s state) String() string {
	return [...]string{"not known to be in the queue", "waiting", "held", "given back", "abandoned", "lost"}[s]
}

// needs is the revision that a step can't come before, and for a grant, whether
// the acquisition was in the queue then.
func (t *trace) needs(s Step, a *acquisition) (rev int64, in bool) {
	rev = s.Token
	if s.What != Granted {
		return rev, true
	}
	exclusive, handed := a.wants(), false
	for _, token := range slices.Sorted(maps.Keys(t.all)) {
		b := t.all[token]
		if token >= s.Token {
			break
		}
		if b.lease() == a.lease() && (b.state == released && !b.fence || b.state == abandoned || b.lostPlace()) {
			handed = true // the hand-over inside a session waits for nothing
			continue
		}
		for _, e := range b.entries {
			switch {
			case !blocks(e, exclusive):
			case e.Gone == 0:
				t.refuse(s, "%s is before it", e)
			default:
				rev = max(rev, e.Gone)
			}
		}
	}
	own := slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Shared != exclusive && e.at(rev) })
	return rev, own || handed && t.hit(a, s.At)
}

// exclude sees to it that nobody else has what a granted acquisition excludes.
func (t *trace) exclude(s Step, a *acquisition, rev int64) {
	for token, b := range t.all {
		if b != a && b.state == held && !t.hit(a, s.At) && !t.hit(b, s.At) && (a.wants() || b.exclusive(rev)) {
			t.refuse(s, "the acquisition %d has the lock", token)
		}
	}
}

// follow follows etcd up to rev. What acted at rev itself, by reading, may have done so later.
func (t *trace) follow(rev int64, because any) {
	for len(t.moves) > 0 {
		m := t.moves[0]
		if m.at > rev || m.at == rev && m.claim != nil {
			return
		}
		t.moves = t.moves[1:]
		switch {
		case m.entry == nil:
			t.refuse(m, "etcd never had such an entry")
		case m.claim != nil:
			t.act(m, t.all[m.entry.Created])
		case m.left:
			t.remove(m, t.all[m.entry.Created], because)
		}
	}
}

// act is a guarded transaction that etcd carried out.
func (t *trace) act(m move, a *acquisition) {
	if !a.had {
		t.refuse(m, "it has not had the lock")
	}
	if !m.entry.at(m.at) {
		t.refuse(m, "its entry is not there")
	}
	for token, b := range t.all {
		if token > m.entry.Created && b.had && (b.wants() || !m.entry.Shared) {
			t.refuse(m, "the acquisition %d has had the lock after it", token)
		}
	}
}

// remove is the deletion of an entry: by its own process, by somebody else, or with its lease.
func (t *trace) remove(m move, a *acquisition, because any) {
	downgraded := !m.entry.Shared && slices.ContainsFunc(a.entries, func(e *Entry) bool { return e.Shared && e.at(m.at) })
	switch {
	case a.state == released || a.state == abandoned || a.state == lost:
	case !a.told: // a late write
	case !a.had && slices.Contains(a.coming, Abandoned): // which is told when the removal has begun
	case a.state == held && downgraded:
	case t.part: // not only where its session had ended when an observer heard of it: others may have been granted before
		a.removed = true
	case t.hit(a, m.entry.GoneSeen):
	default:
		t.refuse(m, "it is %s, and nobody has begun to remove it (%s)", a.state, because)
	}
}

// finish follows the rest.
func (t *trace) finish() {
	if len(t.moves) > 0 {
		t.follow(math.MaxInt64, "in the end")
	}
	if t.part {
		return
	}
	for _, token := range slices.Sorted(maps.Keys(t.all)) {
		a := t.all[token]
		for _, e := range a.entries {
			if e.Gone == 0 {
				t.refuse(e, "it is left in the end")
			}
		}
		if a.state == enqueued || a.state == held {
			t.refuse(cmp.Or(a.entries[0].Key, "an entry"), "it is %s in the end", a.state)
		}
	}
}
