// How users have functions run under locks.

package world

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock"
)

// do runs a function under a lock.
func (u *user) do(w *way) {
	var busy time.Time
	runs, fails, panics := 0, u.dice.oneIn(2), u.dice.oneIn(10)
	c := u.begin(context.Background(), "do "+w.what, false)
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				if err, _ = r.(error); !errors.Is(err, errOwn) {
					panic(r)
				}
			}
		}()
		return w.do(c, func(ctx context.Context, h *etcdlock.Held) error {
			own := u.has(h, w)
			runs++
			defer func() {
				own.leaves()
				busy = time.Now()
			}()
			if u.dice.oneIn(2) {
				u.nested(ctx, w, own)
			}
			u.uses(own)
			if u.dice.oneIn(4) {
				_ = elapse(ctx, u.dice.upTo(time.Second))
			}
			if u.dice.oneIn(8) {
				u.releases(own)
			}
			switch {
			case panics:
				panic(errOwn)
			case fails:
				return errOwn
			}
			return nil
		})
	}()
	c.returned(250*time.Millisecond, busy)
	c.judge(err, append(u.wordsOfTaking(runs > 0), errOwn)...)
	if own := runs == 1 && (fails || panics); errors.Is(err, errOwn) != own || runs > 1 || runs == 0 && err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.failLocked("%s has run its function %d times, which failed (%v), and returned %v", c.what, runs, own, err)
	}
}

// nested takes the lock that the caller has.
func (u *user) nested(ctx context.Context, w *way, own *hold) {
	took := func(h *etcdlock.Held, err error, want error, c *call) {
		if h != nil { // the own hold was released meanwhile
			again := u.has(h, w)
			u.releases(again)
		}
		c.judge(err, append(u.lossesOf(own), append(u.wordsOfTaking(false), want, etcdlock.ErrLocked)...)...)
		u.mu.Lock()
		defer u.mu.Unlock()
		if own.Err() == nil && own.left == 0 && !u.dead && !errors.Is(err, want) {
			u.failLocked("%s inside Do must return %v, and returns %v", c.what, want, err)
		}
	}
	switch u.dice.n(4) {
	case 0:
		c := u.begin(ctx, "nested lock "+w.what, true)
		h, err := w.lock(c)
		c.returned(0, time.Time{})
		took(h, err, etcdlock.ErrWouldDeadlock, c)
	case 1:
		c := u.begin(ctx, "nested try "+w.what, true)
		h, err := w.try(c)
		c.returned(0, time.Time{})
		took(h, err, etcdlock.ErrLocked, c)
	case 2:
		c := u.begin(ctx, "nested enqueue "+w.what, true)
		t, err := w.enqueue(c)
		c.returned(0, time.Time{})
		if err == nil {
			_ = t.Cancel(context.Background())
		}
		took(nil, err, etcdlock.ErrWouldDeadlock, c)
	default:
		var inner *etcdlock.Held
		var busy time.Time
		c := u.begin(ctx, "nested do "+w.what, false)
		err := w.do(c, func(_ context.Context, h *etcdlock.Held) error {
			if inner = h; h != own.Held { // that was released meanwhile
				u.has(h, w).leaves()
			} else {
				u.uses(own)
			}
			busy = time.Now()
			return nil
		})
		c.returned(250*time.Millisecond, busy)
		may := append(u.lossesOf(own), u.wordsOfTaking(false)...)
		if w.second { // somebody may have downgraded the hold
			may = append(may, etcdlock.ErrWouldDeadlock)
		}
		c.judge(err, may...)
		u.mu.Lock()
		defer u.mu.Unlock()
		if own.Err() == nil && own.left == 0 && !u.dead && !errors.Is(err, etcdlock.ErrWouldDeadlock) && (inner != own.Held || err != nil) {
			u.failLocked("%s inside Do has not run in the same hold: %v", c.what, err)
		}
	}
}

// leads runs an Elector.
func (u *user) leads() {
	name := u.names[u.dice.n(len(u.names))]
	overrun := etcdlock.WithOverrun(100*time.Millisecond, func(*etcdlock.Held) {})
	var e *etcdlock.Elector
	if u.locks != nil {
		e = u.locks.Elector(name, etcdlock.WithValue(u.id), overrun)
	} else {
		e = etcdlock.NewElector(u.s, name, etcdlock.WithValue(u.id), overrun)
	}
	for !u.stops() {
		var busy time.Time
		var last *hold
		c := u.begin(context.Background(), "run elector "+name, false)
		err := e.Run(c, func(ctx context.Context, term *etcdlock.Held) error {
			own := u.has(term, &way{names: map[string]bool{name: true}})
			defer func() {
				own.leaves()
				busy = time.Now()
			}()
			last = own
			u.uses(own)
			_ = elapse(ctx, u.dice.upTo(time.Second))
			if u.dice.oneIn(4) {
				_ = elapse(context.Background(), u.dice.upTo(500*time.Millisecond))
			}
			if u.dice.oneIn(8) {
				u.releases(own)
			}
			return errOwn
		})
		c.returned(u.ttl+time.Second, busy)
		may := []error{errOwn}
		if u.s != nil && u.s.Err() != nil {
			may = append(may, u.s.Err())
		}
		c.judge(err, may...)
		u.mu.Lock()
		if err == nil || e.IsLeader() || last == nil && errors.Is(err, errOwn) {
			u.failLocked("%s has returned %v, and IsLeader is %v", c.what, err, e.IsLeader())
		}
		u.mu.Unlock()
		_ = elapse(context.Background(), u.dice.upTo(time.Second))
	}
}
