package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/outcome"
)

// Row J19: etcd has an alarm. It answers, renews leases, and refuses new locks.

const (
	logRefuses = "WARN etcd refuses new locks"
	logTakes   = "INFO etcd takes new locks again"
)

// countErrors is a hook, and counts what metrics count as outcome="error".
func countErrors(n *atomic.Int64) etcdlock.Option {
	return etcdlock.WithHooks(&etcdlock.Hooks{Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
		if outcome.Of(i.Err) == outcome.Error {
			n.Add(1)
		}
	}})
}

// requests counts a client's requests from now on, but for those by which a session looks after its lease now and then.
func requests(w *harness.Wire) (count func() int) {
	calls := make(chan string, 1000)
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method != "LeaseTimeToLive" {
			calls <- method
		}
		return send(ctx)
	})
	return func() int { return len(calls) }
}

// The quota is used up. Readiness and the log say so, and what to do, from the first lock that is refused until etcd
// takes locks again.
func TestFault_J19_NoSpace(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.QuotaBackendBytes = 1 << 20 }))
	admin := own.Client(t)
	c, wire := harness.WiredClient(t, own)
	var log logtest.Log
	var counted atomic.Int64
	locks := newClient(t, c, etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger()), countErrors(&counted))
	h, err := locks.Mutex("held").Lock(harness.Ctx(t))
	require.NoError(t, err)
	count := requests(wire)
	asksNothing := func() bool { // beside what the session may ask for after a request that was sent twice
		before := count()
		require.NoError(t, locks.Ready(harness.Ctx(t)))
		return count() == before
	}
	require.Eventually(t, asksNothing, harness.Hang, harness.Tick, "in good times Ready asks nothing")

	for err = nil; err == nil; {
		_, err = admin.Put(harness.Ctx(t), "filler", strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	for range 3 {
		for _, lock := range []func(context.Context) (*etcdlock.Held, error){
			locks.Mutex("a").Lock, locks.Mutex("a").TryLock, locks.RWMutex("a").Lock, locks.Multi(etcdlock.Write("a"), etcdlock.Read("b")).Lock,
		} {
			_, err = lock(harness.Ctx(t))
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
			require.ErrorContains(t, err, "etcdctl alarm disarm")
		}
		rev := harness.Revision(t, admin)
		err = locks.Ready(harness.Ctx(t))
		require.ErrorIs(t, err, rpctypes.ErrNoSpace)
		require.ErrorContains(t, err, "not ready, etcd has refused new locks: ")
		require.ErrorContains(t, err, "etcdctl alarm disarm")
		require.Equal(t, rev, harness.Revision(t, admin))
	}
	require.Eventually(t, func() bool { return counted.Load() == 12 }, harness.Hang, harness.Tick)
	require.NoError(t, h.Session().Refresh(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)), "what is held can be released")
	require.ErrorIs(t, locks.Ready(harness.Ctx(t)), rpctypes.ErrNoSpace, "a release says nothing of new locks")
	err = newClient(t, own.Client(t), etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger())).Ready(harness.Ctx(t))
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	require.ErrorContains(t, err, "not ready, no session yet: ")
	log.Require(t, logtest.Up, logRefuses, logRefuses)

	_, err = admin.Compact(harness.Ctx(t), harness.Revision(t, admin), clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = admin.Defragment(harness.Ctx(t), own.Endpoints()[0])
	require.NoError(t, err)
	require.ErrorIs(t, locks.Ready(harness.Ctx(t)), rpctypes.ErrNoSpace, "until the alarm is lifted")
	_, err = admin.AlarmDisarm(harness.Ctx(t), &clientv3.AlarmMember{})
	require.NoError(t, err)
	rev, before := harness.Revision(t, admin), count()
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	require.Greater(t, count(), before)
	require.Eventually(t, asksNothing, harness.Hang, harness.Tick, "once it is over, Ready asks nothing")
	require.Equal(t, rev, harness.Revision(t, admin), "Ready has written nothing")
	require.NoError(t, harness.Take(t, locks.Mutex("a").Lock).Unlock(harness.Ctx(t)))
	log.Require(t, logtest.Up, logRefuses, logRefuses, logTakes)
}

// alarm sets or lifts an alarm, as etcd does by itself.
func alarm(t *testing.T, c *clientv3.Client, action pb.AlarmRequest_AlarmAction, what pb.AlarmType) {
	t.Helper()
	status, err := c.Status(harness.Ctx(t), c.Endpoints()[0])
	require.NoError(t, err)
	_, err = pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(harness.Ctx(t), &pb.AlarmRequest{Action: action, MemberID: status.Header.MemberId, Alarm: what})
	require.NoError(t, err)
}

