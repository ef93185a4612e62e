// Package outbox calls code of the user, hooks and loggers, for those who must not wait for it: a renewal of a lease, or
// a call whose ctx ends. It knows nothing of what it calls.
package outbox

import (
	"cmp"
	"errors"
	"sync"
	"time"
)

// ErrBlocked says that a call takes longer than Close waits.
var ErrBlocked = errors.New("etcdlock: close: a hook or the log blocks")

// Limit is how many calls may wait. It is far above what a burst of 10,000 acquisitions leaves behind that code of the
// user keeps up with, and some megabytes where that blocks for good.
const Limit = 1 << 14

// An Outbox makes the calls that it is given one after the other, in order, on a goroutine of its own, which lives while
// there are any. So one that blocks holds up the calls behind it and nobody else. The zero value is ready. It is safe for
// concurrent use.
type Outbox struct {
	dropped func(n int) // is told how many calls were refused, when all those that waited have been made; see Logger

	mu      sync.Mutex // a leaf: no other mutex is taken while it is held
	calls   []func()   // that wait
	running bool       // deliver runs, or is about to
	refused int        // since dropped was told
}

// Tell has f called, if it is not nil. It returns false, and drops f, if too many calls wait.
func (o *Outbox) Tell(f func()) bool {
	if f == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.calls) >= Limit {
		o.refused++
		return false
	}
	o.tellLocked(f)
	return true
}

// tellRest has f called however many calls wait.
func (o *Outbox) tellRest(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tellLocked(f)
}

// Delivered returns a channel that is closed when all calls so far have been made.
func (o *Outbox) Delivered() <-chan struct{} {
	done := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running {
		o.tellLocked(func() { close(done) })
	} else {
		close(done)
	}
	return done
}

// AwaitAfter waits until done is closed, and then until all calls so far have been made: for limit at the most. It returns
// late if done was not closed in time; else the error of ended, which it calls then, or ErrBlocked.
func (o *Outbox) AwaitAfter(done <-chan struct{}, limit time.Duration, ended func() error, late error) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		return late
	}
	err := ended()
	select {
	case <-o.Delivered():
		return err
	case <-timer.C:
		return cmp.Or(err, ErrBlocked)
	}
}

func (o *Outbox) tellLocked(f func()) {
	o.calls = append(o.calls, f)
	if !o.running {
		o.running = true
		go o.deliver() // ends when no call waits
	}
}

func (o *Outbox) deliver() {
	defer func() { // also if a call ends its goroutine, as FailNow of a test does
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.running = len(o.calls) > 0; o.running {
			go o.deliver()
		}
	}()
	for f := o.next(); f != nil; f = o.next() {
		f()
	}
}

// next is the next call to make, nil if there is none.
func (o *Outbox) next() (f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch n := o.refused; {
	case len(o.calls) > 0:
		f, o.calls[0] = o.calls[0], nil
		if o.calls = o.calls[1:]; len(o.calls) == 0 {
			o.calls = nil // a burst leaves nothing behind
		}
	case n > 0:
		o.refused = 0
		f = func() {
			if o.dropped != nil {
				o.dropped(n)
			}
		}
	}
	return f
}
