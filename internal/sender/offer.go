// Removals that wait for another request of their name.

package sender

import (
	"context"
	"slices"
)

// An Offered is a removal that waits for a request of its name.
type Offered struct{ m *member }

// offers are the removals that wait for a request of their name, by name. Each is there until a request takes it along, its
// caller sends it, or its name has no request on its way any more.
type offers map[string][]*member

func (o offers) add(m *member) { o[m.Names[0]] = append(o[m.Names[0]], m) }

func (o offers) remove(m *member) {
	name := m.Names[0]
	o[name] = slices.DeleteFunc(o[name], func(other *member) bool { return other == m })
	if len(o[name]) == 0 {
		delete(o, name)
	}
}

// Offer has a removal wait for company: the next request of its name takes it along. Await follows.
func (s *Sender) Offer(c *Command) Offered {
	m := &member{Command: c, state: offered}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers.add(m)
	return Offered{m}
}

// Await is Do for a removal that was offered: it sends the removal if nobody has taken that along.
func (s *Sender) Await(ctx, life context.Context, o Offered) (r Reply, ambiguous bool, err error) {
	s.mu.Lock()
	if !s.claimLocked(o.m) {
		return s.awaitLocked(ctx, life, o.m)
	}
	return s.doLocked(ctx, life, o.m.Command)
}

// claimLocked returns true if the caller must send the removal now: no request has it, and it has no reply to wait for. One
// that goes by itself waits for none: there may be a request of its name at each moment, and none takes it along.
func (s *Sender) claimLocked(m *member) bool {
	if m.state != offered || m.Patient && s.flying[m.Names[0]] > 0 && !s.limits.alone(m.Command) {
		return false
	}
	s.offers.remove(m)
	return true
}

// alongLocked adds to along the removals that were offered for the names of c, a command in a request of n, as far as there
// is room.
func (s *Sender) alongLocked(along []*member, c *Command, n int) []*member {
	if len(s.offers) == 0 || s.limits.alone(c) {
		return along
	}
	for _, name := range c.Names {
		for _, o := range slices.Clone(s.offers[name]) {
			if n+len(along) < s.limits.most && !s.limits.alone(o.Command) {
				s.offers.remove(o)
				along = append(along, o)
			}
		}
	}
	return along
}
