package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func never(context.Context, *etcdlock.Held) error { return errors.New("it ran") }

func nothing(context.Context, *etcdlock.Held) error { return nil }

// A Do inside of a Do goes on when the outer one has returned: it did not have the lock to its end, and says so.
func TestFault_J15_DoOutlivesTheOuterDo(t *testing.T) {
	t.Parallel()
	own := errors.New("fn's own")
	for _, fails := range []error{nil, own} {
		locks := newClient(t, cluster.Client(t))
		m := locks.Mutex(harness.LockName(t))
		inside, leave := make(chan struct{}), make(chan struct{})
		inner := make(chan error, 1)
		require.NoError(t, m.Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
			go func() {
				inner <- m.Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
					return m.Do(ctx, func(context.Context, *etcdlock.Held) error {
						close(inside)
						<-leave
						return fails
					})
				})
			}()
			<-inside
			return nil
		}))
		close(leave)
		err := harness.Result(t, inner)
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
		require.Equal(t, fails != nil, errors.Is(err, own))
	}
}

// What has the values of a Do's ctx after that Do has returned is a stranger to its hold, also if that was lost.
func TestFault_J15_AfterALostDo(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	locks := newClient(t, cluster.Client(t))
	name := harness.LockName(t)
	m := locks.Mutex(name)
	var after context.Context
	require.ErrorIs(t, m.Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
		after = context.WithoutCancel(ctx)
		_, err := c.Delete(harness.Ctx(t), h.Key())
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, m.Do(after, never), etcdlock.ErrLost, "while it has not returned")
		for _, lock := range []func(context.Context) (*etcdlock.Held, error){m.TryLock, m.Lock} {
			_, err := lock(after)
			require.ErrorIs(t, err, etcdlock.ErrLost)
			require.NotErrorIs(t, err, etcdlock.ErrLocked)
		}
		return nil
	}), etcdlock.ErrLost)
	harness.RequireGone(t, c, name)
	for _, lock := range []func(context.Context) (*etcdlock.Held, error){m.TryLock, m.Lock} {
		h, err := lock(after)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(after))
	}
	require.NoError(t, m.Do(after, nothing))
}

// A panic ends a Do too.
func TestFault_J15_AfterADoThatPanics(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	m := newClient(t, cluster.Client(t)).Mutex(harness.LockName(t))
	var after context.Context
	require.Panics(t, func() {
		_ = m.Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
			after = context.WithoutCancel(ctx)
			_, err := c.Delete(harness.Ctx(t), h.Key())
			require.NoError(t, err)
			<-ctx.Done()
			panic("fn")
		})
	})
	require.NoError(t, m.Do(after, nothing))
}

// A lock of a Client and one of its session are one lock to a caller that holds it.
func TestFault_J15_DoOnTheClientsSession(t *testing.T) {
	t.Parallel()
	locks := newClient(t, cluster.Client(t))
	name := harness.LockName(t)
	s, err := locks.Session(harness.Ctx(t))
	require.NoError(t, err)
	for _, ways := range [][2]*etcdlock.RWMutex{
		{locks.RWMutex(name), etcdlock.NewRWMutex(s, name)},
		{etcdlock.NewRWMutex(s, name), locks.RWMutex(name)},
	} {
		outer, inner := ways[0], ways[1]
		require.NoError(t, outer.Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
			require.NoError(t, inner.Do(ctx, func(_ context.Context, in *etcdlock.Held) error { require.Same(t, h, in); return nil }))
			_, err := inner.Lock(ctx)
			require.ErrorIs(t, err, etcdlock.ErrWouldDeadlock)
			_, err = inner.TryLock(ctx)
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			return nil
		}))
		require.NoError(t, outer.RDo(harness.Ctx(t), func(ctx context.Context, _ *etcdlock.Held) error {
			require.ErrorIs(t, inner.Do(ctx, never), etcdlock.ErrWouldDeadlock)
			return nil
		}))
	}
	multi := etcdlock.NewMulti(s, etcdlock.Write(name), etcdlock.Read(name+"2"))
	require.NoError(t, locks.Multi(etcdlock.Read(name+"2"), etcdlock.Write(name)).Do(harness.Ctx(t), func(ctx context.Context, _ *etcdlock.Held) error {
		require.ErrorIs(t, etcdlock.NewMutex(s, name).Do(ctx, never), etcdlock.ErrWouldDeadlock)
		return multi.Do(ctx, nothing)
	}))
}

// Under the lead of an Elector its own lock is its caller's own.
func TestFault_J15_UnderLead(t *testing.T) {
	t.Parallel()
	locks := newClient(t, cluster.Client(t))
	name := harness.LockName(t)
	m := locks.Mutex(name)
	var after context.Context
	require.NoError(t, locks.Elector(name).Run(harness.Ctx(t), func(ctx context.Context, term *etcdlock.Held) error {
		after = context.WithoutCancel(ctx)
		require.ErrorIs(t, m.Do(ctx, never), etcdlock.ErrWouldDeadlock)
		require.ErrorIs(t, locks.RWMutex(name).RDo(ctx, never), etcdlock.ErrWouldDeadlock)
		require.ErrorIs(t, etcdlock.NewMutex(term.Session(), name).Do(ctx, never), etcdlock.ErrWouldDeadlock)
		_, err := m.Lock(ctx)
		require.ErrorIs(t, err, etcdlock.ErrWouldDeadlock)
		_, err = m.Enqueue(ctx)
		require.ErrorIs(t, err, etcdlock.ErrWouldDeadlock)
		_, err = m.TryLock(ctx)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, locks.Elector(name).Run(ctx, never), etcdlock.ErrWouldDeadlock)
		return locks.Mutex(name+".x").Do(ctx, nothing)
	}))
	require.NoError(t, m.Do(after, nothing))
	// So it is of a term that was lost, when its lead has returned.
	c, terms := cluster.Client(t), 0
	require.NoError(t, locks.Elector(name).Run(harness.Ctx(t), func(ctx context.Context, term *etcdlock.Held) error {
		if terms++; terms == 2 {
			return nil
		}
		after = context.WithoutCancel(ctx)
		_, err := c.Delete(harness.Ctx(t), term.Key())
		<-ctx.Done()
		return err
	}))
	require.NoError(t, m.Do(after, nothing))
	// A lead that resigns itself has the lock no longer.
	require.NoError(t, locks.Elector(name).Run(harness.Ctx(t), func(ctx context.Context, term *etcdlock.Held) error {
		require.NoError(t, term.Unlock(ctx))
		return m.Do(context.WithoutCancel(ctx), nothing)
	}))
}

