package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A session has expired by its own clock, and etcd still has the lease, as after an outage, in which no lease expires. The
// process makes room for its successor: it calls Orphan, and closes its Client. The successor has adopted the lock by then.
// So the Client must not revoke the lease, else somebody else has the lock before the successor is told.
func TestAdopt_OrphanedAfterItExpired(t *testing.T) {
	t.Parallel()
	tap, other, name := etcdtest.NewTap(), cluster.Client(t), harness.LockName(t)
	locks := newClient(t, cluster.Client(t, tap), etcdlock.WithTTL(2*time.Second))
	h := harness.Take(t, locks.Mutex(name).Lock)
	s := h.Session()
	_, err := other.KeepAlive(harness.Ctx(t), s.Lease()) // etcd keeps the lease
	require.NoError(t, err)
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error { return etcdtest.ErrTransport })
	harness.RequireTold(t, h.Done())
	require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)

	s2 := successor(t, s, other)
	h2, err := s2.Adopt(harness.Ctx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), h2.Token())
	require.NoError(t, locks.Close())
	require.NoError(t, h2.Check(harness.Ctx(t)), "the Client has revoked the lease")
}
