// What a request needs beside itself: a ctx that can be ended, and a timer. Both are used again.

package etcd

import (
	"context"
	"sync"
	"time"
)

// A lane is the ctx of a request, perhaps of several calls. Most requests of a Client end with its Life and are answered by
// their first call: their lanes are used again, and one timer looks after all of them. So such a request makes no timer and
// no ctx, and gRPC finds a ctx that has had children before.
type lane struct {
	ctx    context.Context
	cancel func()
	kept   bool        // it ends with the Client's Life, and has no caller's ctx in it
	stop   func() bool // keeps the caller's ctx from ending it, nil if that never ends

	due  time.Time
	late interface{ overdue() } // is told when due has come; left here for racersOn to use again
	at   int                    // in lanes.flying
}

// maxLanes bounds the lanes that wait for their next request.
const maxLanes = 64

type lanes struct {
	mu     sync.Mutex
	free   []*lane
	flying []*lane // whose first call has no answer, and is not overdue
	timer  *time.Timer
	rings  time.Time // when the timer rings, zero if it does not
}

// lane returns a lane that ends with ctx and with life, and the ctx for a request on it. release ends it.
func (c *Client) lane(ctx, life context.Context) (*lane, context.Context) {
	if life != c.Life {
		l := &lane{}
		l.ctx, l.cancel = Bind(ctx, life)
		return l, l.ctx
	}
	c.lanes.mu.Lock()
	var l *lane
	if n := len(c.lanes.free); n > 0 {
		l, c.lanes.free = c.lanes.free[n-1], c.lanes.free[:n-1]
	}
	c.lanes.mu.Unlock()
	if l == nil {
		l = &lane{kept: true}
		l.ctx, l.cancel = Bind(context.Background(), life)
	}
	if ctx == context.Background() {
		return l, l.ctx
	}
	if ctx.Done() != nil {
		l.stop = context.AfterFunc(ctx, l.cancel)
	}
	return l, &valued{l.ctx, ctx}
}

// release has a lane used again, once all calls have returned. Otherwise, or if its caller's ctx ends it, it ends.
func (c *Client) release(l *lane) {
	ended := l.stop != nil && !l.stop()
	l.stop = nil
	if l.kept && !ended {
		c.lanes.mu.Lock()
		defer c.lanes.mu.Unlock()
		if len(c.lanes.free) < maxLanes {
			c.lanes.free = append(c.lanes.free, l)
			return
		}
	}
	l.cancel()
}

// valued ends with one ctx and has the values of another one.
type valued struct {
	context.Context
	values context.Context
}

func (v *valued) Value(key any) any {
	if value := v.Context.Value(key); value != nil { // what package context needs to know of it
		return value
	}
	return v.values.Value(key)
}

// fly has late told after d, unless land is called before.
func (s *lanes) fly(l *lane, d time.Duration, late interface{ overdue() }) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.due, l.late, l.at = time.Now().Add(d), late, len(s.flying)
	s.flying = append(s.flying, l)
	if s.rings.IsZero() || l.due.Before(s.rings) {
		s.ringLocked(l.due, d)
	}
}

// land returns false if late was told, or is about to be.
func (s *lanes) land(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.at < 0 {
		return false
	}
	s.landLocked(l)
	return true
}

func (s *lanes) landLocked(l *lane) {
	last := len(s.flying) - 1
	s.flying[l.at], s.flying[last].at = s.flying[last], l.at
	s.flying[last] = nil
	s.flying, l.at = s.flying[:last], -1
}

func (s *lanes) ringLocked(at time.Time, d time.Duration) {
	s.rings = at
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.ring)
	} else {
		s.timer.Reset(d)
	}
}

// ring tells what is due.
func (s *lanes) ring() {
	s.mu.Lock()
	now, next := time.Now(), time.Time{}
	var due []*lane
	for i := 0; i < len(s.flying); {
		l := s.flying[i]
		if !l.due.After(now) {
			s.landLocked(l)
			due = append(due, l)
			continue
		}
		if next.IsZero() || l.due.Before(next) {
			next = l.due
		}
		i++
	}
	if s.rings = next; !next.IsZero() {
		s.ringLocked(next, next.Sub(now))
	}
	s.mu.Unlock()
	for _, l := range due {
		l.late.overdue()
	}
}
