package faults

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A downgrade is carried out, and its caller's ctx ends before the reply. The readers behind are in: those of the same
// session too, which nobody passes.
func TestFault_J10_DowngradeWithoutReply(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	name := harness.LockName(t)
	s, other := newSession(t, c), newSession(t, cluster.Client(t))
	rw := etcdlock.NewRWMutex(s, name)
	h := harness.Take(t, rw.Lock)
	own, err := rw.REnqueue(harness.Ctx(t))
	require.NoError(t, err)
	others, err := etcdlock.NewRWMutex(other, name).REnqueue(harness.Ctx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		cancel()
		if err == nil {
			err = harness.ErrLostReply
		}
		return err
	})
	require.ErrorIs(t, h.Downgrade(ctx), context.Canceled)
	for _, tk := range []*etcdlock.Ticket{others, own} {
		r, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, r.Unlock(harness.Ctx(t)))
	}
	require.NoError(t, h.Downgrade(harness.Ctx(t)), "it was carried out")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	requireFree(t, name)
}

// Etcd refuses a downgrade for a while, as when rights are taken away. Its callers are told each time, and it is carried
// out when etcd allows it, whether somebody calls again or not.
func TestFault_J10_DowngradeRefused(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	name := harness.LockName(t)
	rw := etcdlock.NewRWMutex(newSession(t, c), name)
	h := harness.Take(t, rw.Lock)
	key := h.Key()
	ended, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	require.ErrorIs(t, h.Downgrade(ended), context.Canceled)
	require.Equal(t, key, h.Key(), "with a ctx that has ended nothing begins")
	own, err := rw.REnqueue(harness.Ctx(t))
	require.NoError(t, err)
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method == "Txn" {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return send(ctx)
	})
	require.ErrorIs(t, h.Downgrade(harness.Ctx(t)), rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, h.Downgrade(harness.Ctx(t)), rpctypes.ErrPermissionDenied)
	require.NoError(t, h.Err())
	w.OnUnary(nil)
	r, err := own.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, r.Unlock(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	requireFree(t, name)
}
