package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/harness"
)

// The first request is stuck. It arrives after the lock that the second request took was
// released: the key was not used again, and the late write is removed.
func TestFault_A1_I6_HedgedRequestComesLate(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	c := cluster.Client(t)
	s := newSession(t, cluster.Client(t, tap))
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try"} {
		name := harness.LockName(t)
		late := tap.Postpone("Txn", 1)
		h, err := lockFuncs(s, name)[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		require.NoError(t, h.Check(harness.Ctx(t)))
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h2, err := lockFuncs(s, name)[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		require.NotEqual(t, h.Key(), h2.Key(), "a key must not be used again while a late write of it is possible")
		require.NoError(t, late.Send(harness.Ctx(t)))
		require.NoError(t, h2.Check(harness.Ctx(t)))
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
		harness.RequireGone(t, c, name)
		requireFree(t, name)
	}
}

// The reply to an Unlock is late, and its repetition finds nothing to remove: that is not a
// loss.
func TestFault_A2_HedgedUnlock(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	c := cluster.Client(t)
	s := newSession(t, cluster.Client(t, tap))
	for kind, lock := range lockFuncs(s, harness.LockName(t)) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err, kind)
		sent := tap.Next("Txn", func(ctx context.Context, c *etcdtest.Call) error {
			if err := c.Send(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, h.Unlock(harness.Ctx(t)), kind)
		<-sent
		got, err := c.Get(harness.Ctx(t), h.Key(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.Zero(t, got.Count)
	}
}

// valueOf returns the value of the hold's entry.
func valueOf(t *testing.T, c *clientv3.Client, h *etcdlock.Held) string {
	t.Helper()
	resp, err := c.Get(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	return string(resp.Kvs[0].Value)
}

// Late writes of an acquisition that is over are found, also in a namespace; see also
// TestFault_A1_LateWriteAfterTheSearch.
func TestFault_A1_LateWritesAreSwept(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "ns/"} {
		client, w := harness.WiredClient(t, cluster)
		if prefix != "" {
			inNamespace(client, prefix)
		}
		s := newSession(t, client, etcdlock.WithTTL(3*time.Second))
		name := harness.LockName(t)
		w.LoseReply("Txn")
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		raw := cluster.Client(t)
		late := prefix + harness.SharedKey(name, s.Lease()) + "-3"
		_, err = raw.Put(harness.Ctx(t), late, valueOf(t, client, h), clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		harness.RequireGone(t, raw, prefix+name)
		require.NoError(t, s.Err())
	}
}
