// The candidacies of a session, for as long as something refers to them.

package concurrency

import "sync/atomic"

// A candidacy is that of a session for a name. All Elections of that name share it.
type candidacy struct {
	turn  chan struct{} // held by a Campaign, also while it waits: so nothing else may ask for it
	term  atomic.Pointer[term]
	users int // the calls that have it; the session's mu guards it
}

// idle reports whether another candidacy would do as well: no call has this one, and it does not lead. A term that nobody
// has resigned must stay, for the next Election of the session leads with it.
func (c *candidacy) idle() bool {
	t := c.term.Load()
	return c.users == 0 && (t == nil || t.hold.Err() != nil)
}

// candidacy is that of the session for this name. It is the caller's to use until done is called.
func (s *Session) candidacy(name string) (c *candidacy, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.candidacies[name]; c == nil {
		s.forgetLost()
		c = &candidacy{turn: make(chan struct{}, 1)}
		s.candidacies[name] = c
	}
	c.users++
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.users--; c.idle() {
			delete(s.candidacies, name)
		}
	}
}

// forgetLost forgets those whose term was lost: no call ends with that. It looks at all of them when there are twice as
// many as it has last left. s.mu is locked.
func (s *Session) forgetLost() {
	const few = 16
	if len(s.candidacies) < max(2*s.kept, few) {
		return
	}
	for name, c := range s.candidacies {
		if c.idle() {
			delete(s.candidacies, name)
		}
	}
	s.kept = len(s.candidacies)
}
