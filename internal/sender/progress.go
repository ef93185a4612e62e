// A command that shares its request with others, or waits for one.

package sender

import (
	"cmp"
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// progress is what becomes of a command that shares its request with others, or waits for them. The Sender's mutex guards it.
type progress struct {
	state     state
	apart     bool // a request that it shared was refused, so it goes by itself
	changed   bool // Did is true of reply
	ambiguous bool
	told      bool      // its Owner was, if there is one
	since     time.Time // when it came
	turn      int       // its number in the order of arrival
	flight    *flight   // nil before it is sent
	calls     int       // how many calls had the command
	reply     Reply
	err       error
	done      chan struct{} // closed when it is told; nil if nobody waits
}

// state says how far a command is.
type state uint8

const (
	waits   state = iota // for a request to go with
	offered              // for a request of its name, or for its caller to have it sent
	sent                 // in a request that is on its way
	over                 // answered or refused
	givenUp              // by its caller: no request that begins now has it
)

// comeLocked takes note of a command that comes.
func (s *Sender) comeLocked(c *Command, as state) {
	s.queue.came++
	c.progress = progress{state: as, since: time.Now(), turn: s.queue.came}
}

// queueLocked has a command wait for the next request.
func (s *Sender) queueLocked(c *Command) {
	c.state = waits
	s.queue.add(c)
	s.tickLocked()
}

// awaitLocked waits for a command that others send, and releases the mutex.
func (s *Sender) awaitLocked(ctx, life context.Context, c *Command) (Reply, bool, error) {
	if !c.told {
		c.done = make(chan struct{})
		s.mu.Unlock()
		select {
		case <-c.done:
		case <-ctx.Done():
		case <-life.Done():
		case <-s.etcd.Ctx().Done():
		}
		s.mu.Lock()
	}
	if c.state == over && !c.told { // its Owner is told of the reply now
		s.mu.Unlock()
		<-c.done
		s.mu.Lock()
	}
	if c.state == over && (c.err == nil || etcd.Refused(c.err)) {
		defer s.mu.Unlock()
		return c.reply, c.ambiguous, c.err
	}
	ambiguous, last := true, c.err
	switch f := c.flight; {
	case c.state == offered:
		s.offers.remove(c.Names[0], c)
		ambiguous = c.ambiguous
	case c.state == waits:
		s.queue.forget(c)
		ambiguous = c.ambiguous
	case f != nil: // with the last command that somebody waits for the request ends
		if f.wanted--; f.wanted == 0 {
			f.cancel()
		}
	}
	c.state = givenUp
	// Without the mutex: Ended calls the caller's ctx, and asks for 20 ms why there is no connection. Else in an outage each caller
	// whose ctx ends would wait for all others.
	s.mu.Unlock()
	return Reply{}, ambiguous, cmp.Or(s.etcd.Ended(ctx, life, nil), last)
}

// overLocked ends a command that its caller has not given up. If the reply says that the command has changed something,
// nothing is in doubt: the reply is that to the first attempt that etcd has carried out.
func (c *Command) overLocked(ambiguous bool, err error) {
	c.state, c.err = over, err
	c.ambiguous = (c.ambiguous || ambiguous) && (err != nil || !c.changed)
}

// tell tells of the end of a command.
func (s *Sender) tell(c *Command) {
	if c.err == nil && c.Owner != nil {
		c.Owner.Answered(c.reply, c.ambiguous)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.told = true; c.done != nil {
		close(c.done)
	}
}