// A hold's own Context, or one that is derived from it, may be that of a call about it: Unlock ends it, and goes on.
func TestFault_J15_OwnContext(t *testing.T) {
	t.Parallel()
	s := newSession(t, cluster.Client(t))
	name := harness.LockName(t)
	for what, derive := range map[string]func(ctx context.Context) (context.Context, context.CancelFunc){
		"itself": func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
		"with limit": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, harness.Hang)
		},
		"child": context.WithCancel,
	} {
		rw := etcdlock.NewRWMutex(s, name)
		multi := etcdlock.NewMulti(s, etcdlock.Write(name), etcdlock.Write(name+"2"))
		for _, lock := range []func(context.Context) (*etcdlock.Held, error){rw.Lock, rw.RLock, multi.Lock} {
			h := harness.Take(t, lock)
			ctx, cancel := derive(h.Context())
			require.NoError(t, h.Check(ctx), what)
			_, err := h.Txn(ctx).Then(clientv3.OpPut(name+".x", "")).Commit()
			require.NoError(t, err, what)
			if len(h.Keys()) == 1 {
				require.NoError(t, h.Downgrade(ctx), what)
			}
			require.NoError(t, h.Unlock(ctx), what)
			harness.RequireReleased(t, s.Client(), name+"/", h.Token())
			require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrNotHeld, what)
			require.ErrorIs(t, h.Check(ctx), etcdlock.ErrNotHeld, what)
			require.ErrorIs(t, h.Downgrade(ctx), etcdlock.ErrNotHeld, what)
			_, err = h.Txn(ctx).Commit()
			require.ErrorIs(t, err, etcdlock.ErrNotHeld, what)
			cancel()
		}
	}
	// That of another hold is a ctx like any other.
	h, other := mustLock(t, s, name), mustLock(t, s, name+"2")
	ctx := other.Context()
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
	// So is one that has ended before with another hold.
	require.NoError(t, etcdlock.NewMutex(s, name+"2").Do(harness.Ctx(t), func(ctx context.Context, outer *etcdlock.Held) error {
		return etcdlock.NewMutex(s, name).Do(ctx, func(ctx context.Context, inner *etcdlock.Held) error {
			require.NoError(t, outer.Unlock(ctx))
			<-ctx.Done()
			require.ErrorIs(t, inner.Unlock(ctx), context.Canceled)
			return nil
		})
	}))
}

// grace is how long a Do whose ctx has ended waits for etcd's answer to its release.
const grace = 250 * time.Millisecond

// The entry of a Do's hold is deleted, nobody hears of that, and then ctx ends: Do still says that the lock was lost.
func TestFault_J15_LostAndThenCtxEnds(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	wired, w := harness.WiredClient(t, cluster)
	m := etcdlock.NewMutex(newSession(t, wired), harness.LockName(t))
	w.OnRecv(func(method string, _ any) (bool, error) { return method != "Watch", nil })
	lose := func(fn func(context.Context) error) (took time.Duration, err error) {
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		var ended time.Time
		err = m.Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
			deleting := time.Now()
			_, err := c.Delete(harness.Ctx(t), h.Key())
			require.NoError(t, err)
			ended = time.Now()
			cancel()
			<-ctx.Done()
			if heard := h.Err(); time.Since(deleting) < time.Second { // else it may have asked, as its watch is silent
				require.NoError(t, heard, "it has not heard of it")
			}
			return fn(ctx)
		})
		took = time.Since(ended)
		require.Equal(t, fn(ctx) != nil, errors.Is(err, context.Canceled))
		return took, err
	}
	for _, fn := range []func(ctx context.Context) error{context.Context.Err, func(context.Context) error { return nil }} {
		took, err := lose(fn)
		// Nothing is promised of a release that etcd answers later than that, which happens on a busy machine.
		for end := time.Now().Add(harness.Hang); took >= grace && !errors.Is(err, etcdlock.ErrLost) && time.Now().Before(end); {
			took, err = lose(fn)
		}
		require.ErrorIs(t, err, etcdlock.ErrLost)
	}
	// Where etcd does not answer, Do does not wait for long.
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	var ended time.Time
	require.NoError(t, m.Do(ctx, func(context.Context, *etcdlock.Held) error {
		w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
			if method == "Txn" {
				<-ctx.Done()
				return ctx.Err()
			}
			return send(ctx)
		})
		cancel()
		ended = time.Now()
		return nil
	}))
	require.Less(t, time.Since(ended), 5*time.Second)
	w.OnUnary(nil)
}
