// Package sender sends what a session writes of its own keys, in as few requests as possible without delaying any. It
// knows nothing of queues, waits and holds.
//
// A command that comes while few requests are on their way is sent at once, by itself. What comes meanwhile waits for
// company: the next request carries all that waits, each command as a txn of its own in it, with its own comparisons.
// Etcd evaluates all comparisons against the state before the request, and then carries the operations out one after the
// other, with nothing in between: a read sees the operations before it.
package sender

import (
	"context"
	"runtime"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A Command is a txn that writes keys of the session. It is safe to repeat, and to run beside itself: what a repetition
// finds done it leaves alone.
type Command struct {
	// Names are the queues that the command writes to.
	Names []string
	// Enqueue: the command puts an entry into the queues of its names. Two in one request would have one
	// revision, so a request has one of each name. Enqueues of a name leave in the order in which they came; of two that are
	// under way together etcd decides.
	Enqueue    bool
	Cmps       []clientv3.Cmp
	Then, Else []clientv3.Op
	// Did says of a reply that the command has changed something, for a removal: only the first attempt that etcd carries
	// out can do that. It is nil for an enqueue.
	Did func(Reply) bool
}

// A member is a command that shares its request with others, or waits for them. The Sender's mutex guards it.
type member struct {
	*Command
	state     state
	since     time.Time
	flight    *flight // nil before it is sent
	calls     int     // that had the command in them
	changed   bool    // Did is true of reply
	reply     Reply
	ambiguous bool
	err       error
	done      chan struct{} // closed when reply, ambiguous and err are there
}

// state says how far a member is.
type state uint8

const (
	waits   state = iota // for a request to go with
	sent                 // in a request that is on its way
	over                 // answered or refused
	givenUp              // by its caller: no request that begins now has it
)

// A Reply is what etcd has answered to a command.
type Reply struct {
	At        int64 // the revision at which it was carried out, together with all else in the request
	Succeeded bool
	Responses []*pb.ResponseOp
}

// A Sender sends the commands of one session. It is safe for concurrent use.
type Sender struct {
	etcd       *etcd.Client
	background func(f func(ctx context.Context)) bool

	mu      sync.Mutex // only background is called while it is held
	queue   queue
	flying  map[string]int // commands of each name that are on their way
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
	return &Sender{etcd: client, background: background, flying: make(map[string]int), limits: limits{most: maxCommands}}
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
	if life == nil {
		life = context.Background()
	}
	s.mu.Lock()
	if c.Enqueue && s.queue.enqueues(c) {
		// The enqueue of its name that waits would keep c out of its request. So that goes now, and c follows it.
		s.startLocked(s.takeLocked())
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	if !s.mustWaitLocked(c) {
		s.departLocked(c)
		s.seats++
		s.requests++
		s.mu.Unlock()
		return s.alone(ctx, life, c)
	}
	m := &member{Command: c, since: time.Now(), done: make(chan struct{})}
	s.queue.add(m)
	s.tickLocked()
	s.mu.Unlock()
	select {
	case <-m.done:
	case <-ctx.Done():
	case <-life.Done():
	case <-s.etcd.Ctx().Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.state == over && (m.err == nil || etcd.Refused(m.err)):
		return m.reply, m.ambiguous, m.err
	case m.state == waits:
		s.queue.forget(m)
		return Reply{}, false, s.ended(ctx, life, nil)
	}
	s.giveUpLocked(m)
	return Reply{}, true, s.ended(ctx, life, m.err)
}

// giveUpLocked gives up a command that is on its way, and the request if nobody else waits for that.
func (s *Sender) giveUpLocked(m *member) {
	m.state = givenUp
	if f := m.flight; f != nil {
		if f.wanted--; f.wanted == 0 {
			f.cancel()
		}
	}
}

// ended is why a command has no answer.
func (s *Sender) ended(ctx, life context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return s.etcd.CtxError(ctx, nil)
	case life.Err() != nil:
		return context.Cause(life)
	case s.etcd.Ctx().Err() != nil:
		return etcd.ErrClientClosed
	}
	return err
}

// mustWaitLocked reports whether a command waits for a request to go with. It does not if its name has a request
// under way: the next request of that name would only wait for it.
func (s *Sender) mustWaitLocked(c *Command) bool {
	switch {
	case c.Enqueue && s.queue.enqueues(c):
		return true // behind it, in its order
	case s.limits.alone(c):
		return false
	}
	for _, name := range c.Names {
		if s.flying[name] > 0 {
			return false
		}
	}
	return s.queue.len() > 0 || s.seats >= s.pace.seats(s.limits.most)
}

// takeLocked takes the commands of the next request, none if none waits. The caller sends it.
func (s *Sender) takeLocked() []*member {
	b := s.queue.take(&s.limits)
	if len(b) > 0 {
		s.seats++
		s.beginLocked(b...)
	}
	return b
}

// beginLocked takes note that a request is on its way.
func (s *Sender) beginLocked(b ...*member) {
	for _, m := range b {
		m.state = sent
		s.departLocked(m.Command)
	}
	s.requests++
	if len(b) > 1 {
		s.packed++
	}
}

// departLocked takes note that a command is on its way, and arriveLocked that it is no more.
func (s *Sender) departLocked(c *Command) {
	for _, name := range c.Names {
		s.flying[name]++
	}
}

func (s *Sender) arriveLocked(c *Command) {
	for _, name := range c.Names {
		if s.flying[name]--; s.flying[name] == 0 {
			delete(s.flying, name)
		}
	}
}

// landed takes note that the request of a command that went by itself is over, and sends what waits.
func (s *Sender) landed(c *Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arriveLocked(c)
	if s.queue.len() == 0 {
		s.seats--
		return
	}
	s.startLocked(nil) // on its seat
}

// startLocked sends a request, and after it what waits. Its seat is taken.
func (s *Sender) startLocked(b []*member) {
	if !s.background(func(ctx context.Context) { s.run(ctx, b) }) {
		for _, m := range b { // the session is at its end, and so are the ctxs of those that wait
			s.arriveLocked(m.Command)
		}
		s.seats--
	}
}

// run sends a request, if there is one, and what waits after it, one request after the other, until nothing waits or
// others have all the seats.
func (s *Sender) run(ctx context.Context, b []*member) {
	for {
		if len(b) > 0 {
			s.fly(ctx, b)
		}
		// First those run that the reply has woken: what they send goes along. Without this half of them miss the request,
		// with 4 to 16 goroutines.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		s.seats--
		b = nil
		if s.queue.len() > 0 && s.seats < s.pace.seats(s.limits.most) {
			b = s.takeLocked()
		}
		s.mu.Unlock()
		if len(b) == 0 {
			return
		}
	}
}

// tickLocked sees to it that nothing waits long: see pace.
func (s *Sender) tickLocked() {
	switch {
	case s.ticking:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(s.pace.patience(), s.tick)
	default:
		s.timer.Reset(s.pace.patience())
	}
	s.ticking = true
}

func (s *Sender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticking = false
	for s.queue.len() > 0 && time.Since(s.queue.first().since) >= s.pace.patience() {
		s.startLocked(s.takeLocked())
	}
	if s.queue.len() > 0 {
		s.tickLocked()
	}
}
