// Holds whose Mutex nobody can reach any more.

package concurrency

import (
	"context"
	"slices"

	"github.com/etcdlock/etcdlock"
)

// With etcd's package, a session takes a lock again that it has, through any Mutex. A program that forgets an Unlock on
// some path therefore goes on working, and etcd's own TestMutexSessionRelock is such a program: it hangs without this file.
// Here two Mutexes exclude each other; but if the garbage collector finds that nobody can unlock the one that has the
// lock, the hold passes to the next Mutex of the session that asks. All other sessions see nothing of that.

// dropped are such holds, and those who wait for one.
type dropped struct {
	holds   map[string][]*etcdlock.Held // by name
	waiters map[string][]*waiter
}

type waiter struct{ cancel context.CancelFunc }

// drop is called when nobody can reach the Mutex of that state any more.
func (s *Session) drop(name string, st *mutexState) {
	h := st.held()
	if h == nil || h.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped.holds == nil {
		s.dropped.holds = make(map[string][]*etcdlock.Held)
	}
	s.dropped.holds[name] = append(s.dropped.holds[name], h)
	for _, w := range s.dropped.waiters[name] {
		w.cancel()
	}
}

// acquire takes over a dropped hold of the name, or takes the lock in that way.
func (s *Session) acquire(ctx context.Context, name string, way func(context.Context) (*etcdlock.Held, error)) (*etcdlock.Held, error) {
	for {
		again, cancel := context.WithCancel(ctx)
		w := &waiter{cancel}
		if h := s.takeDropped(name, w); h != nil {
			cancel()
			return h, nil
		}
		h, err := way(again)
		s.stopWaiting(name, w)
		woken := again.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !woken {
			return h, err
		}
	}
}

// takeDropped takes a dropped hold. If there is none, w waits for one.
func (s *Session) takeDropped(name string, w *waiter) *etcdlock.Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.dropped
	for len(d.holds[name]) > 0 {
		h := d.holds[name][0]
		if d.holds[name] = d.holds[name][1:]; len(d.holds[name]) == 0 {
			delete(d.holds, name)
		}
		if h.Err() == nil {
			return h
		}
	}
	if d.waiters == nil {
		d.waiters = make(map[string][]*waiter)
	}
	d.waiters[name] = append(d.waiters[name], w)
	return nil
}

func (s *Session) stopWaiting(name string, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.dropped
	if d.waiters[name] = slices.DeleteFunc(d.waiters[name], func(o *waiter) bool { return o == w }); len(d.waiters[name]) == 0 {
		delete(d.waiters, name)
	}
}
