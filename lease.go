package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// How a session gets its lease, keeps it alive, and gives it back.

func (s *Session) leaseString() string { return strconv.FormatInt(int64(s.id), 16) }

// errTooLate: when the reply came, the lease had expired, or might have.
var errTooLate = errors.New("etcd's reply came when the lease might have expired")

// grantLease asks for a lease under an ID of the session's own choice. That makes the request safe
// to repeat, and lets a lease be found again whose reply was lost. With an ID of etcd's choice,
// every lost reply leaks a lease.
func (s *Session) grantLease(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl-1)/time.Second + 1) // rounded up
	outage := outage{e: &entry{s: s}}
	_, ambiguous, err := etcd.Do(ctx, s.etcd, etcd.Policy{}, func(attempt context.Context) (struct{}, error) {
		sent := time.Now()
		granted, err := s.etcd.GrantOnce(attempt, s.id, seconds)
		if errors.Is(err, rpctypes.ErrLeaseExist) {
			sent = time.Now() // an earlier attempt's, whose reply was lost
			granted, err = s.keepAlive(attempt)
		}
		switch {
		case err != nil:
		case !time.Now().Before(trustedUntil(sent, granted)):
			err = errTooLate
		default:
			s.record(sent, granted)
		}
		// A caller with little patience is no outage.
		if err != nil && !etcd.Refused(err) && (ctx.Err() == nil || time.Since(sent) >= etcd.RetryMax/2) {
			outage.start(s.etcd.Ctx(), err)
		}
		return struct{}{}, err
	})
	outage.stop(etcd.Refused(err)) // else the log's next line is that a session is up
	if err != nil {
		s.terminate(ErrSessionExpired, "not granted")
		if ambiguous {
			s.background(s.revokeUngranted)
		}
		return s.translate(err)
	}
	return nil
}

// adoptLease renews a lease that was granted elsewhere, which tells its TTL too.
func (s *Session) adoptLease(ctx context.Context) error {
	err := s.renewUntil(ctx, func(ctx context.Context) error { return s.sendRenewal(ctx).Err })
	if err == nil && s.Err() != nil {
		err = errTooLate
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrSessionExpired):
		err = rpctypes.ErrLeaseNotFound
	default:
		s.terminate(ErrSessionExpired, "not adopted")
		s.endLease()
	}
	return fmt.Errorf("adopt lease %s: %w", s.leaseString(), err)
}

// renewUntil calls renew until it succeeds, or ctx or the session ends.
func (s *Session) renewUntil(ctx context.Context, renew func(ctx context.Context) error) error {
	_, _, err := etcd.Do(ctx, s.etcd, etcd.Policy{Life: s.ctx}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, renew(ctx)
	})
	return s.translate(err)
}

// renewal is the outcome of one attempt to renew.
type renewal struct {
	sent time.Time
	err  error
}

// lookInterval is how often a session looks, without a request, whether its client is connected: waits
// make no request that could fail, and clientv3 keeps it from their watches.
const lookInterval = 500 * time.Millisecond

// errNoAnswer: a renewal takes too long.
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
	inFlight, gap := 0, s.ttl/6
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
			if inFlight > 0 {
				outage.start(s.ctx, errNoAnswer)
				unrenewed = cmp.Or(unrenewed, errNoAnswer)
			}
			inFlight++
			ctx, cancel := context.WithDeadline(s.ctx, s.Deadline())
			s.wg.Go(func() { // ends at the deadline at the latest
				defer cancel()
				sent := time.Now()
				s.renewals <- renewal{sent, s.renew(ctx)}
			})
			next.Reset(gap)
			gap = max(gap/2, s.ttl/48)
		case r := <-s.renewals:
			inFlight--
			if s.ctx.Err() == nil && !etcd.IsCtxError(r.err) { // else it is that the session has ended
				unrenewed = r.err
			}
			if r.err == nil {
				outage.stop(true)
				gap = s.ttl / 6
				next.Reset(max(0, time.Until(r.sent.Add(s.ttl/3))))
			} else {
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

// inspectInterval is the time from one look at the lease's keys to the next: about half a TTL,
// jittered, so that the sessions of many processes don't come together.
func (s *Session) inspectInterval() time.Duration { return s.ttl/8*3 + rand.N(s.ttl/4) }

// confirmTimeout bounds what asking after the lease may add to the news that an entry is gone.
const confirmTimeout = 250 * time.Millisecond

// confirmLease asks etcd after the lease, since an entry of the session is gone, and ends the
// session if the lease is what took it. It gives up when ctx ends.
//
// To renew the lease would not tell: if the revocation came to the leader's followers first, the
// leader goes on renewing until it has carried it out itself (FastLeaseKeepAlive in etcd 3.7). It
// catches up before it tells a time to live.
func (s *Session) confirmLease(ctx context.Context) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, start.Add(confirmTimeout))
	defer cancel()
	select {
	case s.confirmTurn <- struct{}{}:
		defer func() { <-s.confirmTurn }()
	case <-ctx.Done():
		return
	}
	if s.confirmedAt.After(start) || s.ctx.Err() != nil {
		return
	}
	asked := time.Now()
	lease, err := s.etcd.TimeToLive(ctx, s.id)
	switch {
	case err != nil:
		// Nothing is known. The next renewal tells, and the deadline stands.
	case lease.GrantedTTL == 0:
		s.leaseNotFound()
	default:
		s.confirmedAt = asked
	}
}

// revokeLease revokes the lease, for a TTL at most: it can't live longer.
func (s *Session) revokeLease() error {
	ctx, cancel := context.WithTimeout(s.etcd.Ctx(), s.ttl)
	defer cancel()
	_, _, err := etcd.Do(ctx, s.etcd, etcd.Policy{}, func(ctx context.Context) (struct{}, error) {
		_, err := s.etcd.Revoke(ctx, s.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}

// revokeUngranted revokes a lease of which it is not known whether it was granted, again and again
// for a few seconds, since the request may still be on its way.
func (s *Session) revokeUngranted(context.Context) {
	for delay := 50 * time.Millisecond; delay < 4*time.Second; delay *= 2 {
		if err := s.revokeLease(); err != nil || etcd.Sleep(s.leaseCtx, delay) != nil {
			return
		}
	}
}
