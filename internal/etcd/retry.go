// How a request is repeated until etcd has answered it: Do, and its pauses.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// RetryMin and RetryMax bound the pause between two attempts.
const (
	RetryMin = 10 * time.Millisecond
	RetryMax = 500 * time.Millisecond
)

const (
	// AttemptMin is the time that the first attempt gets, or more where answers take long: see patience. Each further
	// one gets twice that of the one before, up to attemptMax, so a member that hangs does not hold up for long what
	// the others would answer.
	AttemptMin = time.Second
	attemptMax = 8 * time.Second
)

// A Policy says how Do repeats a request.
type Policy struct {
	// Life ends the request as ctx does; Do returns its cause then. Nil stands for no end.
	Life context.Context
	// Hedge sends a request that is slow again beside itself, see race. The operation must be
	// safe to run beside itself, and must not write what it shares.
	Hedge bool
	// Through has the request begin while Drain holds back others.
	Through bool
	// Once makes one attempt, and returns its error whatever that is.
	Once bool
}

// Do sends a request until etcd has answered it, with success or with a refusal (see Refused),
// or ctx, p.Life or the client ends. It goes on through leader changes, lost replies and
// members that hang. op must be safe to repeat. No call of op goes on when Do returns.
//
// ambiguous says that a call other than the answered one may have been carried out, or may yet be.
func Do[T any](ctx context.Context, c *Client, p Policy, op func(ctx context.Context) (T, error)) (v T, ambiguous bool, err error) {
	return DoFirst(ctx, c, p, Func[T](op), nil)
}

// A Request is an op of Do that needs no closure: Call makes one call.
type Request[T any] interface {
	Call(ctx context.Context, c *Client) (T, error)
}

// A Func is a Request that is a function.
type Func[T any] func(ctx context.Context) (T, error)

// Call calls it.
func (f Func[T]) Call(ctx context.Context, _ *Client) (T, error) { return f(ctx) }

// DoFirst is Do for a request that changes nothing if it was carried out before, such as a removal. did reports whether a reply
// says that the request has changed something: such a reply is that to the call that etcd carried out first, and the caller
// ignores ambiguous. A reply that says that there was nothing to change waits for the replies to the calls beside it, and is
// ambiguous only if some call has none.
func DoFirst[T any](ctx context.Context, c *Client, p Policy, op Request[T], did func(T) bool) (v T, ambiguous bool, err error) {
	life, hedges, late := p.Life, 0, time.Duration(0)
	if life == nil {
		life = context.Background()
	}
	c.calls.begin(ctx, life, c.Ctx(), p.Through)
	defer c.calls.end()
	if p.Hedge {
		hedges, late = maxHedges, c.pace.late()
	}
	var last error
	var pause Backoff
	stall := Stall{Client: c}
	defer stall.Set(false)
	for limit := c.patience(); ; limit = min(2*limit, attemptMax) {
		if err := c.Ended(ctx, life, last); err != nil {
			return v, ambiguous, err
		}
		more, began, connected := hedges, time.Now(), c.Connected()
		if !connected {
			more = 0 // else all the calls of all the users are sent at the moment that there is one
		}
		lane, attempt := c.lane(ctx, life)
		var several bool
		r := racersOn[T](lane)
		*r = racers[T]{client: c, lane: lane, ctx: attempt, timed: p.Hedge && connected, more: more, late: late, limit: limit, op: op, did: did}
		v, several, err = r.race()
		ambiguous = ambiguous || several || !answered(err)
		c.release(lane)
		switch {
		case !IsCtxError(err):
			last = err
		case last == nil && ctx.Err() == nil:
			last = fmt.Errorf("no reply within %v", limit)
		}
		switch {
		case err == nil:
			if !p.Once {
				c.etcdAnswers()
			}
			return v, ambiguous, nil
		case ctx.Err() != nil:
			return v, ambiguous, c.CtxError(ctx, last)
		case p.Once, Refused(err):
			return v, ambiguous, Explain(err)
		}
		stall.Set(true)
		between, cancel := Bind(ctx, life)
		switch {
		// Of these two a pause would miss the moment at which etcd is back.
		case !c.Connected():
			c.awaitConnection(between, limit)
		case time.Since(began) >= RetryMax: // which was pause enough
		default:
			_ = pause.Wait(between) // ctx and life are looked at next
		}
		cancel()
	}
}

// Ended is why nobody waits for an answer any more: ctx, life or the client has ended. It is nil if none has. last is the last error of
// the request.
func (c *Client) Ended(ctx, life context.Context, last error) error {
	switch {
	case ctx.Err() != nil:
		return c.CtxError(ctx, last)
	case life.Err() != nil:
		return context.Cause(life)
	case c.Ctx().Err() != nil:
		return ErrClientClosed
	}
	return nil
}

// patience is the time that the first attempt of a request gets. If all members are slow, an attempt that ends before its
// answer only adds a request to what makes them slow.
func (c *Client) patience() time.Duration { return min(max(AttemptMin, c.pace.late()), attemptMax) }

// Outlive returns ctx if outer is nil. Else it returns a ctx that ends with ctx; but if ctx ends because of cause, the returned ctx ends
// with outer instead. The ctx that Do gives ends when its hold is unlocked, and the request that unlocks the hold must go on until the
// ctx ends that Do was given: outer. A ctx of context.WithoutCancel does not end with the hold, so it does not end with outer either.
func Outlive(ctx, outer context.Context, cause error) (context.Context, context.CancelFunc) {
	if outer == nil {
		return ctx, func() {}
	}
	out, free := context.WithoutCancel(ctx), func() {}
	if d, ok := ctx.Deadline(); ok {
		out, free = context.WithDeadline(out, d)
	}
	out, cancel := context.WithCancelCause(out)
	stop := context.AfterFunc(ctx, func() {
		ended := ctx
		if errors.Is(context.Cause(ctx), cause) {
			ended = outer
		}
		select {
		case <-ended.Done():
			cancel(context.Cause(ended))
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel(nil); free() }
}

// A Backoff is a pause that doubles each time, jittered by half. The zero value goes from
// RetryMin to RetryMax.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Wait pauses, or returns ctx's error when that ends.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Next is how long the next pause is.
func (b *Backoff) Next() time.Duration {
	if b.Max == 0 {
		b.Min, b.Max = RetryMin, RetryMax
	}
	d := max(b.next, b.Min)
	b.next = min(2*d, b.Max)
	return d/2 + rand.N(d)
}

// Reset makes the next pause the shortest again.
func (b *Backoff) Reset() { b.next = 0 }

// Sleep waits for d, or returns ctx's error when that ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
