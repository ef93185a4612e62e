package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// An etcd whose --max-txn-ops is small. What a session would do in one request that is larger it does in several.
func TestFault_J9_FewOperationsInATxn(t *testing.T) {
	t.Parallel()
	for _, most := range []uint{16, 8} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			own := etcdtest.Start(t, etcdtest.WithConfig(func(cfg *embed.Config) { cfg.MaxTxnOps = most }))
			c := own.Client(t)
			s, other := newSession(t, c), newSession(t, own.Client(t))

			t.Run("readers behind a writer", func(t *testing.T) {
				for _, give := range []func(h *etcdlock.Held) error{
					func(h *etcdlock.Held) error { return h.Unlock(harness.Ctx(t)) },
					func(h *etcdlock.Held) error { _ = h.IsOwner(); return h.Unlock(harness.Ctx(t)) },
					func(h *etcdlock.Held) error { h.Release(); return nil },
					func(h *etcdlock.Held) error {
						if err := h.Downgrade(harness.Ctx(t)); err != nil {
							return err
						}
						return h.Unlock(harness.Ctx(t))
					},
				} {
					rw := etcdlock.NewRWMutex(s, harness.LockName(t))
					h := harness.Take(t, rw.Lock)
					var readers []*etcdlock.Ticket
					for range 20 {
						tk, err := rw.REnqueue(harness.Ctx(t))
						require.NoError(t, err)
						readers = append(readers, tk)
					}
					after, err := etcdlock.NewRWMutex(other, harness.LockName(t)).Enqueue(harness.Ctx(t))
					require.NoError(t, err)
					require.NoError(t, give(h))
					for _, tk := range readers {
						r, err := tk.Wait(harness.Ctx(t))
						require.NoError(t, err)
						r.Release()
					}
					w, err := after.Wait(harness.Ctx(t))
					require.NoError(t, err)
					require.NoError(t, w.Unlock(harness.Ctx(t)))
				}
			})
			t.Run("many that cancel", func(t *testing.T) {
				m := etcdlock.NewMutex(s, harness.LockName(t))
				h := harness.Take(t, m.Lock)
				var tickets []*etcdlock.Ticket
				for range 20 {
					tk, err := m.Enqueue(harness.Ctx(t))
					require.NoError(t, err)
					tickets = append(tickets, tk)
				}
				for _, tk := range tickets {
					require.NoError(t, tk.Cancel(harness.Ctx(t)))
				}
				require.NoError(t, h.Unlock(harness.Ctx(t)))
				harness.RequireGone(t, c, harness.LockName(t))
			})
			t.Run("many that are removed by somebody", func(t *testing.T) {
				var holds []*etcdlock.Held
				s := newSession(t, c, etcdlock.WithTTL(8*time.Second)) // it looks each half TTL
				for i := range 20 {
					holds = append(holds, mustLock(t, s, fmt.Sprint(harness.LockName(t), "-", i)))
				}
				for _, h := range holds {
					_, err := c.Delete(harness.Ctx(t), h.Key())
					require.NoError(t, err)
				}
				for _, h := range holds {
					require.Eventually(t, func() bool { return h.Err() != nil }, harness.Hang, harness.Tick)
					require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
				}
			})
			t.Run("several names", func(t *testing.T) {
				var parts []etcdlock.Part
				for i := range 32 {
					parts = append(parts, etcdlock.Write(fmt.Sprint(harness.LockName(t), "-", i)))
				}
				for n := 1; n <= len(parts); n++ {
					m := etcdlock.NewMulti(s, parts[:n]...)
					h, err := m.Lock(harness.Ctx(t))
					if n > int(most)/2 {
						require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
						continue
					}
					require.NoError(t, err)
					var behind []*etcdlock.Ticket
					for range 3 {
						tk, err := m.Enqueue(harness.Ctx(t))
						require.NoError(t, err)
						behind = append(behind, tk)
					}
					require.NoError(t, h.Unlock(harness.Ctx(t)))
					for _, tk := range behind {
						h, err := tk.Wait(harness.Ctx(t))
						require.NoError(t, err)
						require.NoError(t, h.Unlock(harness.Ctx(t)))
					}
				}
				harness.RequireGone(t, c, harness.LockName(t)+"-0")
				got, err := etcdlock.NewMutex(other, harness.LockName(t)+"-31").TryLock(harness.Ctx(t))
				require.NoError(t, err)
				require.NoError(t, got.Unlock(harness.Ctx(t)))
			})
			require.NoError(t, s.Close())
		})
	}
}

// removes reports whether a request removes keys.
func removes(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range txn.Success {
		if op.GetRequestDeleteRange() != nil || op.GetRequestTxn() != nil && removes(op.GetRequestTxn()) {
			return true
		}
	}
	return false
}

// Etcd refuses to remove the entry of a hold that was released. A Try of the session finds the lock taken, and does not
// wait for that.
func TestFault_J9_TryBehindARefusedRemoval(t *testing.T) {
	c, wire := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	m := etcdlock.NewMutex(s, harness.LockName(t))
	h := harness.Take(t, m.Lock)
	wire.OnUnary(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		if removes(req) {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return send(ctx)
	})
	h.Release()
	for range 2 {
		_, err := m.TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, etcdlock.ErrLocked)
	}
	wire.OnUnary(nil)
	require.NoError(t, harness.Take(t, m.Lock).Unlock(harness.Ctx(t)))
	require.Eventually(t, func() bool {
		h, err := m.TryLock(harness.Ctx(t))
		return err == nil && h.Unlock(harness.Ctx(t)) == nil
	}, harness.Hang, harness.Tick)
}

// The reply to a Lock is on its way for long. Cancel of a ticket of the same name and session does not wait for it.
func TestFault_J9_CancelBesideALock(t *testing.T) {
	c, wire := harness.WiredClient(t, cluster)
	s, name := newSession(t, c), harness.LockName(t)
	theirs := mustLock(t, newSession(t, cluster.Client(t)), name)
	m := etcdlock.NewMutex(s, name)
	tk, err := m.Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	goOn, done := make(chan struct{}), make(chan struct{}, 10)
	wire.OnUnary(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
		err := send(ctx)
		if txn, ok := req.(*pb.TxnRequest); ok && txn.Success[len(txn.Success)-1].GetRequestPut() != nil {
			done <- struct{}{}
			<-goOn
		}
		return err
	})
	granted := harness.InBackground(t, m.Lock)
	<-done
	require.NoError(t, tk.Cancel(harness.Ctx(t)))
	close(goOn)
	require.NoError(t, theirs.Unlock(harness.Ctx(t)))
	require.NoError(t, (<-granted).Unlock(harness.Ctx(t)))
}

// What the error of a write lock says that it needs is what it needs.
func TestFault_J9_LeastOperationsInATxn(t *testing.T) {
	for _, most := range []uint{2, 3} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			own := etcdtest.Start(t, etcdtest.WithConfig(func(cfg *embed.Config) { cfg.MaxTxnOps = most }))
			rw := etcdlock.NewRWMutex(newSession(t, own.Client(t)), "a")
			for _, lock := range []func(context.Context) (*etcdlock.Held, error){rw.Lock, rw.TryLock} {
				h, err := lock(harness.Ctx(t))
				if most < 3 {
					require.ErrorContains(t, err, "less than the 3 that these names need")
					continue
				}
				require.NoError(t, err)
				require.NoError(t, h.Unlock(harness.Ctx(t)))
			}
		})
	}
}
