// Which commands go in one request, of those that wait.

package sender

import (
	"container/heap"
	"container/list"
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
// first, so nobody waits behind a crowd that wants another name. Removals, and whatever else is no enqueue, may go at once, and
// before all enqueues: a crowd must not keep a lock from whoever waits for its removal.
type queue struct {
	removals, enqueues ready
	names              map[string]*list.List // the enqueues of each name, in the order in which they came
	came, waiting      int
}

// ready is the commands that may go, as a heap: the first is the one that has waited longest.
type ready []*Command

func (r ready) Len() int           { return len(r) }
func (r ready) Less(i, j int) bool { return r[i].turn < r[j].turn }

func (r ready) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

func (r *ready) Push(c any) {
	c.(*Command).at = len(*r)
	*r = append(*r, c.(*Command))
}

func (r *ready) Pop() any {
	last := len(*r) - 1
	c := (*r)[last]
	(*r)[last] = nil
	if *r = (*r)[:last]; last == 0 {
		*r = nil // and with it what a burst took
	}
	return c
}

func (q *queue) len() int { return q.waiting }

func (q *queue) lane(c *Command) *ready {
	if c.Enqueue {
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

func (q *queue) add(c *Command) {
	q.came++
	q.waiting++
	c.turn = q.came
	if c.Enqueue {
		if q.names == nil {
			q.names = make(map[string]*list.List)
		}
		for _, name := range c.Names {
			if q.names[name] == nil {
				q.names[name] = list.New()
			}
			c.places = append(c.places, q.names[name].PushBack(c))
		}
	}
	q.mayGo(c)
}

// mayGo has a command go if it is the first of its names.
func (q *queue) mayGo(c *Command) {
	for i, place := range c.places {
		if q.names[c.Names[i]].Front() != place {
			return
		}
	}
	heap.Push(q.lane(c), c)
}

// forget forgets a command that waits, and that its caller has given up.
func (q *queue) forget(c *Command) {
	c.state = givenUp
	if l := q.lane(c); c.at < len(*l) && (*l)[c.at] == c {
		heap.Remove(l, c.at)
	}
	q.gone(c)
}

// gone takes a command that does not wait any more, and is not among the ready, out of its names. Then the command behind it
// may go.
func (q *queue) gone(c *Command) {
	q.waiting--
	for i, place := range c.places {
		name := c.Names[i]
		l := q.names[name]
		first := l.Front() == place
		if l.Remove(place); l.Len() == 0 {
			delete(q.names, name)
		} else if first {
			q.mayGo(l.Front().Value.(*Command))
		}
	}
	c.places = nil
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
		heap.Pop(q.lane(first))
		b = []*Command{first}
	} else if b = q.removals.take(l, nil, l.most-min(1, enqueues)); enqueues > 0 {
		b = q.enqueues.take(l, b, l.most)
	}
	for _, c := range b { // now: what comes behind one of these is for the next request
		q.gone(c)
	}
	return b
}

// take adds to b the commands that go with it in a request of at most most.
func (r *ready) take(l *limits, b []*Command, most int) []*Command {
	var left []*Command
	bytes := 0
	for len(*r) > 0 && len(b) < most && len(left) < maxPassed {
		c := heap.Pop(r).(*Command)
		if l.alone(c) || bytes+c.bytes() > l.size() {
			left = append(left, c)
			continue
		}
		bytes += c.bytes()
		b = append(b, c)
	}
	for _, c := range left {
		heap.Push(r, c)
	}
	return b
}
