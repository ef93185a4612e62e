package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows J6 and J14: a lease that a clone of this virtual machine has drawn too, and one that is granted late.

// cloneOf has a clone ask for the lease that call asks for.
func cloneOf(t *testing.T, clone *clientv3.Client, call *etcdtest.Call) clientv3.LeaseID {
	t.Helper()
	id := call.Request.(*pb.LeaseGrantRequest).ID
	_, err := pb.NewLeaseClient(clone.ActiveConnection()).LeaseGrant(harness.Ctx(t), &pb.LeaseGrantRequest{ID: id, TTL: 60})
	require.NoError(t, err)
	return clientv3.LeaseID(id)
}

// Two clones of a virtual machine ask for the same lease. Each must have a lease of its own, also if the first request
// of one of them was lost, so that it can't tell the other's lease from one of its own request. Otherwise both hold one
// lock, under one key, with one token.
func TestFault_J6_CloneGrantsTheSameLease(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]func(t *testing.T, clone *clientv3.Client, cloned chan<- clientv3.LeaseID) etcdtest.Fault{
		"before the first request": func(t *testing.T, clone *clientv3.Client, cloned chan<- clientv3.LeaseID) etcdtest.Fault {
			return func(ctx context.Context, call *etcdtest.Call) error {
				cloned <- cloneOf(t, clone, call)
				return call.Send(ctx)
			}
		},
		"the first request was lost": func(t *testing.T, clone *clientv3.Client, cloned chan<- clientv3.LeaseID) etcdtest.Fault {
			return func(_ context.Context, call *etcdtest.Call) error {
				cloned <- cloneOf(t, clone, call)
				return etcdtest.ErrTransport
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			clone := cluster.Client(t)
			cloned := make(chan clientv3.LeaseID, 1)
			tap := etcdtest.NewTap()
			tap.Next("LeaseGrant", fault(t, clone, cloned))
			s := newSession(t, cluster.Client(t, tap))
			require.NotEqual(t, <-cloned, s.Lease(), "the session has the clone's lease")
			require.NoError(t, s.Err())
			require.GreaterOrEqual(t, tap.Calls("LeaseGrant"), 2, "one that is answered late is asked for once more")
			// Its locks hang on the lease that it has.
			name := harness.LockName(t)
			h := mustLock(t, s, name)
			require.Equal(t, harness.ExclusiveKey(name, s.Lease()), h.Key())
			require.NoError(t, h.Check(harness.Ctx(t)))
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		})
	}
}

// The lease of a clone that exists at the first request is left alone.
func TestFault_J6_CloneKeepsItsLease(t *testing.T) {
	t.Parallel()
	clone := cluster.Client(t)
	var cloned clientv3.LeaseID
	tap := etcdtest.NewTap()
	tap.Next("LeaseGrant", func(ctx context.Context, call *etcdtest.Call) error {
		cloned = cloneOf(t, clone, call)
		return call.Send(context.WithoutCancel(ctx)) // etcd's refusal must arrive, however long the clone took
	})
	revoked := make(chan clientv3.LeaseID, 100)
	tap.Every("LeaseRevoke", func(ctx context.Context, call *etcdtest.Call) error {
		revoked <- clientv3.LeaseID(call.Request.(*pb.LeaseRevokeRequest).ID)
		return call.Send(ctx)
	})
	s, err := etcdlock.NewSession(harness.Ctx(t), cluster.Client(t, tap))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NotEmpty(t, revoked)
	for len(revoked) > 0 {
		require.NotEqual(t, cloned, <-revoked)
	}
	left, err := clone.TimeToLive(harness.Ctx(t), cloned)
	require.NoError(t, err)
	require.Positive(t, left.TTL, "the clone's lease must live on")
	_, err = clone.Revoke(harness.Ctx(t), cloned)
	require.NoError(t, err)
}

// A request for a lease is carried out seconds after its caller has given up. Its lease is revoked nevertheless.
func TestFault_J14_LateGrantIsRevoked(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	locks := newClient(t, c, etcdlock.WithTTL(time.Hour))
	late := tap.Postpone("LeaseGrant", 1)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	given := harness.Async(func() error { _, err := locks.Mutex("a").Lock(ctx); return err })
	<-late.Caught()
	cancel()
	require.ErrorIs(t, harness.Result(t, given), context.Canceled)
	harness.Elapse(5 * time.Second) // etcd lets a request live for about 7 s
	require.NoError(t, late.Send(harness.Ctx(t)))
	require.Eventually(t, func() bool { return len(harness.Leases(t, c)) == 0 }, harness.Hang, harness.Tick, "the late lease must not live for an hour")
}

// What stands in etcd's place says for some seconds that etcd is unavailable. Nobody can know of a request for a lease that
// has this answer whether it was carried out. However many leases may be there, etcd is asked for one after the other.
func TestFault_J14_NoStormOfRevocations(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	c := cluster.Client(t, tap)
	away := func(context.Context, *etcdtest.Call) error { return etcdtest.ErrTransport }
	tap.Every("LeaseGrant", away)
	tap.Every("LeaseRevoke", away)
	ctx, cancel := context.WithTimeout(harness.Ctx(t), 5*time.Second)
	defer cancel()
	_, err := etcdlock.NewSession(ctx, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	asked, revoked := tap.Calls("LeaseGrant"), tap.Calls("LeaseRevoke")
	require.Greater(t, asked, 1)
	require.LessOrEqual(t, revoked, 30)
	tap.Clear()
	require.Eventually(t, func() bool { return tap.Calls("LeaseRevoke") >= revoked+asked }, harness.Hang, harness.Tick, "each of them is revoked")
}
