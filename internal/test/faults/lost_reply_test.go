package faults

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows A1 to A5 and A8: replies that are lost, and requests that were given up.

// A lost reply is no error: the txn is repeated and finds its own entry.
func TestFault_A1_LostAcquireReply(t *testing.T) {
	t.Parallel()
	for _, times := range []int{1, 3} {
		c, w := harness.WiredClient(t, cluster)
		s := newSession(t, c)
		for kind := range withMultis(s, "a") {
			name := harness.LockName(t)
			var lost atomic.Int32
			w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
				err := send(ctx)
				if method == "Txn" && int(lost.Add(1)) <= times && err == nil {
					return harness.ErrLostReply
				}
				return err
			})
			h, err := withMultis(s, name)[kind](harness.Ctx(t))
			require.NoError(t, err, kind)
			require.NoError(t, h.Check(harness.Ctx(t)))
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			harness.RequireReleased(t, c, name+"/", h.Token())
			requireAllGone(t, c, name)
		}
	}
}

// ctx ends before the reply arrives: the entry is removed in the background.
func TestFault_A1_CtxEndsInFlight(t *testing.T) {
	t.Parallel()
	ctxEnds(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
}

// ctx has ended when the reply arrives: the lock is released and not returned.
func TestFault_A1_CtxEndsBeforeTheReply(t *testing.T) {
	t.Parallel()
	ctxEnds(t, func(context.Context) error { return nil })
}

// ctxEnds takes locks whose ctx ends when etcd has carried the request out. reply says what the client hears of
// that.
func ctxEnds(t *testing.T, reply func(ctx context.Context) error) {
	t.Helper()
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	for kind := range withMultis(s, "a") {
		name := harness.LockName(t)
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		// A request that is slow is sent again beside itself.
		w.OnUnary(func(attempt context.Context, method string, _ any, send func(context.Context) error) error {
			ended := ctx.Err() != nil
			if err := send(attempt); err != nil || method != "Txn" || ended {
				return err
			}
			cancel()
			return reply(attempt)
		})
		_, err := withMultis(s, name)[kind](ctx)
		w.OnUnary(nil)
		require.ErrorIs(t, err, context.Canceled, kind)
		requireAllGone(t, c, name)
	}
}

func TestFault_A2_I5_StaleUnlock(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	m := etcdlock.NewMutex(s, name)
	a, err := m.Lock(harness.Ctx(t))
	require.NoError(t, err)

	// The reply to Unlock is lost. Its repetitions are delayed until another acquisition
	// has the key: also one that is made beside the first request, since that has no answer for long.
	again, lost := make(chan struct{}), make(chan struct{})
	var attempts atomic.Int32
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		switch {
		case method != "Txn":
		case attempts.Add(1) == 1:
			defer close(lost)
			if err := send(ctx); err != nil {
				return err
			}
			return harness.ErrLostReply
		default:
			<-again
		}
		return send(ctx)
	})
	unlocked := make(chan error, 1)
	go func() { unlocked <- a.Unlock(harness.Ctx(t)) }()
	<-lost
	require.Eventually(t, func() bool { return attempts.Load() > 1 }, harness.Hang, harness.Tick)
	require.Equal(t, harness.ExclusiveKey(name, s.Lease()), a.Key())
	put, err := c.Put(harness.Ctx(t), a.Key(), "another acquisition", clientv3.WithLease(s.Lease()))
	require.NoError(t, err)
	close(again)
	require.NoError(t, <-unlocked, "an earlier attempt has deleted the entry")
	resp, err := c.Get(harness.Ctx(t), a.Key())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, "the repetition deleted a newer entry")
	require.Equal(t, put.Header.Revision, resp.Kvs[0].CreateRevision)
	require.ErrorIs(t, a.Unlock(harness.Ctx(t)), etcdlock.ErrNotHeld)
	_, err = c.Delete(harness.Ctx(t), a.Key())
	require.NoError(t, err)
}

// The repetition of a release whose reply was lost leaves the next acquisition alone, which has other keys: see StaleUnlock.
func TestFault_A2_I5_StaleUnlockMeetsTheNextLock(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Multi"} { // a Try waits for the release
		name := harness.LockName(t)
		lock := withMultis(s, name)[kind]
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err, kind)
		var next *etcdlock.Held
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			require.NoError(t, send(ctx))
			next, err = lock(harness.Ctx(t))
			require.NoError(t, err, kind)
			return harness.ErrLostReply
		})
		require.NoError(t, h.Unlock(harness.Ctx(t)), kind)
		require.NoError(t, next.Check(harness.Ctx(t)), kind)
		require.NoError(t, next.Unlock(harness.Ctx(t)), kind)
		requireAllGone(t, c, name)
	}
}

func TestFault_A3_TryLockLeavesNothing(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	holder, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		cancel() // after the txn, before Try returns
		return err
	})
	_, err = etcdlock.NewMutex(s, name).TryLock(ctx)
	require.Error(t, err)
	require.Len(t, harness.Entries(t, c, name), 1)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	h, err := etcdlock.NewMutex(s, name).TryLock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

func TestFault_A4_UnlockWithEndedCtx(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	for _, lock := range withMultis(s, name) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		cancel()
		require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
		require.False(t, h.Valid())
		requireAllGone(t, c, name)
		require.ErrorIs(t, h.Unlock(harness.Ctx(t)), etcdlock.ErrNotHeld)
	}
}

// Unlock's requests fail for a while, some before and some after they were carried
// out. Unlock repeats them until etcd has confirmed one, also after its ctx has ended.
func TestFault_A5_UnlockFailsOnce(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	h, err := etcdlock.NewRWMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	w.Once("Txn", func(context.Context, func(context.Context) error) error { return harness.ErrLostReply })
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	harness.RequireReleased(t, c, name+"/", h.Token())

	h, err = etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	w.Once("Txn", func(context.Context, func(context.Context) error) error { cancel(); return harness.ErrLostReply })
	require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
	harness.RequireGone(t, c, name)
}

func TestFault_A8_LostGrantReply(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	before := harness.Leases(t, c)
	w.LoseReply("LeaseGrant")
	s := newSession(t, c, etcdlock.WithTTL(time.Hour))
	require.Eventually(t, func() bool {
		return slices.Equal([]clientv3.LeaseID{s.Lease()}, harness.Leases(t, c, before...))
	}, harness.Hang, harness.Tick, "the lease whose reply was lost must be revoked")
	require.NoError(t, s.Close())
	require.Empty(t, harness.Leases(t, c, before...))

	// ctx ends before it is known whether a lease was granted.
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	w.OnUnary(func(attempt context.Context, method string, _ any, send func(context.Context) error) error {
		if err := send(attempt); err != nil || method != "LeaseGrant" {
			return err
		}
		cancel()
		<-attempt.Done()
		return attempt.Err()
	})
	_, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(time.Hour))
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return len(harness.Leases(t, c, before...)) == 0 }, harness.Hang, harness.Tick)
}
