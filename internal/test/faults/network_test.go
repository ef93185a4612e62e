package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// Rows B1 to B4, B8 and C1 to C7: the network, and the streams of watches.

// soon bounds how long a call may take to return after its ctx has ended, by a harness.Stopwatch: generous, and below any
// time limit of a request.
const soon = 700 * time.Millisecond

// returnsWithCtx calls f with a ctx that ends after d, and requires that f returns soon
// after.
func returnsWithCtx(t *testing.T, d time.Duration, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	stop := harness.Stopwatch()
	err := f(ctx)
	require.Less(t, stop(), d+soon, "the call does not return with its ctx")
	return err
}

func TestFault_B1_CtxOnPartition(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := harness.LockName(t)
		h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		proxy := cluster.Proxy(t)
		s := newSession(t, cluster.Client(t, proxy), etcdlock.WithTTL(time.Minute))

		// The network fails while the call waits in the queue.
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		waiting := harness.Async(func() error { _, err := lockFuncs(s, name)[kind](ctx); return err })
		require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) > 1 }, harness.Hang, harness.Tick)
		proxy.Blackhole(etcdtest.Both)
		harness.Hangs(t, waiting, 300*time.Millisecond)
		stop := harness.Stopwatch()
		cancel()
		require.ErrorIs(t, harness.Result(t, waiting), context.Canceled)
		require.Less(t, stop(), soon, "the call does not return with its ctx")
		// The network is down from the start of the call; also Try, Check, Txn, Unlock and
		// Refresh.
		other, err := etcdlock.NewMutex(s, name+".2"), error(nil)
		for what, f := range map[string]func(ctx context.Context) error{
			"Lock":    func(ctx context.Context) error { _, err := other.Lock(ctx); return err },
			"TryLock": func(ctx context.Context) error { _, err := other.TryLock(ctx); return err },
			"Enqueue": func(ctx context.Context) error { _, err := other.Enqueue(ctx); return err },
			"Refresh": s.Refresh,
		} {
			require.ErrorIs(t, returnsWithCtx(t, 200*time.Millisecond, f), context.DeadlineExceeded, what)
		}
		require.Greater(t, len(harness.Entries(t, c, name)), 1, "the test must leave entries to remove")
		proxy.Heal()
		proxy.Reset()
		require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 1 }, harness.Hang, harness.Tick)
		harness.RequireGone(t, c, name+".2")
		require.NoError(t, s.Err())
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}

func TestFault_B1_HoldOnPartition(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	proxy := cluster.Proxy(t)
	s := newSession(t, cluster.Client(t, proxy), etcdlock.WithTTL(time.Minute))
	name := harness.LockName(t)
	h, err := etcdlock.NewRWMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	proxy.Blackhole(etcdtest.Both)
	for what, f := range map[string]func(ctx context.Context) error{
		"Check": h.Check, "Downgrade": h.Downgrade,
		"Txn": func(ctx context.Context) error {
			_, err := h.Txn(ctx).Then(clientv3.OpPut(name+".x", "")).Commit()
			return err
		},
	} {
		require.ErrorIs(t, returnsWithCtx(t, 200*time.Millisecond, f), context.DeadlineExceeded, what)
	}
	require.True(t, h.Valid(), "a ctx that ends must not change the hold")
	require.ErrorIs(t, returnsWithCtx(t, 200*time.Millisecond, h.Unlock), context.DeadlineExceeded)
	require.NotEmpty(t, harness.Entries(t, c, name))
	proxy.Heal()
	proxy.Reset()
	harness.RequireGone(t, c, name)
}

func TestFault_B2_NewSessionOnPartition(t *testing.T) {
	t.Parallel()
	proxy := cluster.Proxy(t)
	proxy.Blackhole(etcdtest.Both)
	client := cluster.Client(t, proxy)
	require.ErrorIs(t, returnsWithCtx(t, 300*time.Millisecond, func(ctx context.Context) error {
		_, err := etcdlock.NewSession(ctx, client)
		return err
	}), context.DeadlineExceeded)
}

