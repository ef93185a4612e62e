// The requests of the session in a random world, which several entries may share, and so have one revision.

package waitlist

import (
	"maps"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// A command changes the keys, for one entry. reply tells the entry of it, and of the revision of the request.
type command func(s map[string]int64) (reply func(at int64))

// request sends the command of an entry, and perhaps that of others with it: etcd carries them out one after the other, at one
// revision, which is no new one if nothing changes.
func (w *world) request(first *actor) {
	some := []*actor{first}
	for _, b := range w.own {
		if b != first && b.command != nil && w.choose(3) == 0 {
			some = append(some, b)
		}
	}
	s, at := maps.Clone(w.state()), w.now()
	replies := make([]func(at int64), len(some))
	for i, a := range some {
		replies[i] = a.command(s)
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
	a.command = func(s map[string]int64) func(at int64) {
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
	}
	a.next = func() { w.request(a) }
}
