// Removals that wait for another request of their name.

package sender

import (
	"context"
	"slices"
)

// An Offered is a removal that waits for a request of its name.
type Offered struct{ c *Command }

// offers are the removals that wait for a request of their name, by name. Each is there until a request takes it along, its
// caller sends it, or its name has no request on its way any more.
type offers map[string][]*Command

func (o offers) add(c *Command) {
	name := c.Names[0]
	others := o[name]
	if others == nil {
		others = c.room.self[:0] // most have a name of their own
	}
	o[name] = append(others, c)
}

func (o offers) remove(c *Command) {
	name := c.Names[0]
	o[name] = slices.DeleteFunc(o[name], func(other *Command) bool { return other == c })
	if len(o[name]) == 0 {
		delete(o, name)
	}
}

// Offer has a removal wait for company: the next request of its name takes it along. Await follows.
func (s *Sender) Offer(c *Command) Offered {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.state = offered
	s.offers.add(c)
	return Offered{c}
}

// Await is Do for a removal that was offered: it sends the removal if nobody has taken that along.
func (s *Sender) Await(ctx, life context.Context, o Offered) (r Reply, ambiguous bool, err error) {
	s.mu.Lock()
	if !s.claimLocked(o.c) {
		return s.awaitLocked(ctx, life, o.c)
	}
	return s.doLocked(ctx, life, o.c)
}

// claimLocked returns true if the caller must send the removal now: no request has it, and it has no reply to wait for. One
// that goes by itself waits for none: there may be a request of its name at each moment, and none takes it along.
func (s *Sender) claimLocked(c *Command) bool {
	if c.state != offered || c.Patient && s.flying[c.Names[0]] > 0 && !s.limits.alone(c) {
		return false
	}
	s.offers.remove(c)
	return true
}

// alongLocked adds to along the removals that were offered for the names of c, a command in a request of n, as far as there
// is room.
func (s *Sender) alongLocked(along []*Command, c *Command, n int) []*Command {
	if len(s.offers) == 0 || s.limits.alone(c) {
		return along
	}
	for _, name := range c.Names {
		for _, o := range slices.Clone(s.offers[name]) {
			if n+len(along) < s.limits.most && !s.limits.alone(o) {
				s.offers.remove(o)
				along = append(along, o)
			}
		}
	}
	return along
}