// The ctx of NewSession bounds only the creation.
func TestFault_B3_CreationCtx(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	c := etcdtest.Start(t).Client(t) // nobody else has leases there
	s, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(6*time.Second))
	require.NoError(t, err)
	cancel()
	for range 2 { // wait for two renewals
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, harness.Hang, harness.Tick)
	}
	require.NoError(t, s.Err())
	require.NoError(t, s.Close())
	require.Empty(t, harness.Leases(t, c))
}

func TestFault_B4_CloseOnPartition(t *testing.T) {
	t.Parallel()
	const limit = 5 * time.Second // of Close
	own := etcdtest.Start(t)
	proxy, c := own.Proxy(t), own.Client(t)
	s, err := etcdlock.NewSession(harness.Ctx(t), own.Client(t, proxy), etcdlock.WithTTL(time.Minute))
	require.NoError(t, err)
	h, err := etcdlock.NewMutex(s, harness.LockName(t)).Lock(harness.Ctx(t))
	require.NoError(t, err)
	proxy.Blackhole(etcdtest.Both)
	began := time.Now()
	require.ErrorContains(t, s.Close(), "not known to be revoked")
	require.WithinRange(t, time.Now(), began.Add(limit), began.Add(limit+harness.Hang/2))
	require.ErrorIs(t, h.Err(), etcdlock.ErrSessionClosed)
	require.Equal(t, []clientv3.LeaseID{s.Lease()}, harness.Leases(t, c))
	proxy.Heal()
	proxy.Reset()
	require.NoError(t, s.Close(), "the revocation must go on in the background, and another Close must wait for it")
	require.Empty(t, harness.Leases(t, c))
}

// 1,000 calls on a slow link, each with a ctx of 0 to 5 ms, leave nothing behind.
func TestFault_B8_NothingLeaks(t *testing.T) {
	proxy := cluster.Proxy(t)
	c := cluster.Client(t)
	a, b := harness.LockName(t), harness.LockName(t)
	s, err := etcdlock.NewSession(harness.Ctx(t), cluster.Client(t, proxy))
	require.NoError(t, err)
	h, err := etcdlock.NewMutex(s, a).Lock(harness.Ctx(t))
	require.NoError(t, err)
	proxy.Delay(etcdtest.Both, time.Millisecond)
	before := leaks.Library()
	var wg sync.WaitGroup
	var granted atomic.Int32
	next := make(chan int)
	for range 20 {
		wg.Go(func() {
			for i := range next {
				name := []string{a, b}[i%2] // a is held, b is free
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(5*time.Millisecond))
				lock := []func(context.Context) (*etcdlock.Held, error){etcdlock.NewMutex(s, name).Lock, etcdlock.NewRWMutex(s, name).Lock, etcdlock.NewRWMutex(s, name).RLock, etcdlock.NewMutex(s, name).TryLock}[i/2%4]
				if h, err := lock(ctx); err == nil {
					granted.Add(1)
					_ = h.Unlock(ctx)
				}
				cancel()
			}
		})
	}
	for i := range 1000 {
		next <- i
	}
	close(next)
	wg.Wait()
	t.Log("granted", granted.Load())
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, b)) == 0 && len(harness.Entries(t, c, a)) == 1 }, harness.Hang, harness.Tick)
	ctx := harness.Ctx(t)
	hb, err := etcdlock.NewMutex(s, b).Lock(ctx)
	require.NoError(t, err, "the next Lock must succeed")
	require.NoError(t, hb.Unlock(ctx))
	require.NoError(t, h.Check(ctx))
	require.Eventually(t, func() bool {
		return strings.Count(leaks.Library(), "goroutine ") <= strings.Count(before, "goroutine ")
	}, harness.Hang, 100*time.Millisecond, "goroutines or watches are left:\n%s", leaks.Library())
	require.NoError(t, s.Close())
}

