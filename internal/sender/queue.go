// Which commands go in one request, of those that wait.

package sender

const (
	// maxCommands bounds a request: etcd allows 128 operations by default, and each command may have what the number of
	// the commands leaves. One lost reply makes all commands of the request ambiguous, so it is no larger than what pays.
	maxCommands = 64
	// maxOps is how many operations a command may have that goes with others.
	maxOps = 32
	// maxBytes bounds what a request puts, which etcd allows 1.5 MB by default.
	maxBytes = 256 << 10
	// maxPassed is how many commands a request may leave behind that came before the last one in it.
	maxPassed = 256
)

// A queue holds the commands that wait. Removals, and whatever else is no enqueue, have a lane of their own and go first: a
// crowd of enqueues must not keep a lock from whoever waits for its removal.
type queue struct {
	removals, enqueues lane
	names              map[string]int
}

// A lane holds commands in the order in which they came.
type lane struct {
	commands []*Command // and some that were given up
	given    int        // how many of those
}

func (q *queue) lane(c *Command) *lane {
	if c.Enqueue {
		return &q.enqueues
	}
	return &q.removals
}

func (q *queue) len() int { return q.removals.len() + q.enqueues.len() }

func (w *lane) len() int { return len(w.commands) - w.given }

// first is the command that waits longest. There must be one.
func (q *queue) first() *Command {
	removal, enqueue := q.removals.first(), q.enqueues.first()
	if removal == nil || enqueue != nil && enqueue.since.Before(removal.since) {
		return enqueue
	}
	return removal
}

// first is the command that waits longest, nil if none waits.
func (w *lane) first() *Command {
	for len(w.commands) > 0 && w.commands[0].state != waits {
		w.commands = w.commands[1:]
		w.given--
	}
	if len(w.commands) == 0 {
		return nil
	}
	return w.commands[0]
}

// behind reports whether an enqueue waits that has a name in common with c.
func (q *queue) behind(c *Command) bool {
	for _, name := range c.Names {
		if q.names[name] > 0 {
			return true
		}
	}
	return false
}

func (q *queue) add(c *Command) {
	l := q.lane(c)
	l.commands = append(l.commands, c)
	q.count(c, 1)
}

func (q *queue) count(c *Command, d int) {
	if !c.Enqueue {
		return
	}
	if q.names == nil {
		q.names = make(map[string]int)
	}
	for _, name := range c.Names {
		if q.names[name] += d; q.names[name] == 0 {
			delete(q.names, name)
		}
	}
}

// forget forgets a command that waits, and that its caller has given up. It stays in the slice until those that were
// given up are half of that: while etcd is away, thousands may come and give up.
func (q *queue) forget(c *Command) {
	c.state = givenUp
	q.count(c, -1)
	l := q.lane(c)
	if l.given++; l.given > len(l.commands)/2 {
		left := make([]*Command, 0, l.len())
		for _, o := range l.commands {
			if o.state == waits {
				left = append(left, o)
			}
		}
		l.commands, l.given = left, 0
	}
}

// take takes the commands of the next request, as many as it may have: removals, and then enqueues, each in the order in
// which they came. No key is used again before its removal is confirmed, so a removal may pass all that waits. In the request
// the removals are carried out first, so the enqueues' listings show the queues without them. The command that waits longest
// is always in it.
func (q *queue) take(l *limits) (b []*Command) {
	if q.len() == 0 {
		return nil
	}
	if first := q.first(); l.alone(first) {
		q.lane(first).shift(1, nil)
		b = []*Command{first}
	} else {
		b = q.removals.take(l, nil, l.most-min(1, q.enqueues.len()))
		b = q.enqueues.take(l, b, l.most)
	}
	for _, c := range b {
		q.count(c, -1)
	}
	return removalsFirst(b)
}

// take adds to b the commands of the lane that go with it in a request of at most most. An enqueue whose name has one in the
// request already is left behind, and so is each further enqueue of that name: they keep their order.
func (w *lane) take(l *limits, b []*Command, most int) []*Command {
	var enqueued map[string]struct{} // or left behind
	var left []*Command
	bytes, at, before := 0, 0, len(b)
	for ; at < len(w.commands) && len(b) < most && len(left) < maxPassed; at++ {
		c := w.commands[at]
		if c.state != waits {
			w.given--
			continue
		}
		stay := l.alone(c) || bytes+c.bytes() > maxBytes && len(b) > before
		if c.Enqueue {
			for _, name := range c.Names {
				if _, ok := enqueued[name]; ok {
					stay = true
				}
			}
			if enqueued == nil {
				enqueued = make(map[string]struct{})
			}
			for _, name := range c.Names {
				enqueued[name] = struct{}{}
			}
		}
		if stay {
			left = append(left, c)
			continue
		}
		bytes += c.bytes()
		b = append(b, c)
	}
	w.shift(at, left)
	return b
}

// shift takes the first n commands out of the lane, but for those that are left behind.
func (w *lane) shift(n int, left []*Command) {
	w.commands = w.commands[n:]
	if len(left) > 0 {
		w.commands = append(left, w.commands...)
	}
	if len(w.commands) == 0 {
		w.commands = nil // and with it what the burst took
	}
}

func removalsFirst(b []*Command) []*Command {
	sorted := make([]*Command, 0, len(b))
	for _, enqueue := range []bool{false, true} {
		for _, c := range b {
			if c.Enqueue == enqueue {
				sorted = append(sorted, c)
			}
		}
	}
	return sorted
}