// The members' data differ. All calls say so at once, also without a deadline; what was released meanwhile is removed
// when the alarm is lifted, and an Elector goes on.
func TestFault_J19_Corrupt(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	admin := own.Client(t)
	var log logtest.Log
	var counted atomic.Int64
	locks := newClient(t, own.Client(t), etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger()), countErrors(&counted))
	ctx := context.WithoutCancel(harness.Ctx(t)) // which has no deadline
	var held []*etcdlock.Held
	for _, name := range []string{"a", "b"} {
		h, err := locks.Mutex(name).Lock(ctx)
		require.NoError(t, err)
		held = append(held, h)
	}
	alarm(t, admin, pb.AlarmRequest_ACTIVATE, pb.AlarmType_CORRUPT)
	refused := func(call func() error) {
		t.Helper()
		err := harness.Result(t, harness.Async(call))
		require.ErrorIs(t, err, rpctypes.ErrCorrupt)
		require.ErrorContains(t, err, "etcdctl alarm list")
	}
	refused(func() error { _, err := locks.Mutex("c").Lock(ctx); return err })
	refused(func() error { return locks.Ready(ctx) })
	refused(func() error { _, err := locks.Mutex("c").TryLock(ctx); return err })
	require.Eventually(t, func() bool { return counted.Load() == 2 }, harness.Hang, harness.Tick)
	refused(func() error { return held[0].Unlock(ctx) })
	held[1].Release()
	refused(func() error { return newClient(t, own.Client(t)).Ready(ctx) })
	refused(func() error { _, err := etcdlock.NewSession(ctx, own.Client(t)); return err })
	led := make(chan struct{})
	ran := harness.Async(func() error {
		return locks.Elector("e").Run(ctx, func(context.Context, *etcdlock.Held) error { close(led); return nil })
	})
	const logCampaign = "WARN campaign failed, another one follows"
	log.Require(t, logtest.Up, logRefuses, logCampaign)

	alarm(t, admin, pb.AlarmRequest_DEACTIVATE, pb.AlarmType_CORRUPT)
	<-led
	require.NoError(t, harness.Result(t, ran))
	require.NoError(t, locks.Ready(ctx))
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, harness.Take(t, locks.Mutex(name).Lock).Unlock(ctx))
		harness.RequireGone(t, admin, name)
	}
	log.Require(t, logtest.Up, logRefuses, logCampaign, logTakes)
}

// The request by which etcd becomes full is refused, and yet etcd has carried it out. Nothing of it stays.
func TestFault_J19_RefusedAndCarriedOut(t *testing.T) {
	t.Parallel()
	c, wire := harness.WiredClient(t, cluster)
	s, name := newSession(t, c, etcdlock.WithTTL(10*time.Minute)), harness.LockName(t) // nothing is swept for long
	m := etcdlock.NewMutex(s, name)
	wire.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if err := send(ctx); err != nil || !strings.HasSuffix(method, "Txn") {
			return err
		}
		wire.OnUnary(nil)
		return rpctypes.ErrGRPCNoSpace
	})
	_, err := m.Lock(harness.Ctx(t))
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	harness.RequireGone(t, c, name)
	h := harness.Take(t, m.Lock)
	wire.OnUnary(func(ctx context.Context, _ string, _ any, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		return rpctypes.ErrGRPCNoSpace
	})
	_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+"-data", "")).Commit()
	require.ErrorIs(t, err, etcdlock.ErrOutcomeUnknown)
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	require.ErrorContains(t, err, "etcdctl alarm disarm")
	wire.OnUnary(nil)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// The right on the lock that was refused is taken away meanwhile. That is no alarm, and Ready does not ask for ever.
func TestFault_J19_RightsTakenAwayMeanwhile(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	root, end := as("root"), clientv3.GetPrefixRangeEnd("customers/")
	_, err := root.RoleGrantPermission(harness.Ctx(t), "worker", "customers/", end, clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	locks := newClient(t, as("worker"))
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	alarm(t, root, pb.AlarmRequest_ACTIVATE, pb.AlarmType_CORRUPT)
	require.NoError(t, locks.Ready(harness.Ctx(t)), "nothing was refused yet")
	_, err = locks.Mutex("customers/1").Lock(harness.Ctx(t))
	require.ErrorIs(t, err, rpctypes.ErrCorrupt)
	_, err = root.RoleRevokePermission(harness.Ctx(t), "worker", "customers/", end)
	require.NoError(t, err)
	require.ErrorIs(t, locks.Ready(harness.Ctx(t)), rpctypes.ErrCorrupt, "etcd looks for alarms before rights")
	alarm(t, root, pb.AlarmRequest_DEACTIVATE, pb.AlarmType_CORRUPT)
	require.NoError(t, locks.Ready(harness.Ctx(t)))
}
