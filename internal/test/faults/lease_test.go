package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows F8 to F11: how long leases live, and how they are renewed.

// Each change of the leader restarts the TTL of all leases. So the lock of a crashed
// holder passes to the next one late, but never early.
func TestFault_F8_LeaderChangesExtendLeases(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxy := own.Proxy(t)
	client, err := own.NewClient(proxy)
	require.NoError(t, err)
	defer client.Close()
	const ttl = 6 * time.Second
	s, err := etcdlock.NewSession(harness.Ctx(t), client, etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := etcdlock.NewMutex(newSession(t, own.Client(t), etcdlock.WithTTL(time.Minute)), "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	proxy.Blackhole(etcdtest.Both)
	crashed := time.Now()
	for i := 0; time.Since(crashed) < ttl*3/2; i++ {
		require.NoError(t, own.MoveLeader(harness.Ctx(t), i%3))
	}
	moved := time.Now()
	h2, err := next.Wait(harness.Ctx(t))
	require.NoError(t, err)
	granted := time.Now()
	select {
	case <-done:
	default:
		t.Fatal("the old holder was not told of the loss")
	}
	t.Logf("shown: TTL %v, leaders moved for %v: the next waiter was granted %v after that", ttl, moved.Sub(crashed).Round(time.Second), granted.Sub(moved).Round(100*time.Millisecond))
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

// An entry without a lease, or with a lease that etcd never expires because of a bug, keeps
// the lock. Inspect shows it, waiters wait only as long as their ctx allows, and the lock is
// free when an operator deletes the entry.
func TestFault_F9_LeaseNeverExpires(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	for _, leaseless := range []bool{true, false} {
		name := harness.LockName(t)
		var id clientv3.LeaseID
		if !leaseless {
			grant, err := c.Grant(harness.Ctx(t), 1_000_000)
			require.NoError(t, err)
			id = grant.ID
		}
		stuck := harness.ExclusiveKey(name, 0xdead)
		_, err := c.Put(harness.Ctx(t), stuck, "", clientv3.WithLease(id))
		require.NoError(t, err)
		require.ErrorIs(t, returnsWithCtx(t, 100*time.Millisecond, func(ctx context.Context) error {
			_, err := etcdlock.NewMutex(s, name).Lock(ctx)
			return err
		}), context.DeadlineExceeded)
		tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 2 }, harness.Hang, harness.Tick)
		harness.NotGranted(t, tk, 1)
		_, err = c.Delete(harness.Ctx(t), stuck)
		require.NoError(t, err)
		h, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		if !leaseless {
			_, err = c.Revoke(harness.Ctx(t), id)
			require.NoError(t, err)
		}
	}
}

// etcd grants at least one and a half election timeouts. The granted TTL counts, and the
// session reports it.
func TestFault_F10_GrantedTTLCounts(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 4000 }))
	began := time.Now()
	s := newSession(t, own.Client(t), etcdlock.WithTTL(time.Second))
	require.Equal(t, 6*time.Second, s.TTL())
	require.True(t, s.Deadline().After(began.Add(5*time.Second)), "the deadline must be that of the granted TTL")
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Deadline().Equal(h.Deadline()) }, harness.Hang, harness.Tick, "unless a renewal comes in between")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// The session renews once in a third of its TTL, even if nobody listens, and not after its
// end.
func TestFault_F11_RenewalsAreFew(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	began := time.Now()
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(6*time.Second))
	if n := tap.Calls("LeaseKeepAlive"); time.Since(began) < s.TTL()/3 { // else the machine has stalled
		require.Zero(t, n)
	}
	for range 3 {
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, harness.Hang, harness.Tick)
	}
	n := tap.Calls("LeaseKeepAlive")
	// A renewal that takes a sixth of the TTL is followed by another one.
	require.LessOrEqual(t, n, int(time.Since(began)/(s.TTL()/6)))
	s.Orphan()
	n = tap.Calls("LeaseKeepAlive")
	harness.Elapse(s.TTL())
	require.LessOrEqual(t, tap.Calls("LeaseKeepAlive"), n+1, "an orphaned lease must not be renewed")
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionClosed)
}
