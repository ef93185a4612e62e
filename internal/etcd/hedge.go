// A request that is slow is sent again beside itself, to another member.

package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A member that hangs with its connections open costs each request that meets it the whole of
// its time limit: the client's balancer goes round, whether a member answers or not. So a
// request that takes long is sent again beside the first, to whichever member is next.

const (
	// hedgeMin is many times what etcd needs to commit. A few of it fit into the two seconds in
	// which a lock is to go from hand to hand.
	hedgeMin = 300 * time.Millisecond
	// maxHedges is how many further calls one attempt makes: where many use the client, the next
	// call may meet the same member.
	maxHedges = 2
)

// race calls op, and after each time of late once more, up to more times. With the first answer,
// or at limit, it ends all calls by cancel. several says that there was more than one call.
func race[T any](ctx context.Context, cancel func(), more int, late, limit time.Duration, op func(ctx context.Context) (T, error)) (v T, several bool, err error) {
	if more == 0 || late >= limit {
		// Not WithTimeout: gRPC would send the time limit along, and etcd start a timer of its
		// own, for each request (measured: 6 to 9 us of 300).
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
	if mean := p.Load(); mean != never {
		p.Store(mean + (int64(d)-mean)/4)
	}
}

// never is the pace of a client that sends nothing again, however fast etcd answers.
const never = 1 << 60

// late is when to send a request again. It is later where etcd is far away.
func (p *pace) late() time.Duration { return max(hedgeMin, 4*time.Duration(p.Load())) }

// timed is op that tells p how long its answers take.
func timed[T any](p *pace, op func(ctx context.Context) (T, error)) func(ctx context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		start := time.Now()
		v, err := op(ctx)
		if err == nil {
			p.took(time.Since(start))
		}
		return v, err
	}
}

// Late is after what time the client sends a request again.
func (c *Client) Late() time.Duration { return c.pace.late() }

// NeverHedge makes the client send no request beside a slow one, for tests that count requests on a
// machine that may stall.
func (c *Client) NeverHedge() { c.pace.Store(never) }
