// Removals that wait for another request of their name.

package sender

import "slices"

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

// alongLocked adds to along the removals that were offered for the names of c, a command in a request of n, as far as there
// is room. An enqueue takes none while the Client drains, which holds the enqueue back and must not hold back the removals.
func (s *Sender) alongLocked(along []*Command, c *Command, n int) []*Command {
	if len(s.offers) == 0 || s.limits.alone(c) || !c.Through && s.etcd.Draining() {
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
