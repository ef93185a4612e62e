package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
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
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) >= n }, harness.Hang, harness.Tick)
}

// lockedFor requires that a new session can't get the lock.
func lockedFor(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, cluster.Client(t)), name).Lock(ctx), context.DeadlineExceeded)
}

func TestControl_A1_LostAcquireReply(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	m := concurrency.NewMutex(incumbent(t, c), name)
	tap.Next("Txn", etcdtest.DropReply)
	require.Error(t, m.Lock(harness.Ctx(t)))
	require.ErrorIs(t, m.Unlock(harness.Ctx(t)), concurrency.ErrLockReleased)
	require.Len(t, harness.Entries(t, c, name), 1)
	lockedFor(t, name)
	seen(t, "Lock fails, Unlock says that the lock is released, but the key stays and blocks all others")
}

func TestControl_A2_StaleUnlock(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	s := incumbent(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(harness.Ctx(t)))
	tap.Next("DeleteRange", etcdtest.DropReply)
	require.Error(t, a.Unlock(harness.Ctx(t)))
	require.NoError(t, b.Lock(harness.Ctx(t)))
	require.Len(t, harness.Entries(t, c, name), 1)
	require.NoError(t, a.Unlock(harness.Ctx(t)))
	require.Empty(t, harness.Entries(t, c, name))
	seen(t, "the repeated Unlock deletes the key of the next holder, which is not told")
}

func TestControl_A3_TryLockLeavesItsEntry(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	tap.Next("Txn", etcdtest.After(cancel))
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(ctx), context.Canceled)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.Len(t, harness.Entries(t, c, name), 1)
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, cluster.Client(t)), name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
	seen(t, "TryLock fails, but its key stays and becomes the owner")
}

func TestControl_A4_ResignForgets(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	e := concurrency.NewElection(incumbent(t, c), name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "me"))
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	require.ErrorIs(t, e.Resign(ctx), context.Canceled)
	require.NoError(t, e.Resign(harness.Ctx(t)))
	require.Len(t, harness.Entries(t, c, name), 1)
	seen(t, "Resign with an ended ctx fails, the second Resign returns nil, and the key stays")
}

func TestControl_A5_UnlockFailsOnce(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	m := recipe.NewRWMutex(incumbent(t, c), name)
	require.Panics(t, func() { _ = recipe.NewRWMutex(incumbent(t, c), name).Unlock() })
	require.NoError(t, m.Lock())
	tap.Next("DeleteRange", etcdtest.FailBefore)
	require.Error(t, m.Unlock())
	require.NoError(t, m.Unlock())
	require.Len(t, harness.Entries(t, c, name), 1)
	seen(t, "RWMutex: Unlock fails, the second Unlock returns nil, and the key stays; without Lock it panics")
}

