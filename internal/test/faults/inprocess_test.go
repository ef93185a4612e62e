package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A service that has etcd in its own process uses it without a connection. It takes locks, waits for them beside a
// service with a connection, is told of a loss, and closes, as others do.
func TestFault_J14_EtcdInTheProcess(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	outside := own.Client(t)
	client := v3client.New(own.Member(0).Etcd().Server)
	defer client.Close()
	require.Nil(t, client.ActiveConnection())

	locks := newClient(t, client, etcdlock.WithTTL(2*time.Second))
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	h, err := locks.Mutex("a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	waits := harness.InBackground(t, newClient(t, outside).Mutex("a").Lock)
	require.Eventually(t, func() bool { return len(harness.Entries(t, outside, "a")) == 2 }, harness.Hang, harness.Tick)
	_, err = locks.Mutex("a").TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	was := h.Deadline()
	require.Eventually(t, func() bool { return h.Deadline().After(was) }, harness.Hang, harness.Tick, "the lease must be renewed")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	other := <-waits
	mine := harness.InBackground(t, locks.Mutex("a").Lock)
	require.Eventually(t, func() bool { return len(harness.Entries(t, outside, "a")) == 2 }, harness.Hang, harness.Tick)
	q, err := locks.Inspect(harness.Ctx(t), "a")
	require.NoError(t, err)
	require.Len(t, q.Entries, 2)
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	h = <-mine
	require.NoError(t, h.Check(harness.Ctx(t)))

	_, err = outside.Delete(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	<-h.Done()
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	h, err = locks.Mutex("b").Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = outside.Revoke(harness.Ctx(t), h.Session().Lease())
	require.NoError(t, err)
	<-h.Done()
	require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)

	// The grant of another session, whose ctx has ended.
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	_, err = locks.Mutex("b").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = locks.Mutex("b").Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, locks.Close())
	require.Empty(t, harness.Entries(t, outside, "b"))
}
