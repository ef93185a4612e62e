package faults

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
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

// At rest, two refused renewals end the session. Close says why the lease stays.
func TestFault_J13_RightsTakenAwayAtRest(t *testing.T) {
	t.Parallel()
	worker, taken := withCustomers(t)
	var log logtest.Log
	s := newSession(t, worker(), etcdlock.WithTTL(6*time.Second), etcdlock.WithLogger(log.Logger()))
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
