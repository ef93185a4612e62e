// Package locktest has the test that every integration with a Lock and an Unlock must pass, and the etcd of their examples.
package locktest

import (
	"context"
	"log"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Etcd starts an etcd for an example. client is one of its clients.
func Etcd() (client *clientv3.Client, stop func()) {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	client, err = cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close()
		cluster.Close()
	}
}

// A Lock is one lock of an integration, as one process has it.
type Lock struct {
	Lock, Unlock func(ctx context.Context) error
}

// Client makes a Client that is closed with the test.
func Client(t testing.TB, c *clientv3.Client) *etcdlock.Client {
	t.Helper()
	locks := etcdlock.New(c, etcdlock.WithTTL(5*time.Second))
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

// Behaves tests the lock that make makes of a name, with two clients of the cluster. ended is the error of a Lock whose
// ctx has ended.
func Behaves(t *testing.T, cluster *etcdtest.Cluster, ended error, make func(locks *etcdlock.Client, name string) Lock) {
	etcd := cluster.Client(t)
	waiting := func(t *testing.T, name string, entries int) {
		require.Eventually(t, func() bool { return len(harness.Entries(t, etcd, name)) == entries }, harness.Hang, harness.Tick)
	}
	t.Run("exclusion", func(t *testing.T) {
		name := harness.LockName(t)
		one, two := make(Client(t, etcd), name), make(Client(t, etcd), name)
		require.NoError(t, one.Lock(harness.Ctx(t)))
		second := harness.Async(func() error { return two.Lock(harness.Ctx(t)) })
		waiting(t, name, 2)
		select {
		case err := <-second:
			require.Fail(t, "two clients have the lock", "%v", err)
		default:
		}
		require.NoError(t, one.Unlock(harness.Ctx(t)))
		require.NoError(t, harness.Result(t, second))
		require.NoError(t, two.Unlock(harness.Ctx(t)))
		require.Empty(t, harness.Entries(t, etcd, name))
		require.ErrorIs(t, two.Unlock(harness.Ctx(t)), etcdlock.ErrNotHeld)
	})
	t.Run("ctx ends", func(t *testing.T) {
		name := harness.LockName(t)
		one, two := make(Client(t, etcd), name), make(Client(t, etcd), name)
		require.NoError(t, one.Lock(harness.Ctx(t)))
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		second := harness.Async(func() error { return two.Lock(ctx) })
		waiting(t, name, 2)
		cancel()
		require.ErrorIs(t, harness.Result(t, second), ended)
		waiting(t, name, 1)
		require.ErrorIs(t, two.Unlock(harness.Ctx(t)), etcdlock.ErrNotHeld)
		require.NoError(t, one.Unlock(harness.Ctx(t)))
	})
	t.Run("loss", func(t *testing.T) {
		name := harness.LockName(t)
		locks := Client(t, etcd)
		one := make(locks, name)
		require.NoError(t, one.Lock(harness.Ctx(t)))
		Lose(t, locks)
		require.ErrorIs(t, one.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
		require.NoError(t, one.Lock(harness.Ctx(t)), "in the next session")
		require.NoError(t, one.Unlock(harness.Ctx(t)))
	})
	t.Run("refusal", func(t *testing.T) {
		_, as := harness.StartWithAuth(t)
		one := make(Client(t, as("worker")), "b/"+harness.LockName(t)) // worker has rights below a/ only
		require.ErrorIs(t, one.Lock(harness.Ctx(t)), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, one.Unlock(harness.Ctx(t)), etcdlock.ErrNotHeld)
		got, err := as("root").Get(harness.Ctx(t), "b/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Empty(t, got.Kvs)
	})
}

// Lose revokes the lease of the Client's session, and has the Client find that.
func Lose(t testing.TB, locks *etcdlock.Client) {
	t.Helper()
	s, err := locks.Session(harness.Ctx(t))
	require.NoError(t, err)
	_, err = s.Client().Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.ErrorIs(t, s.Refresh(harness.Ctx(t)), etcdlock.ErrSessionExpired)
}
