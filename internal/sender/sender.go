// Package sender sends what a session writes of its own keys, in as few requests as possible without delaying any. It
// knows nothing of queues, waits and holds.
//
// A command that comes while few requests are on their way is sent at once, by itself. What comes meanwhile waits for
// company: the next request carries all that waits, each command as a txn of its own in it, with its own comparisons.
// Etcd evaluates all comparisons against the state before the request, and then carries the operations out one after the
// other, with nothing in between: a read sees the operations before it.
//
// At most maxSeats requests are on their way: what etcd would only queue waits here, where it is in nobody else's way.
//
// A removal may be offered first: then the next request of its name takes it along, whoever sends that. So a lock that is
// released and taken again costs one commit, and so do the releases of many holders of one name.
package sender

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A Sender sends the commands of one session. It is safe for concurrent use.
type Sender struct {
	etcd       *etcd.Client
	background func(f func(ctx context.Context)) bool

	mu      sync.Mutex // only background is called while it is held
	queue   queue
	offers  lines          // the removals that wait for a request of their name, by its first name, until a request takes them along or they queue
	flying  map[string]int // commands of each name that are on their way
	freed   bool           // removals wait that only waited for a reply, which is here: send without yielding
	aboard  int            // commands that are on their way
	seats   int            // requests that are on their way, or about to be
	pace    pace
	limits  limits
	timer   *time.Timer // sends what has waited long
	ticking bool

	requests, packed int // how many were sent, and how many of them had more than one command
}

// New makes the Sender of a session. background runs a function in the background until the lease is gone, or returns
// false: then the session is at its end, and so are all ctxs of those that wait.
func New(client *etcd.Client, background func(f func(ctx context.Context)) bool) *Sender {
	return &Sender{
		etcd: client, background: background, flying: make(map[string]int), offers: make(lines),
		queue: queue{names: make(lines)}, limits: limits{most: maxCommands},
	}
}

// Sent is how many requests were sent, and how many of them carried more than one command.
func (s *Sender) Sent() (requests, packed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests, s.packed
}

// Do sends a command, and blocks until etcd has carried it out or refused it, or ctx, life (if there is one) or the
// client ends. ambiguous says that an attempt other than the answered one may have been carried out, or may
// yet be. When ctx or life ends, the request goes on if others have a part in it; no attempt that begins later has the
// command. A command that shares its request has none of the values of its ctx there.
func (s *Sender) Do(ctx, life context.Context, c *Command) (r Reply, ambiguous bool, err error) {
	s.mu.Lock()
	s.comeLocked(c, waits)
	return s.doLocked(ctx, life, c)
}

// doLocked is Do, and releases the mutex.
func (s *Sender) doLocked(ctx, life context.Context, c *Command) (r Reply, ambiguous bool, err error) {
	if life == nil {
		life = context.Background()
	}
	if c.enqueues() && s.queue.behind(c) && s.seats < maxSeats {
		// An enqueue of the same name waits, and c can't be in its request. So that request goes now, and c follows it.
		s.startLocked(s.takeLocked())
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	if s.mustWaitLocked(c) {
		s.queueLocked(c)
		return s.awaitLocked(ctx, life, c)
	}
	s.seats++
	along := s.alongLocked(nil, c, 1)
	if len(along) == 0 {
		s.beginLocked(c)
		aboard := s.aboard
		s.mu.Unlock()
		return s.alone(ctx, life, c, aboard)
	}
	b := append(along, c)
	s.beginLocked(b...)
	s.mu.Unlock()
	s.fly(ctx, life, b, c)
	s.mu.Lock()
	s.landLocked()
	if !c.told { // it waits again
		return s.awaitLocked(ctx, life, c)
	}
	defer s.mu.Unlock()
	return c.reply, c.ambiguous, c.err
}

// mustWaitLocked reports whether a command waits for a request to go with. It does not if its name has a request
// under way: the next request of that name would only wait for it.
func (s *Sender) mustWaitLocked(c *Command) bool {
	switch {
	case s.seats >= maxSeats:
		return true
	case c.enqueues() && s.queue.behind(c):
		return true // behind it, in its order
	}
	return !s.hastyLocked(c) && (s.queue.len() > 0 || s.seats >= s.pace.seats(s.limits.most))
}

// hastyLocked reports whether a command gains nothing by waiting for company: it would have none.
func (s *Sender) hastyLocked(c *Command) bool {
	return s.limits.alone(c) || !c.Crowd && slices.ContainsFunc(c.Names, func(name string) bool { return s.flying[name] > 0 })
}
