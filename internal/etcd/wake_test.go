package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// wakes are the times at which a client was woken, from the beginning of the test.
func wakes(c *Client) (times func() []time.Duration) {
	var mu sync.Mutex
	var all []time.Duration
	began := time.Now()
	c.waker.reset = func() {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Since(began))
	}
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// A thousand that have no answer wake their client as one does: at most twice a second, and not any more when
// they have one.
func TestWake_NoStorm(t *testing.T) {
	for _, users := range []int{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestClient()
			times := wakes(c)
			const outage = time.Minute
			began := time.Now()
			var wg sync.WaitGroup
			for range users {
				wg.Go(func() {
					_, _, err := Do(context.Background(), c, hedged, func(ctx context.Context) (int, error) {
						if left := outage - time.Since(began); left > 0 {
							return 0, Sleep(ctx, left)
						}
						return 0, nil
					})
					require.NoError(t, err)
				})
			}
			wg.Wait()
			requireSpaced(t, times())
			n := len(times())
			require.Greater(t, n, 95, "less than every 600 ms")
			require.LessOrEqual(t, n, 120)
			require.NoError(t, Sleep(context.Background(), time.Hour))
			require.Len(t, times(), n, "at rest")
		})
	}
}

func requireSpaced(t *testing.T, times []time.Duration) {
	t.Helper()
	for i := range times[1:] {
		require.GreaterOrEqual(t, times[i+1]-times[i], wakeMin)
	}
}

// Nothing that goes well wakes the client, nor an error that is an answer.
func TestWake_NotInGoodTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient()
		times := wakes(c)
		for range 100 {
			_, _, err := Do(context.Background(), c, hedged, func(ctx context.Context) (int, error) { return 0, Sleep(ctx, 900*time.Millisecond) })
			require.NoError(t, err)
		}
		_, _, err := Do(context.Background(), c, Policy{Once: true}, func(context.Context) (int, error) { return 0, errors.New("no leader") })
		require.Error(t, err)
		require.Empty(t, times())
	})
}

// Stalls that come and go do not wake it more often.
func TestWake_ComingAndGoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient()
		times := wakes(c)
		for range 1000 {
			stall := Stall{Client: c}
			stall.Set(true)
			stall.Set(true)
			require.NoError(t, Sleep(context.Background(), 70*time.Millisecond))
			stall.Set(false)
			stall.Set(false)
		}
		requireSpaced(t, times())
		require.Greater(t, len(times()), 50)
	})
}

// Whenever the outage begins, the client is woken shortly before the deadline.
func TestWake_BeforeTheDeadline(t *testing.T) {
	for left := 600 * time.Millisecond; left < 5*time.Second; left += 10 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			c := newTestClient()
			deadline := time.Now().Add(left)
			c.Deadline = func() time.Time { return deadline }
			times := wakes(c)
			stall := Stall{Client: c}
			stall.Set(true)
			require.NoError(t, Sleep(context.Background(), left))
			require.Contains(t, times(), left-lastChance)
			requireSpaced(t, times())
			stall.Set(false)
		})
	}
}

// A wake and a SetEndpoints wait for each other: gRPC reads and writes the map of connections then.
func TestWake_BesideSetEndpoints(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	require.NotNil(t, endpointsMutex(client), "this version of clientv3 keeps it elsewhere")
	c, all := NewClient(client), client.Endpoints()
	_, err := client.Get(t.Context(), "a") // so it is connected, and stays
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 1000 {
			client.SetEndpoints(append(all, fmt.Sprintf("127.0.0.1:%d", 1+i%2))...)
		}
	}()
	for !isClosed(done) {
		c.waker.reset()
	}
}

// A client that was closed is not woken.
func TestWake_Closed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := NewClient(clientv3.NewCtxClient(ctx))
		times := wakes(c)
		stall := Stall{Client: c}
		stall.Set(true)
		cancel()
		require.NoError(t, Sleep(context.Background(), time.Minute))
		require.Empty(t, times())
	})
}
