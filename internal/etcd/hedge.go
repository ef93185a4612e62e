// A request that is slow is sent again beside itself, to another member.

package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A member that hangs with its connections open costs each request that meets it the whole of
// its time limit: the client's balancer goes round, whether a member answers or not. So a
// request that takes long is sent again beside the first, to whichever member is next.

// maxHedges is how many further calls one attempt makes: where many use the client, the next
// call may meet the same member.
const maxHedges = 2

// race makes a call of r.op. While no call has an answer, race makes another one each time that late has passed, up to more of
// them. With the first answer, or at limit, race ends all calls. several says that there was more than one call.
//
// With did, an answer ends the other calls only if did says that the request has changed something. Only the call that etcd
// carried out first can have such an answer. After the answer that there was nothing to change, race makes no further call and
// waits for the answers to the others; several says then that a call has no answer.
//
// Until the second call is due, it costs no timer, goroutine, ctx or memory: see lane. (A ctx with a time limit would also
// have gRPC send that along, and etcd start a timer of its own for each request: 6 to 9 us of 300.)
func (r *racers[T]) race() (v T, several bool, err error) {
	due := r.limit
	if r.more > 0 && r.late < r.limit {
		due, r.more = r.late, min(r.more, int((r.limit-1)/r.late))
	} else {
		r.more = 0
	}
	r.returned.Add(1) // for overdue
	r.client.lanes.fly(r.lane, due, r)
	v, err = r.ask()
	if r.client.lanes.land(r.lane) {
		*r = racers[T]{} // what is used again keeps no request alive
		return v, false, err
	}
	r.lane.kept = false // a timer may end it later
	r.note(v, err)
	r.returned.Wait()
	if r.several {
		r.ends.Stop()
	}
	return r.v, r.several && (r.did == nil || r.unanswered), r.err
}

// racers are the calls of one race.
type racers[T any] struct {
	client *Client
	lane   *lane
	ctx    context.Context // on the lane
	timed  bool            // the client learns how long answers take: not from a call that waits for a connection
	late   time.Duration
	limit  time.Duration
	op     Request[T]
	did    func(T) bool

	returned sync.WaitGroup // of the calls but the first, and of the timer of the next
	heard    atomic.Bool    // one of them has answered
	more     int            // calls to make. Only the goroutine of the newest call touches more, several and ends.
	several  bool
	ends     *time.Timer

	mu         sync.Mutex
	best       answer
	unanswered bool // one of them has not answered
	v          T
	err        error
}

// racersOn are the racers of the lane's last request, to be used again, if its reply was of the same type.
func racersOn[T any](l *lane) *racers[T] {
	if r, ok := l.late.(*racers[T]); ok {
		return r
	}
	return &racers[T]{}
}

// An answer is how much a call says.
type answer int

const (
	none    answer = iota
	failed         // it may have been carried out
	nothing        // it has changed nothing: another call may have been first
	all            // no other call's answer matters
)

// overdue is told that the first call has no answer yet.
func (r *racers[T]) overdue() {
	if r.more == 0 {
		r.lane.cancel()
		r.returned.Done()
		return
	}
	go r.again() // ends with the lane
}

// again makes one call more, unless there is an answer, and after a while the next one.
func (r *racers[T]) again() {
	defer r.returned.Done()
	if r.heard.Load() {
		return
	}
	if !r.several {
		r.several, r.ends = true, time.AfterFunc(r.limit-r.late, r.lane.cancel)
	}
	var next *time.Timer
	if r.more--; r.more > 0 {
		r.returned.Add(1)
		next = time.AfterFunc(r.late, r.again)
	}
	v, err := r.ask()
	if next != nil && next.Stop() {
		r.returned.Done()
	}
	r.note(v, err)
}

// ask makes a call.
func (r *racers[T]) ask() (T, error) {
	start := time.Now()
	v, err := r.op.Call(r.ctx, r.client)
	if err == nil && r.timed {
		r.client.pace.took(time.Since(start))
	}
	return v, err
}

// note takes note of the reply to a call.
func (r *racers[T]) note(v T, err error) {
	says := failed
	switch {
	case !answered(err):
	case err == nil && r.did != nil && !r.did(v):
		says = nothing
	default:
		says = all
	}
	if says > failed {
		r.heard.Store(true)
	}
	if says == all {
		r.lane.cancel()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unanswered = r.unanswered || says == failed
	if says > r.best || says == failed && r.best == failed && IsCtxError(r.err) ||
		says == all && r.err != nil && err == nil { // another call was refused
		r.best, r.v, r.err = says, v, err
	}
}

// pace is how long answers took lately, in nanoseconds: the mean of a few.
type pace struct{ atomic.Int64 }

func (p *pace) took(d time.Duration) {
	if mean := p.Load(); mean != never {
		p.Store(mean + (int64(d)-mean)/4)
	}
}

// never is the pace of a client that sends nothing again, however fast etcd answers.
const never = 1 << 60

// late is when to send a request again. It is later where etcd is far away.
func (p *pace) late() time.Duration { return max(HedgeMin, hedgeTimes*time.Duration(p.Load())) }

// Late is after what time the client sends a request again.
func (c *Client) Late() time.Duration { return c.pace.late() }

// NeverHedge makes the client send no request beside a slow one, for tests that count requests on a
// machine that may stall.
func (c *Client) NeverHedge() { c.pace.Store(never) }
