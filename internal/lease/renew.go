// How a lease is kept alive, and until when it can be vouched for.

package lease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// renewal is one attempt of Run to renew.
type renewal struct {
	sent   time.Time
	cancel context.CancelFunc
	from   time.Time // from which its answer counts
	err    error
}

// lookInterval is how often Run looks, without a request, whether the client is connected: waits for locks make no request
// that could fail, and clientv3 does not tell their watches of a lost connection. While the stream for the renewals lives,
// there is a connection, and Run does not look.
const lookInterval = 500 * time.Millisecond

// errNoAnswer says that a renewal takes so long that another one is sent beside it.
var errNoAnswer = errors.New("no answer to the renewal of the lease")

// relayTime is how long a proxy may take for an answer: `etcd grpc-proxy` asks etcd in a loop of half a second.
const relayTime = 600 * time.Millisecond

// Run renews the lease each third of the TTL, in the background, until Ctx ends. If an attempt has no reply after a
// sixth of the TTL, another attempt follows beside it, on another stream and so on another member. So a member that hangs
// costs no lease while others answer, and a slow reply still counts. An attempt is given up when a later attempt has its
// answer. While nothing is answered, the attempts follow faster and faster, 17 in a TTL. If replies take longer than a sixth
// of the TTL, there are 6 attempts in a TTL: see due.
//
// Behind a proxy an attempt is given relayTime at least, and the first answer ends all attempts. While one of their streams
// is open, the proxy renews the lease by itself, a third of the TTL after the last renewal, and a later attempt would wait
// for that renewal.
//
// The client's own KeepAlive does not serve: it counts the lease's end from the reply, looks at the end once a second, and
// stays with a member that hangs.
func (l *Lease) Run() {
	told := make(chan struct{})
	l.mu.Lock()
	l.told = told
	l.mu.Unlock()
	l.wg.Go(func() { l.run(told) })
	l.wg.Go(func() { l.stream.Prepare(l.Ctx) })
}

func (l *Lease) run(told chan<- struct{}) {
	var unrenewed error           // of the last attempt
	defer l.Client.CloseWatcher() // which may wait for a Watcher of the user's
	defer close(told)
	defer func() { l.ended(unrenewed) }()
	outage := l.Outages.Outage("")
	defer outage.Stop(false)
	stall := etcd.Stall{Client: l.Client}
	defer stall.Set(false)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	var asked time.Time // when the last attempt was sent, zero once this attempt has ended or any has succeeded since
	var tried time.Time // when the last attempt was sent
	var inFlight []renewal
	late, gap := 0, l.TTL/6
	l.mu.Lock()
	next := time.NewTimer(time.Until(l.sent.Add(l.TTL / 3)))
	l.mu.Unlock()
	defer next.Stop()
	for {
		select {
		case <-l.Ctx.Done():
			return
		case <-l.Client.Ctx().Done():
			l.End(l.Expired, "client closed")
			return
		case <-l.Broken:
			look.Reset(lookInterval)
		case <-look.C:
			connected := l.Client.Connected()
			if stall.Set(!connected); connected && l.Stream() != 0 {
				look.Stop()
			}
		case <-l.doubted:
			// The machine was suspended, and the lease may be gone. Or a clock was set, and one attempt suffices.
			if len(inFlight) == 0 && time.Since(tried) >= lookInterval {
				next.Reset(0)
			}
		case <-next.C:
			if since := time.Since(asked); !asked.IsZero() {
				l.renewed(since, errNoAnswer)
				unrenewed = cmp.Or(unrenewed, errNoAnswer)
				if late++; late > 1 { // one alone is a member that hangs while others answer
					outage.Start(l.Ctx, errNoAnswer)
				}
			}
			sent := time.Now()
			asked, tried = sent, sent
			ctx, cancel := context.WithDeadline(l.Ctx, l.Deadline())
			r := renewal{sent: sent, cancel: cancel}
			inFlight = append(inFlight, r)
			l.wg.Go(func() { // ends at the deadline at the latest
				defer cancel()
				var took time.Duration
				took, r.from, r.err = l.sendRenewal(ctx)
				if !etcd.IsCtxError(r.err) {
					l.renewed(took, r.err)
				}
				l.renewals <- r
			})
			next.Reset(l.patience(gap))
			gap = max(gap/2, l.TTL/48)
		case r := <-l.renewals:
			inFlight = slices.DeleteFunc(inFlight, func(o renewal) bool {
				if r.err == nil && (o.sent.Before(r.sent) || l.Relayed()) {
					o.cancel() // and with it the stream, of a member that hangs
				}
				return o.sent.Equal(r.sent)
			})
			if errors.Is(r.err, etcd.ErrOpening) {
				continue // it was not sent, and the one before it goes on
			}
			if r.err == nil || r.sent.Equal(asked) {
				asked = time.Time{}
			}
			switch {
			case r.err == nil:
				unrenewed = nil
				outage.Stop(true)
				late, gap = 0, l.TTL/6
				next.Reset(max(0, time.Until(l.due(r, inFlight))))
			case l.Ctx.Err() != nil, etcd.IsCtxError(r.err):
				// The lease is not used any more, or this attempt never had an answer, and others were sent since.
			default:
				unrenewed = r.err
				if !errors.Is(r.err, errRefused) { // etcd answers, and its answer says what to do
					outage.Start(l.Ctx, r.err)
				}
				next.Reset(min(gap, etcd.RetryMax))
			}
		}
	}
}

