package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Row J11: answers that take longer than a request waits before it is sent again beside itself.

// slow is how late an answer comes: the request is sent again before that.
const slow = 350 * time.Millisecond

// slowly has all requests of that method answered late, from now on. Each answer arrives, also one that a machine which
// stalls has kept for longer than its request is waited for: without it nobody could tell who removed an entry.
func slowly(tap *etcdtest.Tap, method string) (stop func()) {
	return tap.Every(method, func(ctx context.Context, c *etcdtest.Call) error {
		err := c.Send(context.WithoutCancel(ctx))
		harness.Elapse(slow)
		return err
	})
}

// remove removes a key, as somebody else.
func remove(t *testing.T, key string) {
	t.Helper()
	_, err := cluster.Client(t).Delete(harness.Ctx(t), key)
	require.NoError(t, err)
}

// A hold that somebody removed was lost, and Unlock says so. One that was there was not.
func TestFault_J11_UnlockSlowly(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		for _, lost := range []bool{false, true} {
			t.Run(kind+map[bool]string{true: " lost"}[lost], func(t *testing.T) {
				t.Parallel()
				tap := etcdtest.NewTap()
				s := newSession(t, cluster.Client(t, tap))
				name := harness.LockName(t)
				h, err := lockFuncs(s, name)[kind](harness.Ctx(t))
				require.NoError(t, err)
				if lost {
					remove(t, h.Key())
				}
				slowly(tap, "Txn")
				err = h.Unlock(harness.Ctx(t))
				if lost {
					require.ErrorIs(t, err, etcdlock.ErrLost)
				} else {
					require.NoError(t, err)
				}
				harness.RequireGone(t, cluster.Client(t), name)
			})
		}
	}
}

// If the reply to one of the two never comes, nobody can tell who removed the entry.
func TestFault_J11_OneReplyIsLost(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	h := mustLock(t, newSession(t, cluster.Client(t, tap)), harness.LockName(t))
	slowly(tap, "Txn")
	tap.Next("Txn", func(ctx context.Context, c *etcdtest.Call) error {
		require.NoError(t, c.Send(context.WithoutCancel(ctx)))
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// Of several that are removed by one request, those that were lost are lost, and the others are not.
func TestFault_J11_SomeOfManySlowly(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	s := newSession(t, cluster.Client(t, tap))
	name := harness.LockName(t)
	var held []*etcdlock.Held
	for range 4 {
		h, err := etcdlock.NewRWMutex(s, name).RLock(harness.Ctx(t))
		require.NoError(t, err)
		held = append(held, h)
	}
	remove(t, held[1].Key())
	remove(t, held[2].Key())
	slowly(tap, "Txn")
	var errs []<-chan error
	for _, h := range held {
		errs = append(errs, harness.Async(func() error { return h.Unlock(harness.Ctx(t)) }))
	}
	for i, err := range errs {
		if err := harness.Result(t, err); i == 1 || i == 2 {
			require.ErrorIs(t, err, etcdlock.ErrLost, i)
		} else {
			require.NoError(t, err, i)
		}
	}
}

// A Lock that takes the removal along, and is answered late, tells it too.
func TestFault_J11_RemovedByTheNextLockSlowly(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	s := newSession(t, cluster.Client(t, tap))
	name := harness.LockName(t)
	m := etcdlock.NewMutex(s, name)
	h := mustLock(t, s, name)
	_, err := m.Enqueue(harness.Ctx(t)) // has the lock next, so that the removal of h is in no hurry
	require.NoError(t, err)
	enqueue := func() <-chan error {
		return harness.Async(func() error { _, err := m.Enqueue(harness.Ctx(t)); return err })
	}
	first := tap.Postpone("Txn", 1)
	one := enqueue()
	<-first.Caught()
	remove(t, h.Key())
	unlocked := harness.Async(func() error { return h.Unlock(harness.Ctx(t)) })
	<-h.Done()
	stop := slowly(tap, "Txn")
	two := enqueue()
	require.NoError(t, harness.Result(t, two))
	stop()
	require.ErrorIs(t, harness.Result(t, unlocked), etcdlock.ErrLost)
	require.NoError(t, first.Send(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, one))
}

// A Downgrade that is answered late notices that the exclusive entry was removed: others may have been in.
func TestFault_J11_DowngradeSlowly(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		tap := etcdtest.NewTap()
		s := newSession(t, cluster.Client(t, tap))
		h, err := etcdlock.NewRWMutex(s, harness.LockName(t)).Lock(harness.Ctx(t))
		require.NoError(t, err)
		if lost {
			remove(t, h.Key())
		}
		slowly(tap, "Txn")
		err = h.Downgrade(harness.Ctx(t))
		if lost {
			require.ErrorIs(t, err, etcdlock.ErrLost)
		} else {
			require.NoError(t, err)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		}
	}
}
