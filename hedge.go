package etcdlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A member that hangs with its connections open costs each request that meets it
// the whole of its time limit: the client's balancer goes round, whether a
// member answers or not. So a request that takes long is sent again, beside the
// first, to whichever member is next.

const (
	// hedgeMin is many times what etcd needs to commit, and few enough of it fit
	// into the two seconds in which a lock is to go from hand to hand.
	hedgeMin = 300 * time.Millisecond
	// hedges is how many further calls one attempt makes: where many use the
	// client, the next one may meet the same member.
	hedges = 2
)

// hedged is persist, but a call of op that is late is followed by others beside
// it, and the first answer is taken, a success or a refusal. So op must be safe
// to run beside itself, and write nothing that it shares. life ends it as ctx does:
// that of the session for what a caller waits for, and of the lease for clean-up.
//
// doubt says that a call whose answer this is not may have been carried out, or
// be carried out yet. All of them have returned when hedged does.
func hedged[T any](ctx, life context.Context, s *Session, op func(ctx context.Context) (T, error)) (v T, doubt bool, err error) {
	timed := func(ctx context.Context) (T, error) {
		start := time.Now()
		v, err := op(ctx)
		if err == nil {
			s.pace.took(time.Since(start))
		}
		return v, err
	}
	err = retryLoop(ctx, life, s.client, func(ctx context.Context, cancel func(), limit time.Duration) (err error) {
		var several bool
		v, several, err = race(ctx, cancel, hedges, s.pace.late(), limit, timed)
		doubt = doubt || several || !answered(err)
		return err
	})
	return v, doubt, s.translate(ctx, err)
}

// answered reports whether err is etcd's last word.
func answered(err error) bool { return err == nil || refused(err) }

// race calls op, and after each time of late once more, and ends all calls, by
// cancel, with the first answer or at limit.
func race[T any](ctx context.Context, cancel func(), more int, late, limit time.Duration, op func(ctx context.Context) (T, error)) (v T, several bool, err error) {
	if more == 0 || late >= limit {
		defer time.AfterFunc(limit, cancel).Stop()
		v, err = op(ctx)
		return v, false, err
	}
	var others struct {
		returned sync.WaitGroup
		v        T
		err      error
		limit    *time.Timer
	}
	others.returned.Add(1)
	next := time.AfterFunc(late, func() {
		defer others.returned.Done()
		others.limit = time.AfterFunc(limit-late, cancel)
		others.v, _, others.err = race(ctx, cancel, more-1, late, limit-late, op)
		if answered(others.err) {
			cancel()
		}
	})
	v, err = op(ctx)
	if next.Stop() {
		return v, false, err
	}
	if answered(err) {
		cancel()
	}
	others.returned.Wait()
	others.limit.Stop()
	if !answered(err) {
		v, err = others.v, others.err
	}
	return v, true, err
}

// pace is how long answers took lately, in nanoseconds: the mean of a few.
type pace struct{ atomic.Int64 }

func (p *pace) took(d time.Duration) {
	mean := p.Load()
	p.Store(mean + (int64(d)-mean)/4)
}

// late is when to send a request again; where etcd is far away, later.
func (p *pace) late() time.Duration { return max(hedgeMin, 4*time.Duration(p.Load())) }
