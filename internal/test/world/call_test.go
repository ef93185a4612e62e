package world

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
)

// words are the errors that the library documents.
var words = []error{
	etcdlock.ErrLocked, etcdlock.ErrSessionExpired, etcdlock.ErrSessionClosed, etcdlock.ErrLost, etcdlock.ErrOutcomeUnknown, etcdlock.ErrNotHeld,
	etcdlock.ErrNotFound, etcdlock.ErrWouldDeadlock, etcdlock.ErrElectionNoLeader, etcdlock.ErrInvalidName,
}

// causes are what ctxs end with. An error of the library must not be taken for the answer to the call.
var causes = append(slices.Clone(words), nil, rpctypes.ErrLeaseNotFound, errors.New("the caller's own cause"))

// A call is one that a user makes, with its ctx.
type call struct {
	context.Context
	*user
	what  string
	began time.Time
	free  func()
	ended atomic.Int64 // when the ctx ended, in ns, 0 before
	ends  bool         // it ends with its session
	why   error        // why the ctx has ended when the call returned
}

// begin begins a call. Its ctx ends with parent, at some moment, or never.
func (u *user) begin(parent context.Context, what string, ends bool) *call {
	d := u.dice
	ctx, cancel := context.WithCancelCause(parent)
	giveUp := time.AfterFunc(time.Hour, func() { cancel(nil) }) // if it hangs
	c := &call{Context: ctx, user: u, what: u.id + ": " + what, began: time.Now(), ends: ends, free: func() { giveUp.Stop(); cancel(nil) }}
	end := func() { cancel(causes[d.n(len(causes))]) }
	switch d.n(10) {
	case 0:
		stop := time.AfterFunc(d.upTo(2*time.Second), end).Stop
		c.free = func() { stop(); giveUp.Stop(); cancel(nil) }
	case 1:
		most := []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second}[d.n(3)]
		timed, stop := context.WithTimeout(ctx, d.upTo(most))
		c.Context, c.free = timed, func() { stop(); giveUp.Stop(); cancel(nil) }
	case 2:
		stop := time.AfterFunc(d.upTo(20*time.Millisecond), end).Stop
		c.free = func() { stop(); giveUp.Stop(); cancel(nil) }
	case 3:
		if d.oneIn(4) {
			end()
		}
	}
	context.AfterFunc(c.Context, func() { c.ended.Store(time.Now().UnixNano()) })
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pending[c] = true
	u.called++
	return c
}

// returned is called when the call has returned: late after its ctx, and after busy, when what the caller did in it was done.
func (c *call) returned(late time.Duration, busy time.Time) {
	c.why = c.Err()
	c.mu.Lock()
	delete(c.pending, c)
	if ns := c.ended.Load(); ns != 0 {
		at := time.Unix(0, ns)
		if busy.After(at) {
			at = busy
		}
		if since := time.Since(at); since > late+10*time.Millisecond {
			c.failLocked("%s has returned %v after the end of its ctx", c.what, since)
		}
	}
	c.mu.Unlock()
	c.free()
}

// judge fails the world if the call must not have returned err. may are the words that it may return, and errors of the caller's own.
func (c *call) judge(err error, may ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || c.dead {
		return
	}
	known := c.why != nil && errors.Is(err, c.why) || c.wire.refused.Load() && errors.As(err, new(rpctypes.EtcdError))
	if c.closed.Load() {
		may = append(may, etcdlock.ErrSessionClosed)
	}
	for _, word := range words {
		if errors.Is(err, word) && !slices.Contains(may, word) {
			c.failLocked("%s must not return %v: %v", c.what, word, err)
		}
	}
	known = known || slices.ContainsFunc(may, func(word error) bool { return errors.Is(err, word) })
	if !known {
		c.failLocked("%s has returned an error that is not documented: %v", c.what, err)
	}
	if !strings.Contains(err.Error(), "etcdlock: ") && !errors.Is(err, errOwn) {
		c.failLocked("%s has returned an error without its name: %v", c.what, err)
	}
}

// tellsOfTheLoss fails the world if the error of a call about a hold says that the session has ended, and not that the hold was lost
// with it.
func (c *call) tellsOfTheLoss(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := errors.Is(err, etcdlock.ErrSessionExpired) || errors.Is(err, etcdlock.ErrSessionClosed)
	if ended && !errors.Is(err, etcdlock.ErrLost) && !c.dead {
		c.failLocked("%s must return ErrLost with %v", c.what, err)
	}
}

// requires fails the world if the call has returned nil, and etcd shows that it must not.
func (c *call) requires(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok {
		c.failLocked("%s must not return nil, by what is in etcd", c.what)
	}
}

// errOwn is what functions return that users pass to Do and Run.
var errOwn = errors.New("the caller's own error")

// lossesOf are the words by which a call about a hold may tell of its end.
func (u *user) lossesOf(h *hold) (may []error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h.left > 0 {
		may = append(may, etcdlock.ErrNotHeld)
	}
	ended := h.Session().Err()
	if ended != nil || u.brokenLocked(h.Held) {
		may = append(may, etcdlock.ErrLost)
	}
	if ended != nil {
		may = append(may, ended)
	}
	return may
}

// wordsOfTaking are the words by which the wait for a lock may fail.
func (u *user) wordsOfTaking(ticket bool) (may []error) {
	if u.breaks {
		may = append(may, etcdlock.ErrLost)
	}
	if u.s != nil && u.s.Err() != nil || ticket {
		may = append(may, etcdlock.ErrSessionExpired, etcdlock.ErrLost)
	}
	return may
}
