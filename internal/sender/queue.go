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

// A queue holds the commands that wait, in the order in which they came.
type queue struct {
	commands []*Command // and some that were given up
	given    int        // how many of those
	names    map[string]int
}

func (q *queue) len() int { return len(q.commands) - q.given }

// first is the command that waits longest. There must be one.
func (q *queue) first() *Command {
	for q.commands[0].state != waits {
		q.commands = q.commands[1:]
		q.given--
	}
	return q.commands[0]
}

// enqueues reports whether an enqueue waits that has a name in common with c.
func (q *queue) enqueues(c *Command) bool {
	for _, name := range c.Names {
		if q.names[name] > 0 {
			return true
		}
	}
	return false
}

func (q *queue) add(c *Command) {
	q.commands = append(q.commands, c)
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
	if q.given++; q.given > len(q.commands)/2 {
		left := make([]*Command, 0, q.len())
		for _, o := range q.commands {
			if o.state == waits {
				left = append(left, o)
			}
		}
		q.commands, q.given = left, 0
	}
}

// take takes the commands of the next request: those that came first, as many as it may have. An enqueue whose name has
// one in the request already is left behind, and so is each further enqueue of that name: they keep their order.
// Removals pass them, since no key is used again before its removal is confirmed. They go before the enqueues in the
// request, whose listings show the queues without them then.
func (q *queue) take(l *limits) (b []*Command) {
	var enqueued map[string]struct{} // or left behind
	var left []*Command
	bytes, at := 0, 0
	for ; at < len(q.commands) && len(b) < l.most && len(left) < maxPassed; at++ {
		c := q.commands[at]
		if c.state != waits {
			q.given--
			continue
		}
		alone := l.alone(c)
		if alone && len(b) == 0 && len(left) == 0 {
			b, at = append(b, c), at+1
			break
		}
		stay := alone || bytes+c.bytes() > maxBytes && len(b) > 0
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
	q.commands = q.commands[at:]
	if len(left) > 0 {
		q.commands = append(left, q.commands...)
	}
	if len(q.commands) == 0 {
		q.commands = nil // and with it what the burst took
	}
	for _, c := range b {
		q.count(c, -1)
	}
	return removalsFirst(b)
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