// The waiter's watch is on a member that is isolated from the others.
func TestFault_C1_IsolatedMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := own.Leader(harness.Ctx(t))
	require.NoError(t, err)
	x := own.Member((leader.Index() + 1) % 3)
	h, err := etcdlock.NewMutex(newSession(t, own.Client(t), etcdlock.WithTTL(time.Minute)), "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	tap, watching := etcdtest.NewTap(), make(chan struct{})
	once := sync.OnceFunc(func() { close(watching) })
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		if m.Created {
			once()
		}
		return nil
	})
	c := own.Client(t, tap, etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = []string{x.Endpoint()} }))
	s := newSession(t, c, etcdlock.WithTTL(20*time.Second))
	tk, err := etcdlock.NewMutex(s, "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, tk, 1)
	select {
	case <-watching:
	case <-time.After(harness.Hang):
		t.Fatal("the waiter opens no watch")
	}
	c.SetEndpoints(own.Endpoints()...)
	x.Isolate()
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h2, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err, "the waiter must not depend on the isolated member")
	require.NoError(t, h2.Check(harness.Ctx(t)))
	x.Heal()
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

func TestFault_C2_CompactionThenReconnect(t *testing.T) {
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := harness.LockName(t)
		h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		proxy := cluster.Proxy(t)
		client, w := harness.WiredClient(t, cluster, func(cfg *clientv3.Config) { cfg.Endpoints = proxy.Endpoints() })
		s := newSession(t, client)
		w.Reset()
		granted := harness.InBackground(t, lockFuncs(s, name)[kind])
		w.WaitFor(t, 0, 1)
		queue := queueOf(t, c, name)
		for range 5 {
			var rev int64
			for range 5 {
				put, err := c.Put(harness.Ctx(t), "elsewhere", "")
				require.NoError(t, err)
				rev = put.Header.Revision
			}
			heard(t, rev)
			_, err = c.Compact(harness.Ctx(t), rev)
			require.NoError(t, err)
			w.Reset()
			proxy.Reset()
			w.WaitFor(t, 0, 1)
		}
		require.Equal(t, queue, queueOf(t, c, name), "the waiter must keep its place")
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h2 := <-granted
		require.NotNil(t, h2)
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
	}
}

// queueOf returns the queue with the create revisions.
func queueOf(t *testing.T, c *clientv3.Client, name string) []queue.Entry {
	t.Helper()
	from, to := keyspace.All(name)
	resp, err := c.Get(harness.Ctx(t), from, clientv3.WithRange(to))
	require.NoError(t, err)
	return queue.Entries(resp.Kvs)
}

// The history is compacted between any two steps of an acquisition, and no busy loop follows.
func TestFault_C3_C4_CompactionInBetween(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t) // whose compactions nobody else meets
	c := own.Client(t)
	compact := func() {
		var rev int64
		for range 2 {
			put, err := c.Put(harness.Ctx(t), "elsewhere", "")
			if err != nil {
				t.Error(err)
				return
			}
			rev = put.Header.Revision
		}
		if _, err := c.Compact(harness.Ctx(t), rev); err != nil && !strings.Contains(err.Error(), "compacted") {
			t.Error(err)
		}
	}
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := harness.LockName(t)
		m := etcdlock.NewMutex(newSession(t, c), name)
		h, err := m.Lock(harness.Ctx(t))
		require.NoError(t, err)
		second, err := m.Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		client, w := harness.WiredClient(t, own)
		s := newSession(t, client)
		w.Reset()
		w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
			err := send(ctx)
			compact()
			return err
		})
		granted := harness.InBackground(t, lockFuncs(s, name)[kind])
		w.WaitFor(t, 1, 1)
		w.OnUnary(nil)
		require.NoError(t, second.Cancel(harness.Ctx(t)))
		w.Reset()
		idle := time.NewTimer(time.Second)
		<-idle.C // the time in which the test counts requests
		calls, _ := w.Counts()
		require.LessOrEqual(t, calls["Range"]+calls["Txn"], 4, "the waiter spins") // one read and one recheck
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h2 := <-granted
		require.NotNil(t, h2)
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
	}
}

