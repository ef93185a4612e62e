package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// kept is a Client whose lanes are used again, and the policy of requests on them.
func kept(t *testing.T) (*Client, Policy) {
	c := newTestClient()
	c.Life = t.Context()
	return c, Policy{Life: c.Life, Hedge: true}
}

// A lane is used again after an answer. It is not if it has ended, or may yet end.
func TestLane_UsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := kept(t)
		request := func(ctx context.Context, took ...time.Duration) <-chan struct{} {
			calls, lanes := make(chan time.Duration, len(took)), make(chan (<-chan struct{}), len(took))
			for _, d := range took {
				calls <- d
			}
			_, _, _ = Do(ctx, c, p, func(ctx context.Context) (int, error) {
				lanes <- ctx.Done()
				return 0, Sleep(ctx, <-calls)
			})
			return <-lanes
		}
		first := request(t.Context(), time.Millisecond)
		require.Equal(t, first, request(context.Background(), time.Millisecond))
		require.Equal(t, first, request(t.Context(), HedgeMin-1))

		late := request(t.Context(), time.Hour, time.Millisecond)
		require.Equal(t, first, late)
		require.Len(t, c.lanes.free, 0)
		second := request(t.Context(), time.Millisecond)
		require.NotEqual(t, first, second)

		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), "key", "value"), time.Millisecond) //nolint:staticcheck // a key of the test
		defer cancel()
		require.Equal(t, second, request(ctx, time.Hour))
		require.NotEqual(t, second, request(t.Context(), time.Millisecond), "its caller has ended it")

		p.Life = context.WithoutCancel(c.Life)
		require.NotEqual(t, request(t.Context(), time.Millisecond), request(t.Context(), time.Millisecond), "they end with something else")
		require.Len(t, c.lanes.free, 1)
		require.Empty(t, c.lanes.flying)
	})
}

// A request on a lane that was used before has the values of its own caller's ctx, and ends with that.
func TestLane_OfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := kept(t)
		type key struct{}
		for _, value := range []string{"one", "two"} {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, value))
			time.AfterFunc(time.Millisecond, cancel)
			for range 2 {
				_, _, err := Do(ctx, c, p, func(ctx context.Context) (int, error) {
					require.Equal(t, value, ctx.Value(key{}))
					child, stop := context.WithCancel(ctx)
					defer stop()
					return 0, Sleep(child, 3*time.Millisecond/4)
				})
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
				}
			}
			require.Error(t, ctx.Err())
		}
	})
}

// A caller's ctx that ends at the moment of the answer ends no request that comes later.
func TestLane_CallerLeavesAtTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := kept(t)
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			_, _, err := Do(ctx, c, p, func(context.Context) (int, error) { cancel(); return 0, nil })
			require.NoError(t, err)
			calls := 0
			_, _, err = Do(t.Context(), c, p, func(ctx context.Context) (int, error) {
				if calls++; calls > 1 {
					return 0, rpctypes.ErrPermissionDenied // or it would go on for ever
				}
				return 0, Sleep(ctx, time.Millisecond)
			})
			require.NoError(t, err)
			require.Equal(t, 1, calls)
		}
	})
}

// One timer looks after all requests: each is sent again when it is due itself, whatever becomes of the others.
func TestLane_OneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := kept(t)
		begin := time.Now()
		again := make(chan time.Duration, 10)
		const ms = HedgeMin / 300
		for _, r := range []struct{ start, took time.Duration }{
			{0, ms}, {10 * ms, 200 * ms}, {20 * ms, time.Hour}, {25 * ms, 290 * ms}, {30 * ms, time.Hour}, {310 * ms, time.Hour}, {311 * ms, ms}, {2000 * ms, time.Hour},
		} {
			go func() {
				_ = Sleep(t.Context(), r.start)
				calls := make(chan struct{}, 10)
				_, _, _ = Do(t.Context(), c, p, func(ctx context.Context) (int, error) {
					calls <- struct{}{}
					if len(calls) == 1 {
						return 0, Sleep(ctx, r.took)
					}
					again <- time.Since(begin)
					return 0, nil
				})
			}()
		}
		for _, start := range []time.Duration{20, 30, 310, 2000} {
			require.Equal(t, start*ms+HedgeMin, <-again)
		}
		synctest.Wait()
		require.Empty(t, again)
		require.Empty(t, c.lanes.flying)
		<-time.After(time.Second)
		synctest.Wait()
		require.Zero(t, c.lanes.rings, "at rest it does not ring")
	})
}

// A burst leaves few lanes.
func TestLane_Burst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := kept(t)
		for range 2 * maxLanes {
			go func() {
				_, _, _ = Do(t.Context(), c, p, func(ctx context.Context) (int, error) { return 0, Sleep(ctx, time.Millisecond) })
			}()
		}
		synctest.Wait()
		<-time.After(time.Second)
		synctest.Wait()
		require.Len(t, c.lanes.free, maxLanes)
	})
}

// A request that is answered by its first call makes no timer, goroutine or ctx, nor anything else.
func TestLane_Allocations(t *testing.T) {
	c, p := kept(t)
	op := func(ctx context.Context) (int, error) { return 0, ctx.Err() }
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { _, _, _ = Do(context.Background(), c, p, op) }), 0.)
}
