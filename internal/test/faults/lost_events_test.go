package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Row C5, where what the event would have told is hard to find out.

// deaf is a session whose watches tell nothing.
func deaf(t *testing.T) (*etcdlock.Session, *etcdtest.Tap) {
	tap := etcdtest.NewTap()
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(10*time.Second))
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		if len(m.Events) > 0 {
			return etcdtest.ErrDrop
		}
		return nil
	})
	return s, tap
}

// enqueued is a place in the queue, whose watch is there.
func enqueued(t *testing.T, s *etcdlock.Session, tap *etcdtest.Tap, name string) *etcdlock.Ticket {
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) > 0 }, harness.Hang, harness.Tick)
	return tk
}

// A holder releases the lock and asks for it again. Its next entry has the same key, behind the waiter that was not told.
func TestFault_C5_LostEventOfAKeyThatIsUsedAnew(t *testing.T) {
	t.Parallel()
	name, holder := harness.LockName(t), newSession(t, cluster.Client(t))
	h := unhedged(t, etcdlock.NewMutex(holder, name).Lock)
	key := h.Key()
	s, tap := deaf(t)
	tk := enqueued(t, s, tap, name)
	unlocking := time.Now()
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	free := harness.Quick(unlocking)
	again, err := etcdlock.NewMutex(holder, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	h, err = tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h, err = again.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.True(t, key == h.Key() || !free, "else this is not the case")
}

// What waits asks from time to time also where etcd does not tell a session which keys hang on its lease: with auth, it
// tells nobody who may not read all of them.
func TestFault_C5_LostEventAndNoList(t *testing.T) {
	t.Parallel()
	name := harness.LockName(t)
	h := mustLock(t, newSession(t, cluster.Client(t)), name)
	s, tap := deaf(t)
	tk := enqueued(t, s, tap, name)
	tap.Every("LeaseTimeToLive", func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCPermissionDenied })
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	_, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
}