// The event of the deletion never arrives: a waiter finds out by asking from time to time.
func TestFault_C5_LostEvent(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := harness.LockName(t)
		h, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		client, w := harness.WiredClient(t, cluster)
		s := newSession(t, client, etcdlock.WithTTL(8*time.Second))
		w.OnRecv(func(_ string, msg any) (bool, error) {
			if r, ok := msg.(*pb.WatchResponse); ok {
				for _, ev := range r.Events {
					if ev.Type == clientv3.EventTypeDelete {
						return false, nil
					}
				}
			}
			return true, nil
		})
		w.Reset()
		granted := harness.InBackground(t, lockFuncs(s, name)[kind])
		w.WaitFor(t, 0, 1)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h2 := <-granted
		require.NotNil(t, h2)
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
	}
}

// The same for a hold: its watch is silent, as if the member hangs.
func TestFault_C5_LostEventOfAHold(t *testing.T) {
	t.Parallel()
	client, w := harness.WiredClient(t, cluster)
	s := newSession(t, client, etcdlock.WithTTL(10*time.Second))
	w.OnRecv(func(_ string, msg any) (bool, error) {
		r, ok := msg.(*pb.WatchResponse)
		return !ok || len(r.Events) == 0, nil
	})
	h, err := etcdlock.NewMutex(s, harness.LockName(t)).Lock(harness.Ctx(t))
	require.NoError(t, err)
	w.Reset()
	done := h.Done()
	w.WaitFor(t, 0, 1)
	_, err = cluster.Client(t).Delete(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	select {
	case <-done:
	case <-time.After(harness.Hang):
		t.Fatal("the holder is not told of the loss")
	}
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	require.NoError(t, s.Err())
}

// The watch stream breaks repeatedly, in all possible ways.
func TestFault_C6_WatchBreaks(t *testing.T) {
	t.Parallel()
	for i, broken := range []error{io.EOF, harness.ErrLostReply, rpctypes.ErrGRPCNoLeader} {
		t.Run(fmt.Sprint(broken), func(t *testing.T) {
			name := harness.LockName(t)
			h, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
			require.NoError(t, err)
			client, w := harness.WiredClient(t, cluster)
			s := newSession(t, client)
			var left atomic.Int32
			left.Store(6)
			w.OnRecv(func(method string, _ any) (bool, error) {
				if method == "Watch" && left.Add(-1) >= 0 {
					return false, broken
				}
				return true, nil
			})
			tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
			require.NoError(t, err)
			if i == 0 {
				require.Eventually(t, func() bool { return left.Load() < 0 }, harness.Hang, harness.Tick)
			}
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			h2, err := tk.Wait(harness.Ctx(t))
			require.NoError(t, err)
			require.NoError(t, h2.Unlock(harness.Ctx(t)))
		})
	}
}

// Closing the client ends all waits, holds and sessions that use it.
func TestFault_C6_ClientClosed(t *testing.T) {
	name := harness.LockName(t)
	h, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	c, err := cluster.NewClient()
	require.NoError(t, err)
	s, err := etcdlock.NewSession(harness.Ctx(t), c)
	require.NoError(t, err)
	held, err := etcdlock.NewMutex(s, name+".2").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := held.Done()
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = tk.Wait(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
	<-done
	require.ErrorIs(t, held.Err(), etcdlock.ErrSessionExpired)
	require.Error(t, s.Close(), "Close must say that the lease was not revoked")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	_, err = cluster.Client(t).Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
}

// The messages of the watch arrive seconds late.
func TestFault_C7_DelayedEvents(t *testing.T) {
	t.Parallel()
	name := harness.LockName(t)
	h, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	client, w := harness.WiredClient(t, cluster)
	s := newSession(t, client, etcdlock.WithTTL(10*time.Second))
	w.OnRecv(func(method string, _ any) (bool, error) {
		if method == "Watch" {
			late := time.NewTimer(3 * time.Second)
			<-late.C
		}
		return true, nil
	})
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h2, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}
