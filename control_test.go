package etcdlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// The control tests repeat the steps of the tests named TestFault_ with etcd's own packages
// concurrency and experimental/recipes (the incumbent). A control test passes if the
// incumbent fails, which shows that the fault test of the same row can fail. The log of
// seen goes into docs/faults.md.

// seen logs how the incumbent failed.
func seen(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("seen: "+format, args...)
}

// incumbent returns a session of the incumbent. Its lease is revoked when the test ends.
func incumbent(t *testing.T, c *clientv3.Client, opts ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, append([]concurrency.SessionOption{concurrency.WithTTL(60)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(s.Orphan)
	return s
}

// waitsOn waits until n watches were requested through tap.
func waitsOn(t *testing.T, tap *etcdtest.Tap, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) >= n }, hang, tick)
}

// lockedFor requires that a new session can't get the lock.
func lockedFor(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, cluster.Client(t)), name).Lock(ctx), context.DeadlineExceeded)
}

func TestControl_A1_LostAcquireReply(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	m := concurrency.NewMutex(incumbent(t, c), name)
	tap.Next("Txn", etcdtest.DropReply)
	require.Error(t, m.Lock(testCtx(t)))
	require.ErrorIs(t, m.Unlock(testCtx(t)), concurrency.ErrLockReleased)
	require.Len(t, entries(t, c, name), 1)
	lockedFor(t, name)
	seen(t, "Lock fails, Unlock says that the lock is released, but the key stays and blocks all others")
}

func TestControl_A2_StaleUnlock(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	s := incumbent(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(testCtx(t)))
	tap.Next("DeleteRange", etcdtest.DropReply)
	require.Error(t, a.Unlock(testCtx(t)))
	require.NoError(t, b.Lock(testCtx(t)))
	require.Len(t, entries(t, c, name), 1)
	require.NoError(t, a.Unlock(testCtx(t)))
	require.Empty(t, entries(t, c, name))
	seen(t, "the repeated Unlock deletes the key of the next holder, which is not told")
}

func TestControl_A3_TryLockLeavesItsEntry(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(testCtx(t)))
	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	tap.Next("Txn", etcdtest.After(cancel))
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(ctx), context.Canceled)
	require.NoError(t, holder.Unlock(testCtx(t)))
	require.Len(t, entries(t, c, name), 1)
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, cluster.Client(t)), name).TryLock(testCtx(t)), concurrency.ErrLocked)
	seen(t, "TryLock fails, but its key stays and becomes the owner")
}

func TestControl_A4_ResignForgets(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	e := concurrency.NewElection(incumbent(t, c), name)
	require.NoError(t, e.Campaign(testCtx(t), "me"))
	ctx, cancel := context.WithCancel(testCtx(t))
	cancel()
	require.ErrorIs(t, e.Resign(ctx), context.Canceled)
	require.NoError(t, e.Resign(testCtx(t)))
	require.Len(t, entries(t, c, name), 1)
	seen(t, "Resign with an ended ctx fails, the second Resign returns nil, and the key stays")
}

func TestControl_A5_UnlockFailsOnce(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	m := recipe.NewRWMutex(incumbent(t, c), name)
	require.Panics(t, func() { _ = recipe.NewRWMutex(incumbent(t, c), name).Unlock() })
	require.NoError(t, m.Lock())
	tap.Next("DeleteRange", etcdtest.FailBefore)
	require.Error(t, m.Unlock())
	require.NoError(t, m.Unlock())
	require.Len(t, entries(t, c, name), 1)
	seen(t, "RWMutex: Unlock fails, the second Unlock returns nil, and the key stays; without Lock it panics")
}

func TestControl_B1_CtxOnPartition(t *testing.T) {
	t.Parallel()
	tap, proxy, name := etcdtest.NewTap(), cluster.Proxy(t), lockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(testCtx(t)))
	m := concurrency.NewMutex(incumbent(t, cluster.Client(t, tap, proxy)), name)
	ctx, cancel := context.WithCancel(testCtx(t))
	locking := async(func() error { return m.Lock(ctx) })
	waitsOn(t, tap, 1)
	proxy.Blackhole(etcdtest.Both)
	cancel()
	hangs(t, locking, 2*time.Second)
	proxy.Heal()
	require.Error(t, result(t, locking))
	seen(t, "Lock is blocked 2 s after its ctx has ended, until the network heals")
}

func TestControl_B3_CreationCtx(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	ctx, cancel := context.WithCancel(testCtx(t))
	defer cancel()
	s := incumbent(t, c, concurrency.WithContext(ctx))
	cancel()
	select {
	case <-s.Done():
	case <-time.After(hang):
		t.Fatal("the session does not end")
	}
	require.ErrorIs(t, s.Close(), context.Canceled)
	require.Len(t, leases(t, c), 1)
	seen(t, "the session ends with the ctx of its creation, Close fails, and the lease stays")
}

