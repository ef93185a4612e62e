package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

func newTestClient() *Client { return NewClient(clientv3.NewCtxClient(context.Background())) }

var hedged = Policy{Hedge: true}

// onLanes plays with requests whose lanes are used again, and with others.
func onLanes(t *testing.T, name string, play func(t *testing.T, c *Client, p Policy)) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("%s/kept=%t", name, kept), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := newTestClient(), hedged
				if kept {
					c.Life, p.Life = t.Context(), t.Context()
				}
				play(t, c, p)
			})
		})
	}
}

// A ctx that ends, ends all calls at once.
func TestDo_CtxEnds(t *testing.T) {
	onLanes(t, "", func(t *testing.T, c *Client, hedged Policy) {
		ctx, cancel := context.WithTimeout(context.Background(), 450*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, ambiguous, err := Do(ctx, c, hedged, func(ctx context.Context) (int, error) { return 0, Sleep(ctx, time.Hour) })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, ambiguous)
		require.Equal(t, 450*time.Millisecond, time.Since(began))
	})
}

// The end of the life ends all calls at once, and the pauses between attempts.
func TestDo_LifeEnds(t *testing.T) {
	for name, op := range map[string]func(ctx context.Context) error{
		"all calls hang": func(ctx context.Context) error { return Sleep(ctx, time.Hour) },
		"no leader":      func(context.Context) error { return errors.New("no leader") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestClient()
				const after = 450 * time.Millisecond
				over := errors.New("over")
				life, end := context.WithCancelCause(context.Background())
				defer time.AfterFunc(after, func() { end(over) }).Stop()
				began := time.Now()
				_, ambiguous, err := Do(context.Background(), c, Policy{Life: life, Hedge: true}, func(ctx context.Context) (int, error) { return 0, op(ctx) })
				require.ErrorIs(t, err, over)
				require.True(t, ambiguous)
				require.Equal(t, after, time.Since(began))
			})
		})
	}
}

// While there is no connection, a request waits for one, and no others beside it.
func TestDo_NotHedgedWithoutAConnection(t *testing.T) {
	t.Parallel()
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	c := NewClient(client)
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	calls := 0
	_, _, err = Do(ctx, c, hedged, func(ctx context.Context) (*clientv3.GetResponse, error) {
		calls++ // they would race
		return c.Get(ctx, "a")
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 1, calls)
}

// That requests have waited for a connection says nothing of how long answers take. Else a member that hangs, soon after an outage,
// would hold up a request for as long as the outage has lasted.
func TestDo_PaceAfterAnOutage(t *testing.T) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	c := NewClient(cluster.Client(t, proxy))
	get := func() error {
		_, _, err := Do(t.Context(), c, hedged, func(ctx context.Context) (*clientv3.GetResponse, error) { return c.Get(ctx, "a") })
		return err
	}
	require.NoError(t, get())
	proxy.Refuse()
	proxy.Reset()
	require.Eventually(t, func() bool { return !c.Connected() }, time.Minute, time.Millisecond)
	var all errgroup.Group
	for range 20 {
		all.Go(get)
	}
	<-time.After(AttemptMin / 4 * 3) // within the first attempt
	proxy.Accept()
	require.Eventually(t, func() bool { c.waker.reset(); return c.Connected() }, time.Minute, time.Millisecond)
	require.NoError(t, all.Wait())
	require.Less(t, c.Late(), AttemptMin)
}

// A test that counts requests may make many.
func TestNeverHedge(t *testing.T) {
	c := NewClient(clientv3.NewCtxClient(t.Context()))
	c.NeverHedge()
	for range 1000 {
		c.pace.took(time.Millisecond)
	}
	require.Greater(t, c.Late(), time.Hour)
}

// The copy of a removal that etcd has carried out is answered at the moment at which etcd refuses the other copy.
func TestDoFirst_RefusedBesideTheOneThatDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient()
		var calls atomic.Int32
		did := func(b bool) bool { return b }
		v, ambiguous, err := DoFirst(t.Context(), c, hedged, Func[bool](func(context.Context) (bool, error) {
			if calls.Add(1) == 1 { // carried out at once; its reply is here when the other is refused
				<-time.After(400 * time.Millisecond)
				return true, nil
			}
			<-time.After(50 * time.Millisecond)
			return false, rpctypes.ErrPermissionDenied
		}), did)
		require.True(t, err == nil && v || ambiguous, "it was carried out: %v, %v, %v", v, ambiguous, err)
	})
}
