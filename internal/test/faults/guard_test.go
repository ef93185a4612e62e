package faults

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A guard that is asked for after the end of a hold is not true, also while the next holder of the session has the lock
// and the former one's key is still there. One that was asked for before keeps the next one out.
func TestFault_J7_GuardAfterTheEnd(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	direct := cluster.Client(t)
	name := harness.LockName(t)
	isTrue := func(guard clientv3.Cmp) bool {
		resp, err := direct.Txn(harness.Ctx(t)).If(guard).Then(clientv3.OpPut(name+".x", "late")).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	s := newSession(t, c)
	rw := etcdlock.NewRWMutex(s, name)
	for _, downgrade := range []bool{false, true} {
		h := unhedged(t, rw.Lock)
		if downgrade {
			before := h.IsOwner()
			require.True(t, isTrue(before))
			require.NoError(t, h.Downgrade(harness.Ctx(t)))
			require.False(t, isTrue(before), "Downgrade ends it")
			require.True(t, isTrue(h.IsOwner()))
		}
		next := unhedgedTicket(t, rw.Enqueue)
		goOn := make(chan struct{})
		w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
			if method == "Txn" {
				select {
				case <-goOn:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return send(ctx)
		})
		h.Release()
		if downgrade {
			harness.NotGranted(t, next, 1)
		} else {
			h2, err := next.Wait(harness.Ctx(t))
			require.NoError(t, err)
			require.True(t, h2.Valid())
		}
		require.False(t, isTrue(h.IsOwner()))
		_, err := h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", "late")).Commit()
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
		w.OnUnary(nil)
		close(goOn)
		h2, err := next.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.True(t, isTrue(h2.IsOwner()))
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
		require.False(t, isTrue(h2.IsOwner()))
		harness.RequireGone(t, direct, name)
	}
	h := harness.Take(t, rw.Lock)
	s.Orphan() // its entry stays, and so does its key
	require.False(t, isTrue(h.IsOwner()))
	require.ErrorIs(t, h.Err(), etcdlock.ErrSessionClosed)
}
