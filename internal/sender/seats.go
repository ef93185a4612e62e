// Which requests are on their way, and what is sent when a request has landed.

package sender

import (
	"context"
	"runtime"
	"time"
)

// takeLocked takes the commands of the next request, none if none waits, and the removals that were offered for their names.
// The caller sends them, on its seat.
func (s *Sender) takeLocked() []*Command {
	b := s.queue.take(&s.limits, s.etcd.Draining())
	if len(b) == 0 {
		return nil
	}
	var along []*Command
	for _, c := range b {
		along = s.alongLocked(along, c, len(b))
	}
	if len(along) > 0 {
		b = append(along, b...)
	}
	s.beginLocked(b...)
	return b
}

// beginLocked takes note that a request is on its way.
func (s *Sender) beginLocked(b ...*Command) {
	for _, c := range b {
		c.state = sent
		s.aboard++
		for _, name := range c.Names {
			s.flying[name]++
		}
	}
	s.requests++
	if len(b) > 1 {
		s.packed++
	}
}

// arriveLocked takes note that a command is not on its way any more. If no other command of its name is, the removals that were
// offered for the name go with the next request. They also do if the command had to go alone: it took no removal along, and the
// next command of the name may not either.
func (s *Sender) arriveLocked(c *Command) {
	s.aboard--
	for _, name := range c.Names {
		if s.flying[name]--; s.flying[name] == 0 {
			delete(s.flying, name)
		} else if s.joins(c) {
			continue
		}
		for _, o := range s.offers[name] {
			s.queueLocked(o)
			s.freed = true
		}
		delete(s.offers, name)
	}
}

// landLocked gives a seat to what waits.
func (s *Sender) landLocked() {
	if s.seats--; s.queue.len() == 0 {
		return
	}
	var b []*Command
	if s.freed {
		b, s.freed = s.takeLocked(), false
	}
	s.startLocked(b)
}

// startLocked takes a seat, and sends a request, if there is one, and after it what waits. If the session is at its end, so are the ctxs of
// those that wait.
func (s *Sender) startLocked(b []*Command) {
	s.seats++
	if !s.background(func(ctx context.Context) { s.run(ctx, b) }) {
		for _, c := range b {
			s.arriveLocked(c)
		}
		s.seats--
	}
}

// run sends a request, if there is one, and what waits after it, one request after the other, until nothing waits or
// others have all the seats.
func (s *Sender) run(ctx context.Context, b []*Command) {
	for {
		if len(b) > 0 {
			s.fly(ctx, nil, b, nil)
		}
		s.mu.Lock()
		if !s.freed {
			s.mu.Unlock()
			// First the goroutines run that the reply has woken: what they send goes along. Without this, half of 4 to 16
			// goroutines miss the request.
			runtime.Gosched()
			runtime.Gosched()
			s.mu.Lock()
		}
		b, s.freed = nil, false
		if s.queue.len() > 0 && (s.seats <= s.pace.seats(s.limits.most) || s.hastyLocked(s.queue.first())) {
			b = s.takeLocked()
		}
		if len(b) > 0 && s.queue.len() > 0 && s.seats < maxSeats && s.hastyLocked(s.queue.first()) { // it follows at once
			s.startLocked(nil)
		}
		if len(b) == 0 {
			s.seats--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// tickLocked sees to it that nothing waits long: see pace.
func (s *Sender) tickLocked() {
	switch {
	case s.ticking:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(s.pace.patience(), s.tick)
	default:
		s.timer.Reset(s.pace.patience())
	}
	s.ticking = true
}

func (s *Sender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticking = false
	for s.queue.len() > 0 && s.seats < maxSeats && time.Since(s.queue.first().since) >= s.pace.patience() {
		b := s.takeLocked()
		if len(b) == 0 { // the Client drains
			break
		}
		s.startLocked(b)
	}
	if s.queue.len() > 0 {
		s.tickLocked()
	}
}