// patience is how long an attempt may take before another one follows beside it: wanted, and behind a proxy at least
// relayTime. An attempt that has failed needs no patience.
func (l *Lease) patience(wanted time.Duration) time.Duration {
	if l.Relayed() {
		return max(wanted, relayTime)
	}
	return wanted
}

// due is when the next renewal is sent after the answer to r. If a later attempt is on its way, etcd is slow, and the later
// attempt counts as the next renewal: another one is sent only once this one is late too. Otherwise each reply of a slow
// etcd would cause one attempt more.
func (l *Lease) due(r renewal, inFlight []renewal) time.Time {
	due := r.from.Add(l.TTL / 3)
	for _, o := range inFlight {
		if beside := o.sent.Add(l.patience(l.TTL / 6)); !l.Relayed() && o.sent.After(r.sent) && beside.After(due) {
			due = beside
		}
	}
	return due
}

// renewed tells of an attempt to renew, unless the attempt was not sent, or the use of the lease has ended before or by it.
func (l *Lease) renewed(took time.Duration, err error) {
	if l.Renewed != nil && l.Ctx.Err() == nil && !errors.Is(err, etcd.ErrOpening) {
		l.Renewed(took, err)
	}
}

func (l *Lease) ended(unrenewed error) {
	l.mu.Lock()
	reason := l.endReason
	l.mu.Unlock()
	if l.Ended != nil {
		l.Ended(reason, unrenewed)
	}
}

// Refresh renews the lease now, until etcd has confirmed that or ctx or l.Ctx ends.
func (l *Lease) Refresh(ctx context.Context) error {
	_, err := l.refresh(ctx)
	return err
}

// refresh is Refresh. refused says that etcd has refused an attempt for want of rights.
func (l *Lease) refresh(ctx context.Context) (refused bool, err error) {
	err = l.renewUntil(ctx, func(ctx context.Context) error {
		took, _, err := l.sendRenewal(ctx)
		l.renewed(took, err)
		refused = refused || errors.Is(err, errRefused)
		return err
	})
	return refused, err
}

// renewUntil calls renew until it succeeds, or ctx or l.Ctx ends.
func (l *Lease) renewUntil(ctx context.Context, renew func(ctx context.Context) error) error {
	_, _, err := etcd.Do(ctx, l.Client, etcd.Policy{Life: l.Ctx}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, renew(ctx)
	})
	return l.Translate(err)
}

// sendRenewal asks etcd once to renew the lease, and ends its use if the lease is gone. The new deadline is counted from the
// time from.
func (l *Lease) sendRenewal(ctx context.Context) (took time.Duration, from time.Time, err error) {
	sent := time.Now()
	l.mu.Lock()
	from = l.attempts.send(sent)
	l.mu.Unlock()
	ttl, err := l.KeepAlive(ctx)
	took = time.Since(sent)
	err = l.explained(ctx, err)
	l.refused(err)
	l.mu.Lock()
	switch {
	case err == nil:
		l.attempts.answered(sent)
	case errors.Is(err, etcd.ErrNotSent), errors.Is(err, etcd.ErrOpening):
		l.attempts.notSent(sent)
	}
	l.mu.Unlock()
	if !l.Shared() {
		from = sent
	}
	switch {
	case err == nil && ttl <= 0, errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.NotFound()
		err = l.Expired
	case err == nil:
		l.Record(from, ttl)
		if l.checks != nil {
			l.checks.renewed()
		}
	}
	return took, from, err
}

// Record moves the deadline on after etcd has granted or renewed the lease for that many seconds.
//
// Invariant (I4): the deadline is counted from a time before the answered request was sent: see also attempts. Etcd counts
// from a moment between the sending and the reply, so etcd's lease outlives the deadline however long the reply took.
func (l *Lease) Record(sent time.Time, seconds int64) {
	deadline := trustedUntil(sent, seconds)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent.IsZero() {
		l.TTL = time.Duration(seconds) * time.Second
	}
	if deadline.After(l.deadline) {
		l.deadline, l.sent = deadline, sent
	}
	if l.expiry == nil {
		l.expiry = time.AfterFunc(time.Until(deadline), l.expire)
	}
}

// trustedUntil is the time up to which a lease can be vouched for, if etcd has granted or renewed it for that many seconds by
// a request that was sent at sent.
//
// The margin is a tenth of the TTL, however long, since clocks drift apart in proportion to the time. A clock that ntpd slews
// is 500 ppm wrong: two such clocks differ by 0.06 s in a TTL of 60 s. A clock that chronyd slews at its limit (maxslewrate,
// 83,333 ppm) is 5 s wrong in that TTL, less than the margin of 6 s. Two clocks that are slewed apart at the limit are not
// covered.
func trustedUntil(sent time.Time, seconds int64) time.Time {
	ttl := time.Duration(seconds) * time.Second
	return sent.Add(ttl - ttl/10)
}

// expire ends the use of the lease at its deadline, or waits for it again if renewals have moved it on.
func (l *Lease) expire() {
	l.mu.Lock()
	left := time.Until(l.deadline)
	if left > 0 { // also after the end of Ctx: the timer fires once more, and does nothing
		l.expiry.Reset(left)
	}
	l.mu.Unlock()
	if left <= 0 {
		l.End(l.Expired, "deadline passed")
	}
}
