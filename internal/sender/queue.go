// Which commands go in one request, of those that wait.

package sender

import (
	"cmp"
	"slices"
)

const (
	// maxCommands bounds a request. Etcd allows 128 operations by default: each command is one, and may have as many as all
	// commands leave. One lost reply makes all commands of a request ambiguous, so a request is no larger than what pays.
	maxCommands = 64
	// maxOps is the most operations of a command that shares its request.
	maxOps = 32
	// maxBytes bounds what a request puts, if it has more than one command. Etcd's limit is 1.5 MB by default.
	maxBytes = 256 << 10
	// minBytes is what a request may always put, whatever etcd has refused.
	minBytes = 4 << 10
	// maxPassed is how many commands, which must go by themselves or do not fit, a request may leave behind.
	maxPassed = 256
)

// A queue holds the commands that wait. Enqueues of one name go in the order in which they came, and each request has one of
// them at most: so an enqueue may go if it is the first of each of its names. Of those that may go, the one that has waited longest goes
// first, so nobody waits behind a crowd that wants another name. Removals may go at once, and before all
// enqueues: a crowd must not keep a lock from whoever waits for its removal.
type queue struct {
	removals, enqueues line  // those that may go
	names              lines // the enqueues of each name
	came, waiting      int
}

// A line is commands in the order in which they came. A burst may make it long: to find one takes a few steps, and all that is moved are
// pointers.
type line []*Command

func (l line) find(c *Command) (i int, there bool) {
	return slices.BinarySearchFunc(l, c, func(a, b *Command) int { return cmp.Compare(a.turn, b.turn) })
}

func (l *line) add(c *Command) {
	if i, there := l.find(c); !there {
		*l = slices.Insert(*l, i, c)
	}
}

func (l *line) remove(c *Command) {
	if i, there := l.find(c); there {
		*l = slices.Delete(*l, i, i+1)
	}
}

// lines are a line for each name. None is empty.
type lines map[string]line

func (ls lines) add(name string, c *Command) {
	l := ls[name]
	if l == nil {
		l = c.room.self[:0] // most have a name of their own
	}
	l.add(c)
	ls[name] = l
}

func (ls lines) remove(name string, c *Command) {
	if l := ls[name]; len(l) > 1 {
		l.remove(c)
		ls[name] = l
	} else {
		delete(ls, name)
	}
}

func (q *queue) len() int { return q.waiting }

func (q *queue) lane(c *Command) *line {
	if c.enqueues() {
		return &q.enqueues
	}
	return &q.removals
}

// first is the command that has waited longest. There must be one. It may go: whatever it would wait for came before it.
func (q *queue) first() *Command {
	if len(q.removals) == 0 || len(q.enqueues) > 0 && q.enqueues[0].turn < q.removals[0].turn {
		return q.enqueues[0]
	}
	return q.removals[0]
}

// behind reports whether an enqueue waits that has a name in common with c.
func (q *queue) behind(c *Command) bool {
	return slices.ContainsFunc(c.Names, func(name string) bool { return q.names[name] != nil })
}

// add has a command wait. If it was on its way before, it is the first of its names again.
func (q *queue) add(c *Command) {
	q.waiting++
	if c.enqueues() {
		for _, name := range c.Names {
			if l := q.names[name]; l != nil && c.turn < l[0].turn {
				q.enqueues.remove(l[0])
			}
			q.names.add(name, c)
		}
	}
	q.mayGo(c)
}

// mayGo has a command go if it is the first of its names.
func (q *queue) mayGo(c *Command) {
	if !c.enqueues() || !slices.ContainsFunc(c.Names, func(name string) bool { return q.names[name][0] != c }) {
		q.lane(c).add(c)
	}
}

// forget forgets a command that waits, and that its caller has given up.
func (q *queue) forget(c *Command) {
	c.state = givenUp
	q.lane(c).remove(c)
	q.gone(c)
}

// gone takes a command that does not wait any more, and is not among those that may go, out of its names. Then the command behind it
// may go.
func (q *queue) gone(c *Command) {
	if c.enqueues() {
		for _, name := range c.Names {
			if q.names.remove(name, c); q.names[name] != nil {
				q.mayGo(q.names[name][0])
			}
		}
	}
	if q.waiting--; q.waiting == 0 {
		q.removals, q.enqueues = nil, nil // and with them what a burst took
	}
}

// take takes the commands of the next request, as many as it may have: removals, and then enqueues, each in the order in
// which they came. No key is used again before its removal is confirmed, so a removal may pass all that waits. In the request
// the removals are carried out first, so the enqueues' listings show the queues without them. The command that waits longest
// is always in it.
//
// While the Client drains, enqueues wait: an enqueue in the request of a removal, which goes through, would go through too.
func (q *queue) take(l *limits, drains bool) (b []*Command) {
	enqueues := len(q.enqueues)
	if drains {
		enqueues = 0
	}
	if len(q.removals)+enqueues == 0 {
		return nil
	}
	first := q.first()
	if enqueues == 0 {
		first = q.removals[0]
	}
	if l.alone(first) {
		q.lane(first).remove(first)
		b = []*Command{first}
	} else if b = q.removals.take(l, nil, l.most-min(1, enqueues)); enqueues > 0 {
		b = q.enqueues.take(l, b, l.most)
	}
	for _, c := range b { // now: what comes behind one of these is for the next request
		q.gone(c)
	}
	return b
}

// take moves to b the commands that go with it in a request of at most most.
func (l *line) take(by *limits, b []*Command, most int) []*Command {
	var left []*Command
	bytes, n := 0, 0
	for ; n < len(*l) && len(b) < most && len(left) < maxPassed; n++ {
		if c := (*l)[n]; by.alone(c) || bytes+c.bytes() > by.size() {
			left = append(left, c)
		} else {
			bytes += c.bytes()
			b = append(b, c)
		}
	}
	copy((*l)[n-len(left):], left)
	*l = (*l)[n-len(left):]
	return b
}
