package etcdlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a session keeps its lease alive.

func (s *Session) leaseString() string { return strconv.FormatInt(int64(s.id), 16) }

// renewal is the outcome of one attempt to renew.
type renewal struct {
	sent time.Time
	err  error
}

// run renews the lease each third of the TTL until the session ends. Every
// attempt has a stream of its own, which the client's balancer gives to the
// next member, and is followed by another one after a sixth of the TTL if it
// has no reply by then: a member that hangs costs no lease while others answer,
// and a slow reply is not given up for that.
//
// The client's own KeepAlive does not serve: it counts the lease's end from
// the reply and looks at it once a second, and stays with a member that hangs.
func (s *Session) run() {
	defer s.wg.Done()
	defer s.notifyEnded()
	defer s.replaceWatcher(nil)
	gap := s.ttl / 6
	s.mu.Lock()
	next := time.NewTimer(time.Until(s.sent.Add(s.ttl / 3)))
	s.mu.Unlock()
	defer next.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.client.Ctx().Done():
			s.terminate(ErrSessionExpired, "client closed")
			return
		case <-next.C:
			ctx, cancel := context.WithDeadline(s.ctx, s.Deadline())
			s.wg.Go(func() { // ends at the deadline at the latest
				defer cancel()
				sent := time.Now()
				s.renewals <- renewal{sent, s.renew(ctx)}
			})
			next.Reset(gap)
			gap = max(gap/2, s.ttl/48)
		case r := <-s.renewals:
			if r.err == nil {
				gap = s.ttl / 6
				next.Reset(max(0, time.Until(r.sent.Add(s.ttl/3))))
			} else {
				next.Reset(min(gap, retryMax))
			}
		}
	}
}

// renew asks etcd once to renew the lease, and ends the session if the lease
// is gone.
func (s *Session) renew(ctx context.Context) error {
	info := s.sendRenewal(ctx)
	s.notifyRenewed(info)
	return info.Err
}

// renewOnce is renew without telling of it.
func (s *Session) sendRenewal(ctx context.Context) RenewedInfo {
	sent := time.Now()
	ttl, err := s.keepAlive(ctx)
	info := RenewedInfo{s, time.Since(sent), err}
	switch {
	case err == nil && ttl <= 0, errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.terminate(ErrSessionExpired, "lease not found")
		s.endLease()
		info.Err = ErrSessionExpired
	case err == nil:
		s.record(sent, ttl)
	}
	return info
}

func (s *Session) keepAliveOnce(ctx context.Context) (int64, error) {
	// Not the client's KeepAliveOnce, which repeats a failed request without a
	// pause for as long as ctx lives.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := clientv3.RetryLeaseClient(s.client).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}); err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	return resp.TTL, nil
}

// record moves the deadline on after etcd has granted ttl seconds.
//
// Invariant (I4): the deadline is counted from before the request was sent.
// etcd counts from a moment between that and the reply, so its lease outlives
// the deadline however long the reply took.
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

// vouched is up to when a lease can be vouched for that etcd has granted, or
// renewed, for so many seconds, when asked at sent.
func trustedUntil(sent time.Time, seconds int64) time.Time {
	ttl := time.Duration(seconds) * time.Second
	return sent.Add(ttl - min(max(ttl/10, 50*time.Millisecond), time.Second))
}

// errTooLate: when the reply came, the lease had expired, or might have.
var errTooLate = errors.New("etcd's reply came when the lease might have expired")

// expire ends the session at its deadline, or waits for it again if renewals
// have moved it on.
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

// valid reports whether the session's entries can be vouched for now. It looks
// at both clocks: the monotonic one stands still while a machine is suspended,
// the other may be set.
func (s *Session) valid() bool {
	now, deadline := time.Now(), s.Deadline()
	return s.Err() == nil && now.Before(deadline) && now.Round(0).Before(deadline.Round(0))
}

// revokeLease revokes the lease, for a TTL at most: it can't live longer.
func (s *Session) revokeLease() error {
	ctx, cancel := context.WithTimeout(s.client.Ctx(), s.ttl)
	defer cancel()
	return s.retry(ctx, func(ctx context.Context) error {
		_, err := s.client.Revoke(ctx, s.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// revokeUngranted revokes a lease of which it is not known whether it was
// granted, again and again for a few seconds, since the request may still be
// on its way.
func (s *Session) revokeUngranted(context.Context) {
	for delay := 50 * time.Millisecond; delay < 4*time.Second; delay *= 2 {
		if err := s.revokeLease(); err != nil || sleep(s.leaseCtx, delay) != nil {
			return
		}
	}
}

// bind returns a ctx that ends also with the session.
func (s *Session) bind(ctx context.Context) (context.Context, func()) { return bind(ctx, s.ctx) }

// background runs f, until the lease is gone at the latest; Close waits for it.
// It returns false, and does not, if the lease is gone or going.
func (s *Session) background(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.leaseCtx.Err() != nil || s.client.Ctx().Err() != nil {
		return false
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithCancel(s.leaseCtx)
		defer cancel()
		defer context.AfterFunc(s.client.Ctx(), cancel)()
		f(ctx)
	})
	return true
}
