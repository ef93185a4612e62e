// How a session gets its lease, asks after it, and gives it back.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

func (s *Session) leaseString() string { return strconv.FormatInt(int64(s.id), 16) }

// errTooLate: when the reply came, the lease had expired, or might have.
var errTooLate = errors.New("etcd's reply came when the lease might have expired")

// grantLease asks for a lease under an ID of the session's own choice. That makes the request safe
// to repeat, and lets a lease be found again whose reply was lost. With an ID of etcd's choice,
// every lost reply leaks a lease.
func (s *Session) grantLease(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl-1)/time.Second + 1) // rounded up
	outage := outage{e: &entry{s: s}}
	requests := 0 // that may be carried out
	_, ambiguous, err := etcd.Do(ctx, s.etcd, etcd.Policy{}, func(attempt context.Context) (struct{}, error) {
		sent := time.Now()
		granted, err := s.etcd.GrantOnce(attempt, s.id, seconds)
		if !errors.Is(err, etcd.ErrNotSent) {
			requests++
		}
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
		if ambiguous && requests > 0 {
			s.background(func(context.Context) { s.revokeUngranted(requests) })
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

// revokeLease revokes the lease, for a TTL at most: it can't live longer. found says whether it was there.
func (s *Session) revokeLease() (found bool, err error) {
	ctx, cancel := context.WithTimeout(s.etcd.Ctx(), s.ttl)
	defer cancel()
	found, _, err = etcd.Do(ctx, s.etcd, etcd.Policy{}, func(ctx context.Context) (bool, error) {
		_, err := s.etcd.Revoke(ctx, s.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, nil
		}
		return true, err
	})
	return found, err
}

// revokeUngranted revokes a lease of which it is not known whether one of that many requests has granted it,
// again and again for a few seconds, since they may still be on their way. Close of a Client waits for it.
func (s *Session) revokeUngranted(requests int) {
	found, err := s.revokeLease()
	for delay := 50 * time.Millisecond; delay < 2*time.Second; delay *= 2 {
		if err != nil || found && requests == 1 || etcd.Sleep(s.leaseCtx, delay) != nil {
			return
		}
		found, err = s.revokeLease()
	}
}
