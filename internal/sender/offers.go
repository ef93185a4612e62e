// Removals that wait for another request of their name.

package sender

import (
	"context"
	"slices"
)

// Offer has a removal wait for company: the next request of its name takes it along. Await follows.
func (s *Sender) Offer(c *Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comeLocked(c, offered)
	s.offers.add(c.Names[0], c)
}

// Await is Do for a removal that was offered: it sends the removal if nobody has taken that along.
func (s *Sender) Await(ctx, life context.Context, c *Command) (r Reply, ambiguous bool, err error) {
	s.mu.Lock()
	if !s.claimLocked(c) {
		return s.awaitLocked(ctx, life, c)
	}
	return s.doLocked(ctx, life, c)
}

// claimLocked returns true if the caller must send the removal now: no request has it, and it has no reply to wait for. A
// removal that must go by itself waits for no reply: there may be a request of its name at each moment, and none takes it along.
func (s *Sender) claimLocked(c *Command) bool {
	if c.state != offered || c.Patient && s.flying[c.Names[0]] > 0 && s.joins(c) {
		return false
	}
	s.offers.remove(c.Names[0], c)
	return true
}

// joins reports whether the removals and the other requests of c's names go together. They do not if c goes by itself, nor while the
// Client drains, which lets the removals through and may hold the others back.
func (s *Sender) joins(c *Command) bool { return !s.limits.alone(c) && !s.etcd.Draining() }

// alongLocked adds to along the removals that were offered for the names of c, a command in a request of n, as far as there
// is room. An enqueue takes none while the Client drains, which holds the enqueue back and must not hold back the removals.
func (s *Sender) alongLocked(along []*Command, c *Command, n int) []*Command {
	if len(s.offers) == 0 || s.limits.alone(c) || !c.Through && s.etcd.Draining() {
		return along
	}
	for _, name := range c.Names {
		for _, o := range slices.Clone(s.offers[name]) {
			if n+len(along) < s.limits.most && !s.limits.alone(o) {
				s.offers.remove(name, o)
				along = append(along, o)
			}
		}
	}
	return along
}
