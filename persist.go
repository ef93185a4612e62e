package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a request is repeated until etcd has answered it.

const (
	retryMin = 10 * time.Millisecond
	retryMax = 500 * time.Millisecond
	// An attempt of a request gets a limited time, the next one twice that: a
	// member that hangs is not to hold up what the others would answer.
	attemptMin = time.Second
	attemptMax = 8 * time.Second
)

// errClientClosed: the etcd client was closed, so that nothing can be asked
// any more.
var errClientClosed = errors.New("the etcd client is closed")

// persist calls op until it succeeds or is refused, or ctx ends: through
// leader changes, lost replies and members that hang. op must be safe to
// repeat.
func retry(ctx context.Context, client *clientv3.Client, op func(ctx context.Context) error) error {
	return retryLoop(ctx, context.Background(), client, func(ctx context.Context, cancel func(), limit time.Duration) error {
		// Not WithTimeout: gRPC would send the time limit along, and etcd start a
		// timer of its own, for each request (measured: 6 to 9 us of 300).
		defer time.AfterFunc(limit, cancel).Stop()
		return op(ctx)
	})
}

// attempts is persist for an op that keeps its time limit itself, with the cancel of
// its ctx. It ends with life too; its error is the cause then.
func retryLoop(ctx, life context.Context, client *clientv3.Client, op func(ctx context.Context, cancel func(), limit time.Duration) error) error {
	var last error
	limit := attemptMin
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		switch {
		case ctx.Err() != nil:
			return ctxError(ctx, last)
		case life.Err() != nil:
			return context.Cause(life)
		case client.Ctx().Err() != nil:
			return errClientClosed
		}
		attempt, cancel := bind(ctx, life)
		err := op(attempt, cancel, limit)
		cancel()
		limit = min(2*limit, attemptMax)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctxError(ctx, last)
		case refused(err), errors.Is(err, ErrSessionExpired):
			return err
		}
		last = err
		between, cancel := bind(ctx, life)
		_ = sleep(between, delay/2+rand.N(delay))
		cancel()
	}
}

// bind returns a ctx that ends with ctx and with life, and then with its cause.
func bind(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// persist is [persist] for a ctx of bind.
func (s *Session) retry(ctx context.Context, op func(ctx context.Context) error) error {
	return s.translate(ctx, retry(ctx, s.client, op))
}

// verdict is the error of attempts under a ctx of bind: the session's end comes
// first. That the client was closed ends the session.
func (s *Session) translate(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case s.stopped(ctx):
		return s.Err()
	case errors.Is(err, errClientClosed):
		s.terminate(ErrSessionExpired, "client closed")
		return fmt.Errorf("%w: %w", ErrSessionExpired, err)
	}
	return err
}

// endedBy reports whether it was the session's end that ended ctx, one of bind.
func (s *Session) stopped(ctx context.Context) bool {
	cause := s.Err()
	return cause != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), cause)
}

// endedOr is ended for a ctx of bind: the session's end comes first.
func (s *Session) waitError(ctx context.Context, last error) error {
	if s.stopped(ctx) {
		return s.Err()
	}
	return ctxError(ctx, last)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
