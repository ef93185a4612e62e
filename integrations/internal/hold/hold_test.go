package hold

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

// One goroutine of a process has lost its lock and does not know it yet, and another goroutine has the lock. Whoever of
// them unlocks first, nobody else gets the lock before the second goroutine has unlocked too.
func TestByName_UnlockOfAnotherGoroutine(t *testing.T) {
	name := harness.LockName(t)
	locks := locktest.Client(t, cluster.Client(t))
	var b ByName
	lock := func() {
		h, err := locks.Mutex(name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		b.Add(name, h)
	}
	lock()
	locktest.Lose(t, locks)
	lock()
	require.ErrorIs(t, b.Unlock(harness.Ctx(t), name), etcdlock.ErrLost)
	_, err := locks.Mutex(name).TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.NoError(t, b.Unlock(harness.Ctx(t), name))
	harness.QueueIs(t, cluster.Client(t), name, 0)
	require.ErrorIs(t, b.Unlock(harness.Ctx(t), name), etcdlock.ErrNotHeld)
}

// Etcd is away for longer than Try waits, and nothing of the lock is in etcd when it is back.
func TestTry_EtcdAway(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	proxy := cluster.Proxy(t)
	locks := locktest.Client(t, cluster.Client(t, proxy))
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	name := harness.LockName(t)
	proxy.Hold(etcdtest.Both)
	tried := harness.Async(func() error { _, err := Try(t.Context(), locks.Mutex(name)); return err })
	require.ErrorIs(t, harness.Result(t, tried), context.DeadlineExceeded)
	proxy.Heal()
	require.NoError(t, locks.Close())
	require.Empty(t, harness.Entries(t, c, name))
}

func TestUnlockAfter(t *testing.T) {
	c := cluster.Client(t)
	take := func(t *testing.T) (*etcdlock.Client, string, *etcdlock.Held) {
		name := harness.LockName(t)
		locks := locktest.Client(t, c)
		h, err := locks.Mutex(name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		return locks, name, h
	}
	t.Run("too early", func(t *testing.T) {
		locks, name, h := take(t)
		require.NoError(t, UnlockAfter(harness.Ctx(t), h, time.Now(), time.Hour))
		require.NoError(t, h.Err())
		require.Len(t, harness.Entries(t, c, name), 1)
		require.NoError(t, locks.Close())
		require.Empty(t, harness.Entries(t, c, name), "Close releases it all the same")
	})
	t.Run("a little early", func(t *testing.T) {
		_, name, h := take(t)
		require.NoError(t, UnlockAfter(harness.Ctx(t), h, time.Now(), 20*time.Millisecond))
		require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 0 }, harness.Hang, harness.Tick)
	})
	t.Run("late", func(t *testing.T) {
		_, name, h := take(t)
		require.NoError(t, UnlockAfter(harness.Ctx(t), h, time.Now().Add(-time.Hour), time.Hour))
		harness.QueueIs(t, c, name, 0)
	})
	t.Run("lost", func(t *testing.T) {
		locks, _, h := take(t)
		locktest.Lose(t, locks)
		require.ErrorIs(t, UnlockAfter(harness.Ctx(t), h, time.Now(), time.Hour), etcdlock.ErrLost)
	})
}

func TestJoin(t *testing.T) {
	why := errors.New("why")
	other, end := context.WithCancelCause(context.Background())
	ctx, cancel := Join(context.Background(), other)
	defer cancel()
	require.NoError(t, ctx.Err())
	end(why)
	<-ctx.Done()
	require.Equal(t, why, context.Cause(ctx))

	parent, stop := context.WithCancel(context.Background())
	ctx, cancel = Join(parent, context.Background())
	defer cancel()
	stop()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
