package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a session keeps its lease alive, and how its requests are repeated.

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
	defer s.replaceWatcher(nil)
	gap := s.ttl / 6
	next := time.NewTimer(s.ttl / 3)
	defer next.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.client.Ctx().Done():
			s.end(ErrSessionExpired, "client closed")
			return
		case <-next.C:
			ctx, cancel := context.WithDeadline(s.ctx, s.Deadline())
			s.wg.Go(func() { // ends at the deadline at the latest
				defer cancel()
				sent := time.Now()
				s.renewed <- renewal{sent, s.renew(ctx)}
			})
			next.Reset(gap)
			gap = max(gap/2, s.ttl/48)
		case r := <-s.renewed:
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
	sent := time.Now()
	ttl, err := s.keepAlive(ctx)
	switch {
	case err == nil && ttl <= 0, errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.end(ErrSessionExpired, "lease not found")
		s.leaseGone()
		return ErrSessionExpired
	case err != nil:
		return err
	}
	s.record(sent, ttl)
	return nil
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
	ttl := time.Duration(seconds) * time.Second
	deadline := sent.Add(ttl - min(max(ttl/10, 50*time.Millisecond), time.Second))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent.IsZero() {
		s.ttl = ttl
	}
	if deadline.After(s.deadline) {
		s.deadline, s.sent = deadline, sent
	}
	if s.expiry == nil {
		s.expiry = time.AfterFunc(time.Until(deadline), s.expire)
	}
}

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
		s.end(ErrSessionExpired, "deadline passed")
	}
}

// valid reports whether the session's entries can be vouched for now. It looks
// at both clocks: the monotonic one stands still while a machine is suspended,
// the other may be set.
func (s *Session) valid() bool {
	now, deadline := time.Now(), s.Deadline()
	return s.Err() == nil && now.Before(deadline) && now.Round(0).Before(deadline.Round(0))
}

// confirmTime bounds what asking after the lease may add to the news that an
// entry is gone.
const confirmTime = 250 * time.Millisecond

// confirm asks etcd after the lease, since an entry of the session is gone, and
// ends the session if the lease is what took it.
func (s *Session) confirm() {
	start := time.Now()
	s.confirming.Lock()
	defer s.confirming.Unlock()
	s.mu.Lock()
	known := s.sent.After(start)
	s.mu.Unlock()
	if known || s.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithDeadline(s.ctx, start.Add(confirmTime))
	defer cancel()
	if err := s.renew(ctx); err != nil {
		return // run goes on trying, and the deadline stands
	}
}

// revokeLease revokes the lease, for a TTL at most: it can't live longer.
func (s *Session) revokeLease() error {
	ctx, cancel := context.WithTimeout(s.client.Ctx(), s.ttl)
	defer cancel()
	return s.persist(ctx, func(ctx context.Context) error {
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
		if err := s.revokeLease(); err != nil || pause(s.lease, delay) != nil {
			return
		}
	}
}

// bind returns a ctx that ends also with the session.
func (s *Session) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// background runs f, until the lease is gone at the latest; Close waits for it.
// It returns false, and does not, if the lease is gone or going.
func (s *Session) background(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.lease.Err() != nil || s.client.Ctx().Err() != nil {
		return false
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithCancel(s.lease)
		defer cancel()
		defer context.AfterFunc(s.client.Ctx(), cancel)()
		f(ctx)
	})
	return true
}

const (
	retryMin = 10 * time.Millisecond
	retryMax = 500 * time.Millisecond
	// An attempt of a request gets a limited time, the next one twice that: a
	// member that hangs is not to hold up what the others would answer.
	attemptMin = time.Second
	attemptMax = 8 * time.Second
)

// persist is [persist] for a ctx of bind: the session's end comes first. That
// the client was closed ends the session.
func (s *Session) persist(ctx context.Context, op func(ctx context.Context) error) error {
	err := persist(ctx, s.client, op)
	if err == nil {
		return nil
	}
	if s.endedBy(ctx) {
		return s.Err()
	}
	if errors.Is(err, errClientClosed) {
		s.end(ErrSessionExpired, "client closed")
		return fmt.Errorf("%w: %w", ErrSessionExpired, err)
	}
	return err
}

// errClientClosed: the etcd client was closed, so that nothing can be asked
// any more.
var errClientClosed = errors.New("the etcd client is closed")

// persist calls op until it succeeds or is refused, or ctx ends: through
// leader changes, lost replies and members that hang. op must be safe to
// repeat.
func persist(ctx context.Context, client *clientv3.Client, op func(ctx context.Context) error) error {
	var last error
	limit := attemptMin
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		switch {
		case ctx.Err() != nil:
			return ended(ctx, last)
		case client.Ctx().Err() != nil:
			return errClientClosed
		}
		// Not WithTimeout: gRPC would send the time limit along, and etcd start a
		// timer of its own, for each request (measured: 6 to 9 us of 300).
		attempt, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(limit, cancel)
		err := op(attempt)
		timer.Stop()
		cancel()
		limit = min(2*limit, attemptMax)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx, last)
		case refused(err), errors.Is(err, ErrSessionExpired):
			return err
		}
		last = err
		_ = pause(ctx, delay/2+rand.N(delay)) // ctx is looked at next
	}
}

// endedBy reports whether it was the session's end that ended ctx, one of bind.
func (s *Session) endedBy(ctx context.Context) bool {
	cause := s.Err()
	return cause != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), cause)
}

// endedOr is ended for a ctx of bind: the session's end comes first.
func (s *Session) endedOr(ctx context.Context, last error) error {
	if s.endedBy(ctx) {
		return s.Err()
	}
	return ended(ctx, last)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
