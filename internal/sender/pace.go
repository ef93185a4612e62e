// When a request may go: what the session has learnt from answers.

package sender

import "time"

const (
	// minSeats is how many requests may be on their way however near etcd is. With one or two, goroutines that do not run
	// in step lose a fifth of their rate.
	minSeats = 3
	// maxSeats is the most requests that may be on their way. More would not be answered sooner, and other clients' requests
	// would wait behind them: 10,000 goroutines that lock one name would send 10,000.
	maxSeats = 256
	// perSeat is how much latency makes for one request more: a client 10 ms away has twenty on their way.
	perSeat = 500 * time.Microsecond
	// If the latency is more than far, a command waits for a fraction of it only, by a timer. (The timers of an idle process
	// may be a millisecond late, so nearer to etcd a timer would be later than the next reply.)
	far          = 2 * time.Millisecond
	patienceFar  = 200 * time.Microsecond
	patienceNear = 5 * time.Millisecond // while all requests on their way meet a member that hangs
	// maxLatency bounds what one slow answer says of the next ones.
	maxLatency = 100 * time.Millisecond
	// window is for how long all answers, and at least leastAnswers of them, must say that etcd is farther away than before,
	// until the session believes it.
	window       = 10 * time.Second
	leastAnswers = 8
	// perCommand is how many of the session's commands on their way explain that an answer takes twice as long as by the
	// distance alone. (Measured: 27 where requests have 64 commands.)
	perCommand = 16
)

// pace is how far away etcd is, and how busy.
type pace struct {
	latency  time.Duration // how long an answer takes if nothing else is on its way
	answer   time.Duration // how long answers take lately
	commands float64       // how many of the session's commands were on their way meanwhile

	// The shortest answer since a window began, for each command that was on its way, and how many answers there were.
	least   time.Duration
	answers int
	began   time.Time
}

// took takes note of an answer that came now, to a request that was sent at start, while that many commands were on their way.
// Etcd is no farther away than the answer says. Etcd is farther away than the session believed only if every answer of a window
// says so, after the commands on their way are allowed for. Otherwise a busy etcd would seem far, get more requests, and be busier.
func (p *pace) took(start, now time.Time, commands int) {
	d := min(now.Sub(start), maxLatency)
	each := d / time.Duration(commands)
	if p.began.IsZero() {
		*p = pace{latency: each, answer: d, commands: float64(commands), began: now}
	}
	p.answer += (d - p.answer) / 4
	p.commands += (float64(commands) - p.commands) / 4
	p.latency -= max(0, p.latency-d) / 2
	if p.answers == 0 || each < p.least {
		p.least = each
	}
	if p.answers++; p.answers >= leastAnswers && now.Sub(p.began) >= window {
		p.latency = max(p.latency, p.least)
		p.answers, p.began = 0, now
	}
}

// seats is how many requests may be on their way together, each of at most most commands. If answers take more than minSeats
// times as long as the distance to etcd explains, etcd is busy, and gets fewer requests. If others keep etcd busy, a session near
// it gets one seat: a second request would not be answered sooner, and both would be half as large.
func (p *pace) seats(most int) int {
	fastest := p.latency / perSeat * p.latency // the seats by the distance, times the time of an answer
	seats := max(minSeats, int(fastest/max(p.latency, p.answer/minSeats, 1)))
	if p.othersKeepItBusy() {
		seats = max(1, int(fastest/p.answer))
	}
	return seats * maxCommands / most
}

// othersKeepItBusy reports whether neither the distance nor the session's own commands explain how long answers take. For a
// session with few commands it returns false: they would find no company.
func (p *pace) othersKeepItBusy() bool {
	own := 1 + p.commands/perCommand
	return p.commands > minSeats && float64(p.answer) > own*float64(max(2*p.latency, far))
}

// patience is how long a command waits for a seat. Then it is sent in any case, with all that waits. If etcd is far away, the
// patience is short. If etcd is busy, a command waits longer than an answer takes, since one request more would make etcd busier.
func (p *pace) patience() time.Duration {
	if p.latency > far && p.answer < minSeats*p.latency {
		return patienceFar
	}
	return max(patienceNear, 2*p.answer)
}
