// When a request may go, and how much it may carry: what the session has learnt.

package sender

import (
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

const (
	// minSeats is how many requests may be on their way however near etcd is. With one or two, goroutines that do not run
	// in step lose a fifth of their rate.
	minSeats = 3
	// maxSeats is how many requests may be on their way in any case. More would not be answered sooner, and everybody else's
	// would wait behind them: 10,000 goroutines that lock one name would send 10,000.
	maxSeats = 256
	// perSeat is how much latency makes for one request more: a client 10 ms away has twenty on their way.
	perSeat = 500 * time.Microsecond
	// far is from which latency on a command waits for a part of it at most, by a timer. (Of a process that is idle the
	// timers may be a millisecond late, so nearer to etcd a timer would be later than the next reply.)
	far          = 2 * time.Millisecond
	patienceFar  = 200 * time.Microsecond
	patienceNear = 5 * time.Millisecond // while all requests on their way meet a member that hangs
	// maxLatency bounds what one slow answer says of the next ones.
	maxLatency = 100 * time.Millisecond
)

// pace is how far away etcd is, and how busy.
type pace struct {
	latency time.Duration // how long an answer takes if nothing else is on its way
	answer  time.Duration // how long answers take lately
}

// took takes note of an answer that took d, when that many commands were on their way. Etcd is no farther away than d. That it
// is farther than was believed shows only if the other commands can't be why the answer took so long. Else a busy etcd would
// be sent more requests, and be busier.
func (p *pace) took(d time.Duration, commands int) {
	d = min(d, maxLatency)
	p.answer += (d - p.answer) / 4
	each := d / time.Duration(commands)
	switch {
	case p.latency == 0:
		p.latency = each
	case p.latency > d:
		p.latency -= (p.latency - d) / 2
	case p.latency < each:
		p.latency += (each - p.latency) / 8
	}
}

// seats is how many requests may be on their way together, each of at most most commands. If answers take more than minSeats
// times as long as the distance to etcd explains, etcd is busy, and gets fewer requests.
func (p *pace) seats(most int) int {
	byDistance := int(p.latency / perSeat * p.latency / max(p.latency, p.answer/minSeats, 1))
	return max(minSeats, byDistance) * maxCommands / most
}

// patience is how long a command waits for a seat: then it is sent in any case, with all that waits. If etcd is far away, that
// is soon. If etcd is busy, a command waits longer than an answer takes, since one request more would make etcd busier.
func (p *pace) patience() time.Duration {
	if p.latency > far && p.answer < minSeats*p.latency {
		return patienceFar
	}
	return max(patienceNear, 2*p.answer)
}

// refusedFor is how long a name stays by itself after etcd has refused a command of that name that went by itself: each
// request with it is refused with it, and taken apart.
const refusedFor = 10 * time.Second

// limits is what etcd has refused before.
type limits struct {
	most    int // commands in a request
	refused Recent
	alarm   bool // etcd has refused an enqueue that went by itself, for all names, and has taken none since
}

// alone reports whether a command shares its request with no other. While etcd is full, no enqueue does: etcd 3.6 carries
// out a put in a nested transaction all the same, so locks would be granted and refused by turns.
func (l *limits) alone(c *Command) bool {
	return l.most == 1 || c.ops() > maxOps || l.alarm && c.Enqueue || l.refused.Has(c.Names)
}

// answeredAlone takes note of err, the error of a command that went by itself, nil if there is none. What etcd says of all
// commands says nothing of its names: that etcd is full, or that the lease is gone.
func (l *limits) answeredAlone(c *Command, err error) {
	if c.Enqueue && (err == nil || etcd.Alarm(err)) {
		l.alarm = err != nil
	}
	if err != nil && etcd.Refused(err) && !etcd.Alarm(err) && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.refused.Add(c.Names, refusedFor)
	}
}

// tooMany takes note that etcd, or a limit of the client, has refused n commands in one request for their number.
func (l *limits) tooMany(n int) { l.most = max(1, min(l.most, n/2)) }

// tooLarge reports whether a request was refused for its size.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) || etcd.RequestTooLarge(err) || etcd.ReplyTooLarge(err)
}
