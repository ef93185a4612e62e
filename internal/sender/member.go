// A command that shares its request with others, or waits for one.

package sender

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A member is a command that shares its request with others, or waits for them. The Sender's mutex guards it.
type member struct {
	*Command
	state     state
	since     time.Time // when it began to wait for a request
	flight    *flight   // nil before it is sent
	calls     int       // that had the command in them
	changed   bool      // Did is true of reply
	reply     Reply
	ambiguous bool
	err       error
	told      bool          // Done was, if there is one
	done      chan struct{} // closed then; nil if nobody waits
}

// state says how far a member is.
type state uint8

const (
	waits   state = iota // for a request to go with
	offered              // for a request of its name, or for its caller to have it sent
	sent                 // in a request that is on its way
	over                 // answered or refused
	givenUp              // by its caller: no request that begins now has it
)

// queueLocked has a command wait for the next request.
func (s *Sender) queueLocked(m *member) {
	m.state, m.since = waits, time.Now()
	s.queue.add(m)
	s.tickLocked()
}

// awaitLocked waits for a command that others send, and releases the mutex.
func (s *Sender) awaitLocked(ctx, life context.Context, m *member) (Reply, bool, error) {
	defer s.mu.Unlock()
	if !m.told {
		m.done = make(chan struct{})
		s.mu.Unlock()
		select {
		case <-m.done:
		case <-ctx.Done():
		case <-life.Done():
		case <-s.etcd.Ctx().Done():
		}
		s.mu.Lock()
	}
	if m.state == over && !m.told { // Done is told of the reply now
		s.mu.Unlock()
		<-m.done
		s.mu.Lock()
	}
	switch m.state {
	case waits, offered:
		s.forgetLocked(m)
		return Reply{}, m.ambiguous, s.ended(ctx, life, nil)
	case over:
		if m.err == nil || etcd.Refused(m.err) {
			return m.reply, m.ambiguous, m.err
		}
	}
	s.giveUpLocked(m)
	return Reply{}, true, s.ended(ctx, life, m.err)
}

// forgetLocked forgets a command that was not sent, and that its caller has given up.
func (s *Sender) forgetLocked(m *member) {
	if m.state == offered {
		s.offers.remove(m)
		m.state = givenUp
		return
	}
	s.queue.forget(m)
}

// giveUpLocked gives up a command that is on its way, and the request if nobody else waits for that.
func (s *Sender) giveUpLocked(m *member) {
	m.state = givenUp
	if f := m.flight; f != nil {
		if f.wanted--; f.wanted == 0 {
			f.cancel()
		}
	}
}

// ended is why a command has no answer.
func (s *Sender) ended(ctx, life context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return s.etcd.CtxError(ctx, nil)
	case life.Err() != nil:
		return context.Cause(life)
	case s.etcd.Ctx().Err() != nil:
		return etcd.ErrClientClosed
	}
	return err
}

// overLocked ends a command that its caller has not given up. Nothing is in doubt of one that is seen to have changed
// something: it was the first attempt that etcd has carried out.
func (m *member) overLocked(ambiguous bool, err error) {
	if m.state == sent {
		m.state, m.err = over, err
		m.ambiguous = (m.ambiguous || ambiguous) && (err != nil || !m.changed)
	}
}

// tell tells of the end of a command.
func (s *Sender) tell(m *member) {
	if m.err == nil && m.Done != nil {
		m.Done(m.reply, m.ambiguous)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.told = true; m.done != nil {
		close(m.done)
	}
}
