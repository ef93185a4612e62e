// How users take locks.

package world

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock"
)

// A way is a lock that a user may take.
type way struct {
	what      string
	lock, try func(context.Context) (*etcdlock.Held, error)
	enqueue   func(context.Context) (*etcdlock.Ticket, error)
	do        func(context.Context, func(context.Context, *etcdlock.Held) error) error
	names     map[string]bool // true: it excludes everybody
	second    bool            // its holds can be downgraded
}

// way draws one.
func (u *user) way() *way {
	all := make(map[string]bool)
	var parts []etcdlock.Part
	for _, name := range u.names {
		switch u.dice.n(3) {
		case 0:
			all[name], parts = true, append(parts, etcdlock.Write(name))
		case 1:
			all[name], parts = false, append(parts, etcdlock.Read(name))
		}
	}
	name := u.names[u.dice.n(len(u.names))]
	m, rw, multi := u.made(name, parts)
	switch u.dice.n(8) {
	case 0:
		if len(parts) > 0 {
			return &way{fmt.Sprint("Multi ", all), multi.Lock, multi.TryLock, multi.Enqueue, multi.Do, all, false}
		}
		fallthrough
	case 1, 2:
		return &way{"Mutex " + name, m.Lock, m.TryLock, m.Enqueue, m.Do, map[string]bool{name: true}, false}
	case 3:
		m = m.Raw(u.id)
		return &way{"raw Mutex " + name, m.Lock, m.TryLock, m.Enqueue, m.Do, map[string]bool{name: true}, false}
	case 4, 5:
		return &way{"RWMutex " + name, rw.Lock, rw.TryLock, rw.Enqueue, rw.Do, map[string]bool{name: true}, true}
	default:
		return &way{"RWMutex read " + name, rw.RLock, rw.TryRLock, rw.REnqueue, rw.RDo, map[string]bool{name: false}, true}
	}
}

// has takes note of a hold.
func (u *user) has(h *etcdlock.Held, w *way) *hold {
	held := u.granted(h, maps.Clone(w.names))
	u.mu.Lock()
	defer u.mu.Unlock()
	held.downgrades = w.second
	u.recent = append(u.recent[max(0, len(u.recent)-7):], held)
	return held
}

// any is one of the recent holds.
func (u *user) any(or *hold) *hold {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.recent) == 0 {
		return or
	}
	return u.recent[u.dice.n(len(u.recent))]
}

// act makes a call, and what follows from it.
func (u *user) act() {
	w := u.way()
	switch u.dice.n(12) {
	case 0, 1, 2, 3:
		what, take := "lock ", w.lock
		if u.dice.oneIn(3) {
			what, take = "try ", w.try
		}
		c := u.begin(context.Background(), what+w.what, true)
		h, err := take(c)
		c.returned(0, time.Time{})
		may := u.wordsOfTaking(false)
		if what == "try " {
			may = append(may, etcdlock.ErrLocked)
		}
		c.judge(err, may...)
		if err == nil {
			own := u.has(h, w)
			u.uses(own)
			u.releases(own)
		}
	case 4, 5:
		u.ticket(w)
	case 6, 7, 8:
		u.do(w)
	case 9:
		if h := u.any(nil); h != nil {
			u.poke(h)
		}
	case 10:
		u.look()
	default:
		u.manage()
	}
}

// crowds has more calls made at the same time than the session sends requests, while none is answered. Those that wait to be sent
// must be sent in the order in which they were made: see leavesInTurnLocked.
func (u *user) crowds() {
	_ = elapse(context.Background(), u.dice.upTo(20*time.Second))
	u.wire.blocked.Store(time.Now().Add(time.Second).UnixNano())
	var calls sync.WaitGroup
	for range 400 {
		if u.stops() {
			break
		}
		_ = elapse(context.Background(), time.Millisecond)
		name := u.names[u.dice.n(len(u.names))]
		m, _, _ := u.made(name, nil)
		calls.Go(func() {
			c := u.begin(context.Background(), "lock in a crowd "+name, true)
			h, err := m.Lock(c)
			c.returned(0, time.Time{})
			c.judge(err, u.wordsOfTaking(false)...)
			if err == nil {
				own := u.granted(h, map[string]bool{name: true})
				own.leaves()
				h.Release()
			}
		})
	}
	calls.Wait()
}

// ticket takes a place in the queue, and waits for it, or gives it up.
func (u *user) ticket(w *way) {
	c := u.begin(context.Background(), "enqueue "+w.what, true)
	t, err := w.enqueue(c)
	c.returned(0, time.Time{})
	c.judge(err, u.wordsOfTaking(false)...)
	if err != nil {
		return
	}
	var cancelled atomic.Bool
	cancel := func() error {
		cancelled.Store(true)
		c := u.begin(context.Background(), "cancel "+w.what, false) // it waits until the lease is gone
		err := t.Cancel(c)
		c.returned(0, time.Time{})
		c.judge(err)
		return err
	}
	var beside sync.WaitGroup
	if u.dice.oneIn(3) {
		beside.Go(func() {
			_ = elapse(context.Background(), u.dice.upTo(time.Second))
			_ = cancel()
		})
	}
	may := func() (may []error) {
		if may = u.wordsOfTaking(true); cancelled.Load() {
			may = append(may, etcdlock.ErrNotHeld)
		}
		return may
	}
	var h *etcdlock.Held
	for gives := false; !gives && h == nil; gives = u.dice.oneIn(8) {
		switch u.dice.n(4) {
		case 0:
			_ = elapse(context.Background(), u.dice.upTo(100*time.Millisecond))
		case 1:
			c := u.begin(context.Background(), "ahead "+w.what, true)
			_, err := t.Ahead(c)
			c.returned(0, time.Time{})
			c.judge(err, may()...)
		default:
			c := u.begin(context.Background(), "wait "+w.what, true)
			h, err = t.Wait(c)
			c.returned(0, time.Time{})
			c.judge(err, may()...)
		}
	}
	if h == nil {
		_ = cancel()
		beside.Wait()
		late, err := t.Wait(context.Background())
		_, aerr := t.Ahead(context.Background())
		u.mu.Lock()
		defer u.mu.Unlock()
		if late != nil || err == nil || aerr == nil {
			u.failLocked("%s: a ticket for %s was cancelled, and Wait returns %v, and Ahead %v", u.id, w.what, err, aerr)
		}
		return
	}
	own := u.has(h, w)
	again, err := t.Wait(context.Background())
	if again != h || err != nil {
		u.mu.Lock()
		u.failLocked("%s: Wait returned a hold of %s, and returns another one: %v", u.id, w.what, err)
		u.mu.Unlock()
	}
	u.uses(own)
	u.releases(own)
	beside.Wait()
}
