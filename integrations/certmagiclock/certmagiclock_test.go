package certmagiclock

import (
	"context"
	"os"
	"testing"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

func TestLocker(t *testing.T) {
	locktest.Behaves(t, cluster, context.Canceled, func(locks *etcdlock.Client, name string) locktest.Lock {
		s := Wrap(nil, New(locks, ""))
		return locktest.Lock{
			Lock:   func(ctx context.Context) error { return s.Lock(ctx, name) },
			Unlock: func(ctx context.Context) error { return s.Unlock(ctx, name) },
		}
	})
}

// TryLock takes a lock that is free, and says no, without an error, for one that is not.
func TestLocker_TryLock(t *testing.T) {
	name := harness.LockName(t)
	one, two := Wrap(nil, New(locktest.Client(t, cluster.Client(t)), "")), New(locktest.Client(t, cluster.Client(t)), "")
	ok, err := one.(certmagic.TryLocker).TryLock(harness.Ctx(t), name)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = two.TryLock(harness.Ctx(t), name)
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, one.Unlock(harness.Ctx(t), name))
	ok, err = two.TryLock(harness.Ctx(t), name)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, two.Unlock(harness.Ctx(t), name))

	ctx, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	ok, err = two.TryLock(ctx, name)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, ok)
}

// A storage that renews locks of its own would renew a lock that nobody has.
func TestWrap_HidesTheLocksOfTheStorage(t *testing.T) {
	var s struct {
		certmagic.Storage
		certmagic.LockLeaseRenewer
	}
	_, renews := Wrap(s, New(nil, "")).(certmagic.LockLeaseRenewer)
	require.False(t, renews)
}
