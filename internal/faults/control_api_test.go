package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/harness"
)

func TestControl_A7_StrayKeys(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	_, err := c.Put(harness.Ctx(t), name+"/config", "")
	require.NoError(t, err)
	require.ErrorIs(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
	seen(t, "a key that is not an entry blocks the lock for ever")
}

func TestControl_B5_LockerPanics(t *testing.T) {
	c := cluster.Client(t)
	s := incumbent(t, c)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.Panics(t, concurrency.NewLocker(s, harness.LockName(t)).Lock)
	seen(t, "its sync.Locker panics when the session has ended")
}

func TestControl_D6_GuardBeforeLock(t *testing.T) {
	c := cluster.Client(t)
	m := concurrency.NewMutex(incumbent(t, c), harness.LockName(t))
	_, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpPut("guarded", "")).Commit()
	require.ErrorIs(t, err, rpctypes.ErrEmptyKey)
	seen(t, "if nothing is held, the guard makes the whole transaction fail (%v)", err)
}

func TestControl_F10_GrantedTTLIgnored(t *testing.T) {
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }))
	c := own.Client(t)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(1))
	require.NoError(t, err)
	defer s.Orphan()
	lease, err := c.TimeToLive(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.EqualValues(t, 2, lease.GrantedTTL)
	seen(t, "asked for 1 s, granted %d s: the session does not report it", lease.GrantedTTL)
}
