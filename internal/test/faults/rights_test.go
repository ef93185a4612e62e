package faults

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// Row J13: while a lock is held, the role loses the rights on it. etcd then refuses the renewals of the lease, and all
// further keys on it.

// withCustomers starts an etcd where the user worker may also write customers/, until taken is called.
func withCustomers(t *testing.T) (worker func() *clientv3.Client, taken func()) {
	t.Helper()
	_, as := harness.StartWithAuth(t)
	root, end := as("root"), clientv3.GetPrefixRangeEnd("customers/")
	_, err := root.RoleGrantPermission(harness.Ctx(t), "worker", "customers/", end, clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	return func() *clientv3.Client { return as("worker") }, func() {
		_, err := root.RoleRevokePermission(harness.Ctx(t), "worker", "customers/", end)
		require.NoError(t, err)
	}
}

// The next lock goes on in another session at once, and all say which key was in the way.
func TestFault_J13_RightsTakenAwayNextLock(t *testing.T) {
	t.Parallel()
	worker, taken := withCustomers(t)
	var log logtest.Log
	locks := newClient(t, worker(), etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger()))
	h, err := locks.Mutex("customers/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	beside, err := locks.Mutex("a/beside").Lock(harness.Ctx(t))
	require.NoError(t, err)
	taken()
	_, refused := worker().Txn(harness.Ctx(t)).Then(clientv3.OpPut("a/plain", "", clientv3.WithLease(h.Session().Lease()))).Commit()
	next, err := locks.Mutex("a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	if refused == nil { // etcd before 3.6.11
		require.NoError(t, errors.Join(h.Err(), beside.Err(), next.Err()))
		return
	}
	for _, h := range []*etcdlock.Held{h, beside} {
		require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
		require.ErrorContains(t, h.Err(), `no right to write the key "customers/1/`)
	}
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	_, err = locks.Mutex("customers/2").Lock(harness.Ctx(t))
	require.ErrorContains(t, err, `readwrite on the prefix "customers/2/"`)
	require.NoError(t, next.Check(harness.Ctx(t)), "a refusal of its own ends no session")
	require.NoError(t, next.Unlock(harness.Ctx(t)))
	require.Contains(t, strings.Join(log.Lines(), "\n"), `no right to write the key`)
	require.NotContains(t, strings.Join(log.Lines(), "\n"), "outage")
}

// A role is changed in two steps, and a Lock comes in between: it is granted after them, and the session with all its holds goes on.
func TestFault_J13_RightsTakenAwayForAMoment(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	root, end := as("root"), clientv3.GetPrefixRangeEnd("a/")
	tap := etcdtest.NewTap()
	locks := newClient(t, as("worker", tap), etcdlock.WithTTL(time.Minute))
	h, err := locks.Mutex("a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = root.RoleRevokePermission(harness.Ctx(t), "worker", "a/", end)
	require.NoError(t, err)
	if _, refused := as("worker").KeepAliveOnce(harness.Ctx(t), h.Session().Lease()); refused == nil { // etcd before 3.6.9
		return
	}
	var renewals atomic.Int32
	again, granted := make(chan struct{}), make(chan struct{})
	tap.OnKeepAliveRequest(func(ctx context.Context, _ *pb.LeaseKeepAliveRequest) error {
		switch renewals.Add(1) {
		case 1:
			return nil // and it is refused
		case 2:
			close(again)
		}
		select { // so that a slow machine does not have etcd refuse for longer than it may
		case <-granted:
		case <-ctx.Done():
		}
		return nil
	})
	locked := harness.InBackground(t, locks.Mutex("a/2").Lock)
	<-again
	_, err = root.RoleGrantPermission(harness.Ctx(t), "worker", "a/", end, clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	close(granted)
	require.Same(t, h.Session(), (<-locked).Session())
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// The two steps come while a Lock waits, and its queue is read in between: the Lock keeps its place.
func TestFault_J13_RightsTakenAwayForAMomentOfAWait(t *testing.T) {
	t.Parallel()
	_, as := harness.StartWithAuth(t)
	root, end := as("root"), clientv3.GetPrefixRangeEnd("a/")
	h, err := etcdlock.NewMutex(newSession(t, root), "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	tap := etcdtest.NewTap()
	locked := harness.InBackground(t, enqueued(t, newSession(t, as("worker", tap), etcdlock.WithTTL(time.Minute)), tap, "a/1").Wait)
	_, err = root.RoleRevokePermission(harness.Ctx(t), "worker", "a/", end)
	require.NoError(t, err)
	var reads atomic.Int32
	denied, granted := make(chan struct{}), make(chan struct{})
	tap.Every("Txn", func(ctx context.Context, c *etcdtest.Call) error {
		if c.Request.(*pb.TxnRequest).Success[0].GetRequestRange().GetSerializable() { // for the log
			return c.Send(ctx)
		}
		if reads.Add(1) == 1 {
			defer close(denied)
			return c.Send(ctx)
		}
		select { // so that a slow machine has its time
		case <-granted:
		case <-ctx.Done():
		}
		return c.Send(ctx)
	})
	var broken atomic.Bool
	tap.OnWatchResponse(func(context.Context, *pb.WatchResponse) error {
		if broken.Swap(true) {
			return nil
		}
		return io.EOF
	})
	<-denied
	_, err = root.RoleGrantPermission(harness.Ctx(t), "worker", "a/", end, clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	close(granted)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h = <-locked
	require.NotNil(t, h)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// At rest, renewals that are refused for a second end the session. Close says why the lease stays.
func TestFault_J13_RightsTakenAwayAtRest(t *testing.T) {
	t.Parallel()
	worker, taken := withCustomers(t)
	var log logtest.Log
	s := newSession(t, worker(), etcdlock.WithTTL(15*time.Second), etcdlock.WithLogger(log.Logger()))
	h, err := etcdlock.NewMutex(s, "customers/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	taken()
	if _, refused := worker().KeepAliveOnce(harness.Ctx(t), s.Lease()); refused == nil { // etcd before 3.6.9
		require.NoError(t, s.Refresh(harness.Ctx(t)))
		require.NoError(t, h.Err())
		return
	}
	<-s.Done()
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	require.Greater(t, time.Until(s.Deadline()), time.Second, "long before the deadline")
	require.ErrorContains(t, s.Err(), `no right to write the key "customers/1/`)
	require.ErrorContains(t, s.Close(), `no right to write the key "customers/1/`)
	require.Contains(t, strings.Join(log.Lines(), "\n"), `no right to write the key`)
	require.NotContains(t, strings.Join(log.Lines(), "\n"), "outage")
}

// What etcd refuses to a user is in the log once, in the words of the call's error: each prefix that the role needs, and
// for a transaction its own keys.
func TestFault_B2_RightsRefused(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	var log logtest.Log
	of := func(client *clientv3.Client) *etcdlock.Client {
		return newClient(t, client, etcdlock.WithTTL(time.Minute), etcdlock.WithLogger(log.Logger()))
	}
	locks := of(as("worker"))
	multi := locks.Multi(etcdlock.Write("a/1"), etcdlock.Read("c"), etcdlock.Write("b"))
	const needs = `(the client's role needs readwrite on the prefixes "a/1/", "c/" and "b/")`
	for _, lock := range []func(context.Context) (*etcdlock.Held, error){multi.Lock, multi.TryLock, locks.Mutex("d").Lock} {
		_, err := lock(harness.Ctx(t))
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		if !strings.Contains(err.Error(), `"d"`) {
			require.ErrorContains(t, err, needs)
		}
	}
	const refused = "WARN etcd refuses this client"
	log.Require(t, logtest.Up, refused)
	require.Contains(t, strings.ReplaceAll(log.Lines()[1], `\"`, `"`), `user=worker error="etcdlock: take "a/1, c, b": etcdserver: permission denied `+needs)

	locks = of(as("worker"))
	h, err := locks.Mutex("a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)
	put := clientv3.OpPut("b", "")
	_, nested := as("worker").Txn(harness.Ctx(t)).Then(clientv3.OpTxn(nil, []clientv3.Op{put}, nil)).Commit()
	want := []string{logtest.Up, refused, logtest.Up}
	if nested != nil { // else it is an etcd before 3.6.9
		_, err = h.Txn(harness.Ctx(t)).Then(put).Commit()
		require.ErrorContains(t, err, `readwrite on the prefix "a/2/", and rights on the transaction's own keys`)
		want = append(want, refused)
	}
	log.Require(t, want...)

	// Without a user, newer versions of etcd refuse the lease, and others the lock.
	nobody := own.Client(t)
	if _, err := nobody.Grant(harness.Ctx(t), 60); err == nil {
		want = append(want, logtest.Up)
	}
	_, err = of(nobody).Mutex("a/3").Lock(harness.Ctx(t))
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	log.Require(t, append(want, refused)...)
}
