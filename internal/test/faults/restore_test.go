package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A snapshot is restored while locks are held and waited for. Owners of newer entries are told of the loss. If the
// revision was raised, entries older than the snapshot are not affected; else see TestFault_J2_RestoreToLowerRevisions.
func TestFault_F5_SnapshotRestored(t *testing.T) {
	t.Parallel()
	for _, bump := range []uint64{0, 1_000_000} {
		t.Run(fmt.Sprint("bump ", bump), func(t *testing.T) {
			t.Parallel()
			own := etcdtest.Start(t)
			lock := func(s *etcdlock.Session, name string) *etcdlock.Held {
				h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
				require.NoError(t, err)
				h.Done()
				return h
			}
			enqueue := func(s *etcdlock.Session, name string) *etcdlock.Ticket {
				tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
				require.NoError(t, err)
				harness.NotGranted(t, tk, len(harness.Entries(t, s.Client(), name))-1)
				return tk
			}
			lasting := etcdlock.WithTTL(20 * time.Second) // longer than a restore takes on a busy machine
			older := newSession(t, own.Client(t), lasting)
			held, back := lock(older, "a"), lock(older, "b")
			waits := enqueue(newSession(t, own.Client(t), lasting), "a")
			restore := harness.Snapshot(t, own)
			newer := newSession(t, own.Client(t))
			entryGone, leaseGone := lock(older, "c"), lock(newer, "d")
			placeGone, allGone := enqueue(older, "a"), enqueue(newer, "a")
			require.NoError(t, back.Unlock(harness.Ctx(t)))
			c := own.Client(t)
			for range 20 {
				_, err := c.Put(harness.Ctx(t), "elsewhere", "")
				require.NoError(t, err)
			}
			last := lock(older, "e")

			restore(bump)
			restored := time.Now()
			for _, h := range []*etcdlock.Held{entryGone, leaseGone, last} {
				select {
				case <-h.Done():
				case <-time.After(harness.Hang):
					t.Fatal("the holder is not told of the loss")
				}
				require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
				switch {
				case bump == 0:
					require.ErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
				case h != leaseGone:
					require.NotErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
				default:
					harness.RequireCause(t, restored, h.Err(), etcdlock.ErrSessionExpired, etcdlock.ErrLost)
				}
				_, err := h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("x", "")).Commit()
				require.ErrorIs(t, err, etcdlock.ErrLost)
			}
			t.Logf("shown: holders told within %v of the restore", time.Since(restored).Round(100*time.Millisecond))
			_, err := placeGone.Wait(harness.Ctx(t))
			if bump == 0 {
				require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
			} else {
				require.ErrorIs(t, err, etcdlock.ErrLost)
			}
			_, err = allGone.Wait(harness.Ctx(t))
			harness.RequireCause(t, restored, err, etcdlock.ErrSessionExpired, etcdlock.ErrLost)

			other := newSession(t, c)
			if bump == 0 {
				require.NoError(t, older.Close())
				// Tokens are given out a second time.
				require.Less(t, lock(other, "e").Token(), last.Token())
				return
			}
			require.NoError(t, held.Check(harness.Ctx(t)))
			harness.NotGranted(t, waits, 1)
			require.NoError(t, held.Unlock(harness.Ctx(t)))
			h, err := waits.Wait(harness.Ctx(t))
			require.NoError(t, err)
			require.Greater(t, h.Token(), held.Token())
			require.NoError(t, h.Check(harness.Ctx(t)))

			// What was released since is back, until its session inspects its keys.
			require.NoError(t, lock(other, "b").Unlock(harness.Ctx(t)))

			require.Greater(t, lock(other, "e").Token(), last.Token())
			require.NoError(t, older.Close())
		})
	}
}
