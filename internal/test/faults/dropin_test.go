package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// The tests named TestDropIn_ take the drop-in for etcd's package concurrency through the steps of the control test of
// the same row. They show what changes with the import path alone. Rows A5, C4 and E1 are of etcd's recipes for an
// RWMutex, which the drop-in does not have.

// changed logs what is different from the incumbent.
func changed(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("shown: "+format, args...)
}

// dropIn returns a session of the drop-in. It is closed when the test ends.
func dropIn(t *testing.T, c *clientv3.Client, opts ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, append([]concurrency.SessionOption{concurrency.WithTTL(60)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// dropInFree requires that another session of the drop-in gets the lock.
func dropInFree(t *testing.T, name string) {
	t.Helper()
	m := concurrency.NewMutex(dropIn(t, cluster.Client(t)), name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
}

// dropInHolds returns a Mutex that has the lock.
func dropInHolds(t *testing.T, c *clientv3.Client, name string) *concurrency.Mutex {
	t.Helper()
	m := concurrency.NewMutex(dropIn(t, c), name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	return m
}

func TestDropIn_A1_LostAcquireReply(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	m := concurrency.NewMutex(dropIn(t, cluster.Client(t, tap)), name)
	tap.Next("Txn", etcdtest.DropReply)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	dropInFree(t, name)
	changed(t, "Lock repeats the request and succeeds, Unlock leaves nothing")
}

func TestDropIn_A2_StaleUnlock(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	s := dropIn(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(harness.Ctx(t)))
	tap.Next("Txn", etcdtest.DropReply)
	require.NoError(t, a.Unlock(harness.Ctx(t)))
	require.NoError(t, b.Lock(harness.Ctx(t)))
	require.Equal(t, concurrency.ErrLockReleased, a.Unlock(harness.Ctx(t)))
	require.Equal(t, []string{b.Key()}, harness.Entries(t, c, name))
	changed(t, "Unlock repeats the request; a further Unlock touches nobody else's key")
}

func TestDropIn_A3_TryLockLeavesItsEntry(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	holder := dropInHolds(t, cluster.Client(t), name)
	c := cluster.Client(t, tap)
	m := concurrency.NewMutex(dropIn(t, c), name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	tap.Next("Txn", etcdtest.After(cancel))
	require.Error(t, m.TryLock(ctx))
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
	dropInFree(t, name)
	changed(t, "TryLock that fails leaves no key")
}

func TestDropIn_A4_ResignForgets(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	e := concurrency.NewElection(dropIn(t, c), name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "me"))
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	require.Equal(t, context.Canceled, e.Resign(ctx))
	harness.RequireGone(t, c, name)
	require.NoError(t, e.Resign(harness.Ctx(t)))
	changed(t, "Resign with an ended ctx fails, and the key is removed in the background")
}

func TestDropIn_A7_StrayKeys(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	_, err := c.Put(harness.Ctx(t), name+"/config", "")
	require.NoError(t, err)
	require.NoError(t, concurrency.NewMutex(dropIn(t, c), name).TryLock(harness.Ctx(t)))
	changed(t, "a key that is no entry blocks nobody")
}

func TestDropIn_B1_CtxOnPartition(t *testing.T) {
	t.Parallel()
	tap, proxy, name := etcdtest.NewTap(), cluster.Proxy(t), harness.LockName(t)
	c := cluster.Client(t)
	holder := dropInHolds(t, c, name)
	m := concurrency.NewMutex(dropIn(t, cluster.Client(t, tap, proxy)), name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	locking := harness.Async(func() error { return m.Lock(ctx) })
	waitsOn(t, tap, 1)
	proxy.Blackhole(etcdtest.Both)
	cancel()
	require.Equal(t, context.Canceled, harness.Result(t, locking))
	proxy.Heal()
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 1 }, harness.Hang, harness.Tick)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	changed(t, "Lock returns when its ctx ends, while the network is away, and its key is removed when that heals")
}

// The ctx of WithContext is that of the session, as its callers rely on.
func TestDropIn_B3_CreationCtx(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	s := dropIn(t, c, concurrency.WithContext(ctx))
	cancel()
	select {
	case <-s.Done():
	case <-time.After(harness.Hang):
		t.Fatal("the session does not end")
	}
	_ = s.Close() // its ctx has ended: it need not wait
	require.Eventually(t, func() bool { return len(harness.Leases(t, c)) == 0 }, harness.Hang, harness.Tick)
	changed(t, "the session ends with the ctx of its creation, as with etcd's package, but Close revokes the lease")
}

// A sync.Locker has no other way to say that there is no lock.
func TestDropIn_B5_LockerPanics(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s := dropIn(t, c)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.PanicsWithValue(t, concurrency.ErrSessionExpired, concurrency.NewLocker(s, harness.LockName(t)).Lock)
	changed(t, "the same: its sync.Locker panics when the session has ended")
}

func TestDropIn_B6_OwnLeaseGone(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	holder := dropInHolds(t, cluster.Client(t), name)
	c := cluster.Client(t, tap)
	s := dropIn(t, c)
	locking := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.Equal(t, concurrency.ErrSessionExpired, harness.Result(t, locking))
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	changed(t, "a waiter whose lease was revoked is told while the holder has the lock")
}

func TestDropIn_C1_IsolatedMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := own.Leader(harness.Ctx(t))
	require.NoError(t, err)
	x, y := own.Member((leader.Index()+1)%3), own.Member((leader.Index()+2)%3)
	only := func(m *etcdtest.Member) etcdtest.ClientOption {
		return etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = []string{m.Endpoint()} })
	}
	holder := dropInHolds(t, own.Client(t, only(y)), "a")
	tap := etcdtest.NewTap()
	c := own.Client(t, tap, only(x))
	m := concurrency.NewMutex(dropIn(t, c), "a")
	locking := harness.Async(func() error { return m.Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	c.SetEndpoints(own.Endpoints()...)
	x.Isolate()
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	x.Heal()
	changed(t, "a waiter whose watch is on a member that is cut off gets the lock from the others")
}

func TestDropIn_C2_CompactionThenReconnect(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap, proxy := etcdtest.NewTap(), own.Proxy(t)
	c := own.Client(t)
	holder := dropInHolds(t, c, "a")
	m := concurrency.NewMutex(dropIn(t, own.Client(t, tap, proxy)), "a")
	locking := harness.Async(func() error { return m.Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	before := harness.QueueIs(t, c, "a", 2)
	compactPast(t, c)
	proxy.Reset()
	harness.Hangs(t, locking, time.Second)
	require.Equal(t, before, harness.Entries(t, c, "a"))
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	changed(t, "a waiter that reconnects after a compaction keeps its place")
}

func TestDropIn_D1_OneSessionTwoHolders(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	s := dropIn(t, c)
	a, b := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, a.Lock(harness.Ctx(t)))
	locking := harness.Async(func() error { return b.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	harness.Hangs(t, locking, 100*time.Millisecond)
	require.NoError(t, a.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	require.Equal(t, []string{b.Key()}, harness.QueueIs(t, c, name, 1))
	changed(t, "two goroutines of one session, each with its Mutex, exclude each other")
}

func TestDropIn_D2_TryLockBesideAWaiter(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	holder := dropInHolds(t, cluster.Client(t), name)
	s := dropIn(t, cluster.Client(t, tap))
	locking := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	require.Equal(t, concurrency.ErrLocked, concurrency.NewMutex(s, name).TryLock(harness.Ctx(t)))
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	changed(t, "TryLock does not touch the entry of a waiter of its session")
}

func TestDropIn_D4_NestedNames(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	inner := dropInHolds(t, c, name+"/b")
	m := concurrency.NewMutex(dropIn(t, c), name)
	require.NoError(t, m.TryLock(harness.Ctx(t)))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	require.NoError(t, inner.Unlock(harness.Ctx(t)))
	changed(t, "the lock a can be taken while a/b is held")
}

func TestDropIn_D6_GuardBeforeLock(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	m := concurrency.NewMutex(dropIn(t, c), harness.LockName(t))
	resp, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpGet("guarded")).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
	changed(t, "if nothing is held, the guard is false")
}

func TestDropIn_E2_PhantomLeader(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t)
	leader := concurrency.NewElection(dropIn(t, c), name)
	require.NoError(t, leader.Campaign(harness.Ctx(t), "first"))
	s := dropIn(t, cluster.Client(t, tap))
	campaign := harness.Async(func() error { return concurrency.NewElection(s, name).Campaign(harness.Ctx(t), "second") })
	waitsOn(t, tap, 1)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.Equal(t, concurrency.ErrSessionExpired, harness.Result(t, campaign))
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	changed(t, "Campaign fails when the candidate's lease was revoked")
}

// dropInLate is late for holders of the drop-in.
func dropInLate(t *testing.T, n int, how cutting) {
	t.Helper()
	how.ttl = 3 * time.Second
	lateness := measureLateness(t)
	cuts := cut(t, n, how, func(ctx context.Context, c *clientv3.Client, name string) (holder, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(3))
		if err != nil {
			return holder{}, err
		}
		m := concurrency.NewMutex(s, name)
		err = m.Lock(ctx)
		return holder{s.Done(), m.Key(), nil}, err
	})
	late := beyondTheMargin(lateness(), how.ttl)
	for _, c := range cuts {
		require.False(t, c.told.After(c.gone.Add(late)), "a holder was told %v too late", c.told.Sub(c.gone))
	}
	changed(t, "%d of %d holders told in time", n, n)
}

func TestDropIn_F1_DeadlineCountedFromReply(t *testing.T) {
	t.Parallel()
	dropInLate(t, 24, cutting{delay: latency})
}

func TestDropIn_F1_RepliesDelayed(t *testing.T) {
	t.Parallel()
	dropInLate(t, 24, cutting{delay: 500 * time.Millisecond})
}

func TestDropIn_F2_FirstKeepAliveStuck(t *testing.T) {
	t.Parallel()
	dropInLate(t, 8, cutting{stuck: true})
}

// A session that ends while etcd does not answer may lead still, for all that anybody knows: ErrElectionNotLeader would
// be wrong. Etcd's package returns the error of ctx too.
func TestDropIn_ProclaimInAnOutage(t *testing.T) {
	t.Parallel()
	proxy, name := cluster.Proxy(t), harness.LockName(t)
	s := dropIn(t, cluster.Client(t, proxy), concurrency.WithTTL(6))
	e := concurrency.NewElection(s, name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	key := e.Key()
	proxy.Blackhole(etcdtest.Both)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	proclaim := harness.Async(func() error { return e.Proclaim(ctx, "b") })
	<-s.Done()
	harness.Hangs(t, proclaim, 100*time.Millisecond)
	cancel()
	require.Equal(t, context.Canceled, harness.Result(t, proclaim))
	require.Equal(t, key, e.Key())
	proxy.Heal()
	harness.RequireGone(t, cluster.Client(t), name) // its lease expires
	require.Equal(t, concurrency.ErrElectionNotLeader, e.Proclaim(harness.Ctx(t), "c"))
	require.Empty(t, e.Key())
}

// A Mutex returns no hold, and so tells of no loss: the session hears of the revocation with its next renewal.
func TestDropIn_F3_RevokedByAnother(t *testing.T) {
	t.Parallel()
	tap, renewed := etcdtest.NewTap(), make(chan struct{}, 100)
	tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error {
		renewed <- struct{}{}
		return nil
	})
	c := cluster.Client(t, tap)
	s := dropIn(t, c, concurrency.WithTTL(9))
	m := concurrency.NewMutex(s, harness.LockName(t))
	require.NoError(t, m.Lock(harness.Ctx(t)))
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	select {
	case <-s.Done():
	case <-time.After(harness.Hang):
		t.Fatal("the session does not end")
	}
	require.Equal(t, concurrency.ErrSessionExpired, m.Unlock(harness.Ctx(t)))
	changed(t, "the same: the session hears of it with the next renewal, after a third of the TTL")
}

func TestDropIn_F5_KeyDeleted(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t)
	m := dropInHolds(t, cluster.Client(t, tap), name)
	_, err := c.Delete(harness.Ctx(t), m.Key())
	require.NoError(t, err)
	resp, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpGet(name)).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
	sent := tap.Calls("Txn")
	err = m.Unlock(harness.Ctx(t))
	if err == nil {
		require.Greater(t, tap.Calls("Txn"), sent+1, "only a request that was sent twice may have removed the key itself")
	} else {
		require.Equal(t, concurrency.ErrLockReleased, err)
	}
	changed(t, "the holder is not told at once, as with etcd's package; Unlock says it")
}

func TestDropIn_F10_GrantedTTLIgnored(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }))
	c := own.Client(t)
	s := dropIn(t, c, concurrency.WithTTL(1))
	lease, err := c.TimeToLive(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.EqualValues(t, 2, lease.GrantedTTL)
	changed(t, "the same: asked for 1 s, granted %d s, and no call reports it, though the session goes by it", lease.GrantedTTL)
}
