// How a session keeps its lease alive, and knows until when it can be vouched for.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// renewal is the outcome of one attempt to renew.
type renewal struct {
	sent time.Time
	err  error
}

// lookInterval is how often a session looks, without a request, whether its client is connected: waits
// make no request that could fail, and clientv3 keeps it from their watches.
const lookInterval = 500 * time.Millisecond

// errNoAnswer: a renewal takes so long that another one is sent beside it.
var errNoAnswer = errors.New("no answer to the renewal of the lease")

// run renews the lease each third of the TTL until the session ends. Every attempt has a stream of
// its own, which the client's balancer gives to the next member. If it has no reply after a sixth
// of the TTL, another attempt follows beside it: a member that hangs costs no lease while others
// answer, and a slow reply is not given up for that.
//
// The client's own KeepAlive does not serve: it counts the lease's end from the reply and looks at
// it once a second, and stays with a member that hangs.
func (s *Session) run() {
	defer s.wg.Done()
	var unrenewed error // of the last attempt
	defer func() { s.notifyEnded(unrenewed) }()
	defer s.etcd.CloseWatcher()
	outage := outage{e: &entry{s: s}}
	defer outage.stop(false)
	stall := etcd.Stall{Client: s.etcd}
	defer stall.Set(false)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	var asked time.Time // when the last attempt was sent, zero when that or a later answer is there
	late, gap := 0, s.ttl/6
	s.mu.Lock()
	next := time.NewTimer(time.Until(s.sent.Add(s.ttl / 3)))
	s.mu.Unlock()
	defer next.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.etcd.Ctx().Done():
			s.terminate(ErrSessionExpired, "client closed")
			return
		case <-look.C:
			stall.Set(!s.etcd.Connected())
		case <-next.C:
			if since := time.Since(asked); !asked.IsZero() {
				s.wg.Go(func() { s.notifyRenewed(RenewedInfo{s, since, errNoAnswer}) }) // which may take its time
				unrenewed = cmp.Or(unrenewed, errNoAnswer)
				if late++; late > 1 { // one alone is a member that hangs while others answer
					outage.start(s.ctx, errNoAnswer)
				}
			}
			sent := time.Now()
			asked = sent
			ctx, cancel := context.WithDeadline(s.ctx, s.Deadline())
			s.wg.Go(func() { // ends at the deadline at the latest
				defer cancel()
				info := s.sendRenewal(ctx)
				if !etcd.IsCtxError(info.Err) {
					s.notifyRenewed(info)
				}
				s.renewals <- renewal{sent, info.Err}
			})
			next.Reset(gap)
			gap = max(gap/2, s.ttl/48)
		case r := <-s.renewals:
			if r.err == nil || r.sent.Equal(asked) {
				asked = time.Time{}
			}
			switch {
			case r.err == nil:
				unrenewed = nil
				outage.stop(true)
				late, gap = 0, s.ttl/6
				next.Reset(max(0, time.Until(r.sent.Add(s.ttl/3))))
			case s.ctx.Err() != nil, etcd.IsCtxError(r.err):
				// The session has ended, or this attempt never had an answer, and others were sent since.
			default:
				unrenewed = r.err
				outage.start(s.ctx, r.err)
				next.Reset(min(gap, etcd.RetryMax))
			}
		}
	}
}

// renew asks etcd once to renew the lease, and ends the session if the lease is gone.
func (s *Session) renew(ctx context.Context) error {
	info := s.sendRenewal(ctx)
	s.notifyRenewed(info)
	return info.Err
}

// sendRenewal is renew without the hooks.
func (s *Session) sendRenewal(ctx context.Context) RenewedInfo {
	sent := time.Now()
	ttl, err := s.keepAlive(ctx)
	info := RenewedInfo{s, time.Since(sent), err}
	switch {
	case err == nil && ttl <= 0, errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.leaseNotFound()
		info.Err = ErrSessionExpired
	case err == nil:
		s.record(sent, ttl)
	}
	return info
}

// leaseNotFound is called when etcd has answered that the lease is gone.
func (s *Session) leaseNotFound() {
	s.terminate(ErrSessionExpired, "lease not found")
	s.endLease()
}

// record moves the deadline on after etcd has granted that many seconds.
//
// Invariant (I4): the deadline is counted from before the request was sent. Etcd counts from a
// moment between that and the reply, so its lease outlives the deadline however long the reply
// took.
func (s *Session) record(sent time.Time, seconds int64) {
	deadline := trustedUntil(sent, seconds)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent.IsZero() {
		s.ttl = time.Duration(seconds) * time.Second
	}
	if deadline.After(s.deadline) {
		s.deadline, s.sent = deadline, sent
	}
	if s.expiry == nil {
		s.expiry = time.AfterFunc(time.Until(deadline), s.expire)
	}
}

// trustedUntil is the time up to which a lease can be vouched for that etcd has granted or renewed
// for that many seconds, when it was asked at sent.
func trustedUntil(sent time.Time, seconds int64) time.Time {
	ttl := time.Duration(seconds) * time.Second
	return sent.Add(ttl - min(max(ttl/10, 50*time.Millisecond), time.Second))
}

// expire ends the session at its deadline, or waits for it again if renewals have moved it on.
func (s *Session) expire() {
	s.mu.Lock()
	left := time.Until(s.deadline)
	if left > 0 && s.ctx.Err() == nil {
		s.expiry.Reset(left)
	}
	s.mu.Unlock()
	if left <= 0 {
		s.terminate(ErrSessionExpired, "deadline passed")
	}
}

// valid reports whether the session's entries can be vouched for now. It looks at both clocks: the
// monotonic clock stands still while a machine is suspended, and the wall clock may be set.
func (s *Session) valid() bool {
	now, deadline := time.Now(), s.Deadline()
	return s.Err() == nil && now.Before(deadline) && s.wallClock().Before(deadline.Round(0))
}