func TestControl_B6_OwnLeaseGone(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(testCtx(t)))
	c := cluster.Client(t, tap)
	s := incumbent(t, c)
	locking := async(func() error { return concurrency.NewMutex(s, name).Lock(testCtx(t)) })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	hangs(t, locking, time.Second)
	require.NoError(t, holder.Unlock(testCtx(t)))
	require.ErrorIs(t, result(t, locking), concurrency.ErrSessionExpired)
	seen(t, "a waiter whose lease was revoked waits until the holder unlocks")
}

func TestControl_D1_OneSessionTwoHolders(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	s := incumbent(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(testCtx(t)))
	require.NoError(t, b.Lock(testCtx(t)))
	require.NoError(t, b.Unlock(testCtx(t)))
	require.Empty(t, entries(t, c, name))
	seen(t, "two goroutines of one session hold the lock at once; the first Unlock frees it")
}

func TestControl_D2_TryLockBesideAWaiter(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(testCtx(t)))
	s := incumbent(t, cluster.Client(t, tap))
	locking := async(func() error { return concurrency.NewMutex(s, name).Lock(testCtx(t)) })
	waitsOn(t, tap, 1)
	require.ErrorIs(t, concurrency.NewMutex(s, name).TryLock(testCtx(t)), concurrency.ErrLocked)
	require.NoError(t, holder.Unlock(testCtx(t)))
	require.ErrorIs(t, result(t, locking), concurrency.ErrSessionExpired)
	select {
	case <-s.Done():
		t.Fatal("the session must be alive")
	default:
	}
	seen(t, "TryLock removes the entry of a waiter of its session, which is then told that the session expired")
}

func TestControl_D4_NestedNames(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	require.NoError(t, concurrency.NewMutex(incumbent(t, c), name+"/b").Lock(testCtx(t)))
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(testCtx(t)), concurrency.ErrLocked)
	seen(t, "the lock a can't be taken because a/b is held")
}

func TestControl_E1_TwoWriters(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	first := recipe.NewRWMutex(incumbent(t, c), name)
	require.NoError(t, first.Lock())
	var locking [2]<-chan error
	var sessions [2]*concurrency.Session
	for i := range locking {
		tap := etcdtest.NewTap()
		sessions[i] = incumbent(t, cluster.Client(t, tap))
		m := recipe.NewRWMutex(sessions[i], name)
		locking[i] = async(m.Lock)
		waitsOn(t, tap, 1)
	}
	_, err := c.Revoke(testCtx(t), sessions[0].Lease())
	require.NoError(t, err)
	require.NoError(t, first.Unlock())
	require.NoError(t, result(t, locking[0]))
	require.NoError(t, result(t, locking[1]))
	require.Len(t, entries(t, c, name), 1)
	seen(t, "RWMutex: two writers hold the lock at once, one of them without a key")
}

func TestControl_E2_PhantomLeader(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t)
	leader := concurrency.NewElection(incumbent(t, c), name)
	require.NoError(t, leader.Campaign(testCtx(t), "first"))
	s := incumbent(t, cluster.Client(t, tap))
	campaign := async(func() error { return concurrency.NewElection(s, name).Campaign(testCtx(t), "second") })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	require.NoError(t, leader.Resign(testCtx(t)))
	require.NoError(t, result(t, campaign))
	require.Empty(t, entries(t, c, name))
	seen(t, "Campaign elects a candidate that has no key and no lease")
}

func TestControl_C1_IsolatedMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := own.Leader(testCtx(t))
	require.NoError(t, err)
	x, y := own.Member((leader.Index()+1)%3), own.Member((leader.Index()+2)%3)
	only := func(m *etcdtest.Member) etcdtest.ClientOption {
		return etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = []string{m.Endpoint()} })
	}
	holder := concurrency.NewMutex(incumbent(t, own.Client(t, only(y))), "a")
	require.NoError(t, holder.Lock(testCtx(t)))
	tap := etcdtest.NewTap()
	c := own.Client(t, tap, only(x))
	s := incumbent(t, c)
	locking := async(func() error { return concurrency.NewMutex(s, "a").Lock(testCtx(t)) })
	waitsOn(t, tap, 1)
	c.SetEndpoints(own.Endpoints()...)
	x.Isolate()
	require.NoError(t, holder.Unlock(testCtx(t)))
	hangs(t, locking, 5*time.Second)
	x.Heal()
	require.NoError(t, result(t, locking))
	seen(t, "a waiter whose watch is on a member that is cut off hangs until the cluster heals")
}

// compactPast writes other keys and compacts their history.
func compactPast(t *testing.T, c *clientv3.Client) {
	t.Helper()
	var rev int64
	for i := range 5 {
		put, err := c.Put(testCtx(t), fmt.Sprint("elsewhere", i), "")
		require.NoError(t, err)
		rev = put.Header.Revision
	}
	_, err := c.Compact(testCtx(t), rev)
	require.NoError(t, err)
}
