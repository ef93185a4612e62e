// The requests of the session in a random world, which several entries may share, and so have one revision.

package waitlist

import (
	"maps"
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A command changes the keys s, for one entry, at revision rev. reply tells the entry of it, and of the revision of the request,
// which is not rev if nothing has changed.
type command func(s map[string]int64, rev int64) (reply func(at int64))

// request sends the command of an entry, and perhaps other entries' commands with it: etcd carries them out one after the other, at one
// revision, which is no new one if nothing changes. At most one of them enqueues an entry, the last one.
func (w *world) request(first *actor) {
	some := []*actor{first}
	for _, b := range w.own {
		if b != first && b.command != nil && (!b.enters || !some[len(some)-1].enters) && w.choose(3) == 0 {
			if i := len(some) - 1; some[i].enters {
				some = slices.Insert(some, i, b)
			} else {
				some = append(some, b)
			}
		}
	}
	s, at := maps.Clone(w.state()), w.now()
	replies := make([]func(at int64), len(some))
	for i, a := range some {
		replies[i] = a.command(s, w.now()+1)
	}
	if !maps.Equal(s, w.state()) {
		at = w.write(func(next map[string]int64, _ int64) {
			clear(next)
			maps.Copy(next, s)
		})
	}
	for i, a := range some {
		a.command = nil
		a.next = func() {
			a.next = nil
			replies[i](at)
		}
	}
	if len(some) > 1 {
		w.logf("these %d were one request", len(some))
	}
}

// remover has the entry removed. next are the entries that the request looks for.
func (w *world) remover(a *actor, next []queue.Entry) {
	a.command, a.enters = func(s map[string]int64, _ int64) func(at int64) {
		var there []queue.Entry
		for _, q := range next {
			if s[q.Key] == q.Rev {
				there = append(there, q)
			}
		}
		found := s[a.keys[0]] == a.rev
		for _, k := range a.keys {
			if s[k] == a.rev {
				delete(s, k)
			}
		}
		if w.choose(6) == 0 && !w.mercy {
			found = false // it was repeated
		}
		w.logf("%s is removed, found %t, next %v there %v", a.name, found, next, there)
		return func(at int64) {
			w.logf("%s learns that it is removed", a.name)
			for _, k := range a.keys {
				w.used[k] = false
			}
			w.lose(a.p.Removed(at, found && !a.lost, next, there))
		}
	}, false
	a.next = func() { w.request(a) }
}

// enqueue has the entry put at the end of the queue, unless one of its keys was there before the request.
func (w *world) enqueue(a *actor, write bool) {
	a.command, a.enters = func(s map[string]int64, rev int64) func(at int64) {
		if slices.ContainsFunc(a.keys, func(k string) bool { return w.state()[k] > 0 }) {
			w.logf("%s finds its key taken", a.name)
			return func(int64) {
				for _, k := range a.keys {
					w.vacant[k] = true
				}
				w.takeKeys(a, write)
				a.p.Rekey(twoOf(a.keys))
				w.logf("%s takes %v", a.name, a.keys)
				w.enqueue(a, write)
			}
		}
		from, to := keyspace.Blocking("a", a.kind)
		all := entries(s, from, to)
		for _, k := range a.keys {
			s[k] = rev
		}
		a.put, a.rev = true, rev
		w.logf("%s is put", a.name)
		shown := Shown(rev, rev, reply(all[:min(len(all), w.limit)], len(all) > w.limit, len(all)), a.kind == keyspace.Exclusive)
		lost := w.choose(8) == 0 && !w.mercy
		return func(int64) {
			seen := &shown
			switch {
			case lost && w.choose(2) == 0: // it gives up, and knows nothing
				w.logf("%s gives up without a reply", a.name)
				a.p.Leave(false)
				a.over = true
				w.remover(a, nil)
				return
			case lost:
				seen = nil
			}
			w.logf("%s learns that it is at %d: %v", a.name, rev, seen)
			w.lose(a.p.Enqueued(rev, seen))
		}
	}, true
	a.next = func() { w.request(a) }
}
