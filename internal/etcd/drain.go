// How a user of etcd ends with all of its requests answered: Drain.

package etcd

import (
	"context"
	"sync"
	"time"
)

// calls are the calls of Do that are under way.
type calls struct {
	mu       sync.Mutex
	n        int
	answered chan struct{} // closed when there are none; nil unless Drain waits
	resumed  chan struct{} // closed by resume; nil unless draining: no call begins
}

// Drain holds back each call of Do that begins from now on, except those whose Policy is Through, until resume is called or the
// call must end. Drain blocks until first is closed and etcd has answered the calls that are under way, or done is closed, or for
// limit at the most.
func (c *Client) Drain(limit time.Duration, first, done <-chan struct{}) (resume func()) {
	d := &c.calls
	d.mu.Lock()
	if d.resumed == nil {
		d.resumed, d.answered = make(chan struct{}), make(chan struct{})
		if d.n == 0 {
			close(d.answered)
		}
	}
	answered := d.answered
	d.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for _, wait := range []<-chan struct{}{first, answered} {
		select {
		case <-wait:
		case <-timer.C:
			return d.resume
		case <-done:
			return d.resume
		}
	}
	return d.resume
}

// Draining reports whether Drain holds calls back.
func (c *Client) Draining() bool {
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	return c.calls.resumed != nil
}

func (d *calls) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resumed != nil {
		close(d.resumed)
		d.resumed, d.answered = nil, nil
	}
}

// begin begins a call, which ends with ctx, life and client, and which over keeps Drain from holding back. It calls no ctx of the
// caller's with the mutex held.
func (d *calls) begin(ctx, life, client context.Context, over bool) {
	d.mu.Lock()
	for resumed := d.resumed; resumed != nil && !over; resumed = d.resumed {
		d.mu.Unlock()
		select {
		case <-resumed:
		case <-ctx.Done():
			over = true
		case <-life.Done():
			over = true
		case <-client.Done():
			over = true
		}
		d.mu.Lock()
	}
	d.n++
	d.mu.Unlock()
}

func (d *calls) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n == 0 && d.answered != nil {
		select {
		case <-d.answered: // a call that came later has ended unsent
		default:
			close(d.answered)
		}
	}
}