func TestControl_B1_CtxOnPartition(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, proxy, name := etcdtest.NewTap(), cluster.Proxy(t), harness.LockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	m := concurrency.NewMutex(incumbent(t, cluster.Client(t, tap, proxy)), name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	locking := harness.Async(func() error { return m.Lock(ctx) })
	waitsOn(t, tap, 1)
	proxy.Blackhole(etcdtest.Both)
	cancel()
	harness.Hangs(t, locking, 2*time.Second)
	proxy.Heal()
	require.Error(t, harness.Result(t, locking))
	seen(t, "Lock is blocked 2 s after its ctx has ended, until the network heals")
}

func TestControl_B3_CreationCtx(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	s := incumbent(t, c, concurrency.WithContext(ctx))
	cancel()
	select {
	case <-s.Done():
	case <-time.After(harness.Hang):
		t.Fatal("the session does not end")
	}
	require.ErrorIs(t, s.Close(), context.Canceled)
	require.Len(t, harness.Leases(t, c), 1)
	seen(t, "the session ends with the ctx of its creation, Close fails, and the lease stays")
}

func TestControl_B6_OwnLeaseGone(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	c := cluster.Client(t, tap)
	s := incumbent(t, c)
	locking := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	harness.Hangs(t, locking, time.Second)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.ErrorIs(t, harness.Result(t, locking), concurrency.ErrSessionExpired)
	seen(t, "a waiter whose lease was revoked waits until the holder unlocks")
}

func TestControl_D1_OneSessionTwoHolders(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	s := incumbent(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(harness.Ctx(t)))
	require.NoError(t, b.Lock(harness.Ctx(t)))
	require.NoError(t, b.Unlock(harness.Ctx(t)))
	require.Empty(t, harness.Entries(t, c, name))
	seen(t, "two goroutines of one session hold the lock at once; the first Unlock frees it")
}

func TestControl_D2_TryLockBesideAWaiter(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	holder := concurrency.NewMutex(incumbent(t, cluster.Client(t)), name)
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	s := incumbent(t, cluster.Client(t, tap))
	locking := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	require.ErrorIs(t, concurrency.NewMutex(s, name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.ErrorIs(t, harness.Result(t, locking), concurrency.ErrSessionExpired)
	select {
	case <-s.Done():
		t.Fatal("the session must be alive")
	default:
	}
	seen(t, "TryLock removes the entry of a waiter of its session, which is then told that the session expired")
}

func TestControl_D4_NestedNames(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	require.NoError(t, concurrency.NewMutex(incumbent(t, c), name+"/b").Lock(harness.Ctx(t)))
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
	seen(t, "the lock a can't be taken because a/b is held")
}

func TestControl_E1_TwoWriters(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	first := recipe.NewRWMutex(incumbent(t, c), name)
	require.NoError(t, first.Lock())
	var locking [2]<-chan error
	var sessions [2]*concurrency.Session
	for i := range locking {
		tap := etcdtest.NewTap()
		sessions[i] = incumbent(t, cluster.Client(t, tap))
		m := recipe.NewRWMutex(sessions[i], name)
		locking[i] = harness.Async(m.Lock)
		waitsOn(t, tap, 1)
	}
	_, err := c.Revoke(harness.Ctx(t), sessions[0].Lease())
	require.NoError(t, err)
	require.NoError(t, first.Unlock())
	require.NoError(t, harness.Result(t, locking[0]))
	require.NoError(t, harness.Result(t, locking[1]))
	require.Len(t, harness.Entries(t, c, name), 1)
	seen(t, "RWMutex: two writers hold the lock at once, one of them without a key")
}

func TestControl_E2_PhantomLeader(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t)
	leader := concurrency.NewElection(incumbent(t, c), name)
	require.NoError(t, leader.Campaign(harness.Ctx(t), "first"))
	s := incumbent(t, cluster.Client(t, tap))
	campaign := harness.Async(func() error { return concurrency.NewElection(s, name).Campaign(harness.Ctx(t), "second") })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
	require.Empty(t, harness.Entries(t, c, name))
	seen(t, "Campaign elects a candidate that has no key and no lease")
}

func TestControl_A7_StrayKeys(t *testing.T) {
	sample.OnlyInFull(t)
	c := cluster.Client(t)
	name := harness.LockName(t)
	_, err := c.Put(harness.Ctx(t), name+"/config", "")
	require.NoError(t, err)
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
	seen(t, "a key that is not an entry blocks the lock for ever")
}

func TestControl_B5_LockerPanics(t *testing.T) {
	sample.OnlyInFull(t)
	c := cluster.Client(t)
	s := incumbent(t, c)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.Panics(t, concurrency.NewLocker(s, harness.LockName(t)).Lock)
	seen(t, "its sync.Locker panics when the session has ended")
}

func TestControl_D6_GuardBeforeLock(t *testing.T) {
	sample.OnlyInFull(t)
	c := cluster.Client(t)
	m := concurrency.NewMutex(incumbent(t, c), harness.LockName(t))
	_, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpPut("guarded", "")).Commit()
	require.ErrorIs(t, err, rpctypes.ErrEmptyKey)
	seen(t, "if nothing is held, the guard makes the whole transaction fail (%v)", err)
}
