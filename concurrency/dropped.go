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

type waiter struct {
	cancel context.CancelFunc
	hold   *etcdlock.Held // handed over; then the waiter is in no list any more
}

// drop is called when nobody can reach the Mutex of that state any more.
func (s *Session) drop(name string, st *mutexState) {
	h := st.held()
	if h == nil || h.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hand(name, h)
}

// hand hands a dropped hold to the first of those who wait, or keeps it for the next who asks. All others go on waiting: who
// is woken has left its place in the queue. s.mu is locked.
func (s *Session) hand(name string, h *etcdlock.Held) {
	d := &s.dropped
	if len(d.waiters[name]) > 0 {
		w := d.waiters[name][0]
		d.stopWaiting(name, w)
		w.hold = h
		w.cancel()
		return
	}
	if d.holds == nil {
		d.holds = make(map[string][]*etcdlock.Held)
	}
	d.holds[name] = append(d.holds[name], h)
}

// acquire takes over a dropped hold of the name, or takes the lock in that way.
func (s *Session) acquire(ctx context.Context, name string, way func(context.Context) (*etcdlock.Held, error)) (*etcdlock.Held, error) {
	defer s.inQueue(ctx)()
	for {
		again, cancel := context.WithCancel(ctx)
		w := &waiter{cancel: cancel}
		if h := s.takeDropped(name, w); h != nil {
			cancel()
			if h, err := s.took(ctx, name, h); h != nil || err != nil {
				return h, err
			}
			continue
		}
		h, err := way(again)
		cancel()
		s.mu.Lock()
		s.dropped.stopWaiting(name, w)
		refused := w.hold != nil && (err == nil || ctx.Err() != nil)
		if refused {
			s.hand(name, w.hold)
		}
		s.mu.Unlock()
		switch {
		case w.hold == nil || refused:
			return h, err
		}
		if h, err := s.took(ctx, name, w.hold); h != nil || err != nil {
			return h, err
		}
	}
}

// took is the hold that was taken over, nil if that was lost meanwhile. If etcd does not say so before ctx ends, the next one
// may have it.
func (s *Session) took(ctx context.Context, name string, h *etcdlock.Held) (*etcdlock.Held, error) {
	has, err := stillHas(ctx, h)
	switch {
	case has:
		return h, nil
	case err != nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hand(name, h)
	}
	return nil, err
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

// stopWaiting takes w from the list, if it is there.
func (d *dropped) stopWaiting(name string, w *waiter) {
	if d.waiters[name] = slices.DeleteFunc(d.waiters[name], func(o *waiter) bool { return o == w }); len(d.waiters[name]) == 0 {
		delete(d.waiters, name)
	}
}
