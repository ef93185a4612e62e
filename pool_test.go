package etcdlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

func newTestPool(t testing.TB, c *clientv3.Client, opts ...SessionOption) *Pool {
	t.Helper()
	p := NewPool(c, opts...)
	t.Cleanup(func() { _ = p.Close(testCtx(t)) })
	return p
}

// A hundred mutexes, half of them held and half waited for, and the lease that
// all of them have is revoked. The held ones are lost, and their holders told. The
// waiting ones go on in the next session, behind who came meanwhile. And all of
// them can be locked afterwards.
func TestPool_LeaseRevoked(t *testing.T) {
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	p := newTestPool(t, cluster.Client(t, tap), WithTTL(time.Minute))
	first, second := newTestSession(t, c), newTestSession(t, c)
	const half = 50
	var held [half]*Held
	var before [half]*Held
	var meanwhile [half]*Ticket
	var granted [half]<-chan *Held
	free, taken := lockName(t), lockName(t)
	for i := range half {
		h, err := NewMutex(p, fmt.Sprint(free, "/", i)).Lock(testCtx(t))
		require.NoError(t, err)
		h.Done()
		held[i] = h

		name := fmt.Sprint(taken, "/", i)
		before[i], err = NewMutex(first, name).Lock(testCtx(t))
		require.NoError(t, err)
		lock := NewMutex(p, name).Lock
		if i%2 == 1 {
			lock = NewRWMutex(p, name).RLock
		}
		granted[i] = inBackground(t, lock)
	}
	require.Eventually(t, func() bool { return len(entries(t, c, taken)) == 2*half }, hang, tick)
	for i := range half {
		var err error
		meanwhile[i], err = NewMutex(second, fmt.Sprint(taken, "/", i)).Enqueue(testCtx(t))
		require.NoError(t, err)
	}
	require.Equal(t, 1, tap.Calls("LeaseGrant"))

	old := held[0].s
	_, err := c.Revoke(testCtx(t), old.Lease())
	require.NoError(t, err)
	for _, h := range held {
		<-h.Done()
		require.ErrorIs(t, h.Err(), ErrLost)
		require.False(t, h.Valid())
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	}
	require.Eventually(t, func() bool { return len(entries(t, c, taken)) == 3*half }, hang, tick, "the waiting ones go on")
	require.Empty(t, entries(t, c, free), "what was held is taken anew")
	require.Equal(t, 2, tap.Calls("LeaseGrant"), "all share one session")
	for i := range half {
		name := fmt.Sprint(taken, "/", i)
		keys := entries(t, c, name)
		require.Len(t, keys, 3)
		require.Equal(t, before[i].Key(), keys[0])
		require.Equal(t, meanwhile[i].h.Key(), keys[1], "it is not at the end")
		require.NoError(t, before[i].Unlock(testCtx(t)))
		h, err := meanwhile[i].Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
		h = <-granted[i]
		require.NotNil(t, h)
		require.Equal(t, keys[2], h.Key())
		require.Greater(t, h.Token(), meanwhile[i].h.Token())
		require.NoError(t, h.Check(testCtx(t)))
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	for i := range half {
		for _, name := range []string{free, taken} {
			h, err := NewMutex(p, fmt.Sprint(name, "/", i)).Lock(testCtx(t))
			require.NoError(t, err)
			require.NotEqual(t, old.Lease(), h.s.Lease())
			require.NoError(t, h.Unlock(testCtx(t)))
		}
	}
	require.Equal(t, 2, tap.Calls("LeaseGrant"))
}

// etcd is away for longer than the TTL: what was held is told at the deadline;
// who waits, or comes meanwhile, waits until etcd is back, or its ctx ends.
func TestPool_EtcdAway(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	p := newTestPool(t, own.Client(t), WithTTL(2*time.Second))
	before, err := NewMutex(newTestSession(t, c, WithTTL(time.Minute)), "a").Lock(testCtx(t))
	require.NoError(t, err)
	h, err := NewMutex(p, "b").Lock(testCtx(t))
	require.NoError(t, err)
	waiting := inBackground(t, NewMutex(p, "a").Lock)
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)

	own.Member(0).Kill()
	<-h.Done()
	require.ErrorIs(t, h.Err(), ErrSessionExpired)
	coming := inBackground(t, NewMutex(p, "b").Lock)
	ctx, cancel := context.WithCancel(testCtx(t))
	left := async(func() error { _, err := NewMutex(p, "c").Lock(ctx); return err })
	hangs(t, left, 100*time.Millisecond)
	cancel()
	require.ErrorIs(t, result(t, left), context.Canceled)
	_, err = NewMutex(p, "c").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, own.Member(0).Restart(testCtx(t)))

	for _, granted := range []<-chan *Held{coming, waiting} {
		h2 := <-granted
		require.NotNil(t, h2)
		require.NotEqual(t, h.s.Lease(), h2.s.Lease())
		require.NoError(t, h2.Check(testCtx(t)))
		require.NoError(t, h2.Unlock(testCtx(t)))
		if granted == coming {
			require.NoError(t, before.Unlock(testCtx(t)))
		}
	}
	requireGone(t, c, "c")
}

// Whatever begins when the session is gone, and nobody knows it yet, is begun
// again in the next one.
func TestPool_SessionGoneUnknown(t *testing.T) {
	c := cluster.Client(t)
	p := newTestPool(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	for kind, lock := range map[string]func(context.Context) (*Held, error){
		"lock":  NewMutex(p, name).Lock,
		"write": NewRWMutex(p, name).Lock,
		"rlock": NewRWMutex(p, name).RLock,
		"try":   NewMutex(p, name).TryLock,
		"tryr":  NewRWMutex(p, name).TryRLock,
		"enqueue": func(ctx context.Context) (*Held, error) {
			tk, err := NewMutex(p, name).Enqueue(ctx)
			if err != nil {
				return nil, err
			}
			return tk.Wait(ctx)
		},
		"do": func(ctx context.Context) (got *Held, err error) {
			err = NewMutex(p, name).Do(ctx, func(_ context.Context, h *Held) error { got = h; return nil })
			return got, err
		},
	} {
		s, err := p.session(testCtx(t))
		require.NoError(t, err)
		_, err = c.Revoke(testCtx(t), s.Lease())
		require.NoError(t, err)
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		require.NotEqual(t, s.Lease(), h.s.Lease(), kind)
		require.ErrorIs(t, s.Err(), ErrSessionExpired)
		if kind != "do" {
			require.NoError(t, h.Unlock(testCtx(t)), kind)
		}
	}
}

// A ticket is a place in one session, and lost with it.
func TestPool_Ticket(t *testing.T) {
	c := cluster.Client(t)
	p := newTestPool(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	tk, err := NewMutex(p, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = c.Revoke(testCtx(t), tk.h.s.Lease())
	require.NoError(t, err)
	_, err = tk.Wait(testCtx(t))
	require.Error(t, err)
	require.Len(t, entries(t, c, name), 1)
	require.NoError(t, before.Unlock(testCtx(t)))
}

// Somebody removes the entry of a Lock that waits, and not the session: it is not
// to come back. Whether it was the session is asked until etcd answers.
func TestPool_EntryRemoved(t *testing.T) {
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	p := newTestPool(t, cluster.Client(t, tap), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	lock := func() (key string, left <-chan error) {
		left = async(func() error {
			h, err := NewMutex(p, name).Lock(testCtx(t))
			if err == nil {
				err = h.Unlock(testCtx(t))
			}
			return err
		})
		require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick)
		return entries(t, c, name)[1], left
	}
	key, left := lock()
	_, err = c.Delete(testCtx(t), key)
	require.NoError(t, err)
	err = result(t, left)
	require.ErrorIs(t, err, ErrLost)
	require.NotErrorIs(t, err, ErrSessionExpired)
	require.Len(t, entries(t, c, name), 1)
	require.Equal(t, 1, tap.Calls("LeaseGrant"))

	// The session asks once for itself, and has no answer.
	key, left = lock()
	asked := false
	tap.Next("LeaseTimeToLive", func(ctx context.Context, _ *etcdtest.Call) error {
		asked = true
		<-ctx.Done()
		return ctx.Err()
	})
	_, err = c.Revoke(testCtx(t), p.liveSession().Lease())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick, "it goes on")
	require.NotEqual(t, key, entries(t, c, name)[1])
	require.NoError(t, before.Unlock(testCtx(t)))
	require.NoError(t, result(t, left))
	require.True(t, asked)
}

// A session that could not be vouched for a moment ago, but lives, is renewed
// before it is used again.
func TestPool_ExpiredForAMoment(t *testing.T) {
	tap := etcdtest.NewTap()
	p := newTestPool(t, cluster.Client(t, tap))
	s, err := p.session(testCtx(t))
	require.NoError(t, err)
	renewals := tap.Calls("LeaseKeepAlive")
	require.True(t, p.retryable(testCtx(t), s, fmt.Errorf("x: %w", ErrSessionExpired)))
	require.Equal(t, renewals+1, tap.Calls("LeaseKeepAlive"))
	require.False(t, p.retryable(testCtx(t), s, ErrLocked))
	require.Equal(t, renewals+1, tap.Calls("LeaseKeepAlive"))
}

// A lease that lives longer than its session, as one does that was paused or cut
// off, keeps its entries in the way no longer than the next session needs to come.
func TestPool_RevokesTheLostLease(t *testing.T) {
	c := cluster.Client(t)
	p := newTestPool(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	h, err := NewMutex(p, name).Lock(testCtx(t))
	require.NoError(t, err)
	h.s.terminate(ErrSessionExpired, "test")
	again, err := NewMutex(p, name).Lock(testCtx(t))
	require.NoError(t, err, "its own entry is in the way for a minute")
	require.ErrorIs(t, h.Err(), ErrLost)
	require.Equal(t, []string{again.Key()}, entries(t, c, name))
	require.NoError(t, again.Unlock(testCtx(t)))
}

// Who waits for a session shares one; who leaves, or whose grant fails, takes
// nobody along.
func TestPool_OneGrantForAll(t *testing.T) {
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	p := newTestPool(t, c)
	grant := tap.Postpone("LeaseGrant", 1)
	ctx, cancel := context.WithCancel(testCtx(t))
	leaves := async(func() error { _, err := NewMutex(p, "leaves").Lock(ctx); return err })
	<-grant.Caught()
	var granted []<-chan *Held
	for i := range 20 {
		granted = append(granted, inBackground(t, NewMutex(p, fmt.Sprint(i)).Lock))
	}
	cancel()
	require.ErrorIs(t, result(t, leaves), context.Canceled)
	for _, ch := range granted {
		h := <-ch
		require.NotNil(t, h)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	require.Equal(t, 2, tap.Calls("LeaseGrant"))
	_ = grant.Send(testCtx(t)) // it comes late, or not any more
	require.Eventually(t, func() bool { return len(leases(t, c)) == 1 }, hang, tick, "the lease of who left stays")
	require.NoError(t, p.Close(testCtx(t)))
	require.Zero(t, leases(t, c))
}

func TestPool_Close(t *testing.T) {
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	require.NoError(t, NewPool(c).Close(testCtx(t)), "before it is used")

	p := NewPool(c)
	h, err := NewMutex(p, "a").Lock(testCtx(t))
	require.NoError(t, err)
	h.Done()
	waiting := async(func() error { _, err := NewMutex(p, "a").Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)
	ctx, cancel := context.WithCancel(testCtx(t))
	cancel()
	revoke := tap.Postpone("LeaseRevoke", 1)
	require.ErrorIs(t, p.Close(ctx), context.Canceled)
	require.False(t, h.Valid())
	require.ErrorIs(t, h.Err(), ErrSessionClosed)
	require.ErrorIs(t, result(t, waiting), ErrSessionClosed)
	<-revoke.Caught()
	require.NoError(t, revoke.Send(testCtx(t)))
	for range 2 {
		require.NoError(t, p.Close(testCtx(t)))
	}
	require.Zero(t, leases(t, c))
	_, err = NewMutex(p, "a").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)

	// While a grant is under way: that ends, and leaves no lease.
	p = NewPool(c)
	grant := tap.Postpone("LeaseGrant", 1)
	granting := async(func() error { _, err := NewMutex(p, "b").Lock(testCtx(t)); return err })
	<-grant.Caught()
	require.NoError(t, p.Close(testCtx(t)))
	require.ErrorIs(t, result(t, granting), ErrSessionClosed)
	_ = grant.Send(testCtx(t))
	require.Eventually(t, func() bool { return len(leases(t, c)) == 0 }, hang, tick)

	// While the reply is on its way.
	p = NewPool(c)
	var closing <-chan error
	tap.Next("LeaseGrant", etcdtest.After(func() {
		closing = async(func() error { return p.Close(testCtx(t)) })
		<-p.ctx.Done()
	}))
	_, err = NewMutex(p, "b").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
	require.NoError(t, result(t, closing))
	require.Zero(t, leases(t, c))
}

// The client is closed: nothing waits for what can't come any more.
func TestPool_ClientClosed(t *testing.T) {
	t.Parallel()
	c, err := cluster.NewClient()
	require.NoError(t, err)
	p := NewPool(c)
	name := lockName(t)
	h, err := NewMutex(p, name).Lock(testCtx(t))
	require.NoError(t, err)
	waiting := async(func() error { _, err := NewMutex(p, name).Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), name)) == 2 }, hang, tick)
	require.NoError(t, c.Close())
	require.ErrorIs(t, result(t, waiting), ErrSessionExpired)
	_, err = NewMutex(p, name).Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.ErrorContains(t, err, "closed")
	require.Error(t, p.Close(testCtx(t)), "the lease is left to expire, and that is said")
	_, err = cluster.Client(t).Revoke(testCtx(t), h.s.Lease())
	require.NoError(t, err)
}

// Do goes by the pool: its own caller's hold is known whatever session another
// acquisition would be in.
func TestPool_Do(t *testing.T) {
	c := cluster.Client(t)
	p := newTestPool(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	m, again := NewMutex(p, name), NewRWMutex(p, name)
	err := m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
		require.NoError(t, again.RDo(ctx, func(_ context.Context, inner *Held) error {
			require.Same(t, h, inner)
			return nil
		}))
		_, err := m.Lock(ctx)
		require.ErrorIs(t, err, ErrWouldDeadlock)
		_, err = m.Enqueue(ctx)
		require.ErrorIs(t, err, ErrWouldDeadlock)
		_, err = m.TryLock(ctx)
		require.ErrorIs(t, err, ErrLocked)
		_, err = NewMutex(newTestPool(t, c), name).TryLock(ctx)
		require.ErrorIs(t, err, ErrLocked, "another pool is another owner")

		_, err = c.Revoke(testCtx(t), h.s.Lease())
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		other, err := NewMutex(p, name+".x").Lock(testCtx(t))
		require.NoError(t, err)
		require.NotEqual(t, h.s.Lease(), other.s.Lease(), "there is another session")
		called := false
		err = m.Do(ctx, func(context.Context, *Held) error { called = true; return nil })
		require.ErrorIs(t, err, ErrLost)
		require.False(t, called)
		return other.Unlock(testCtx(t))
	})
	require.ErrorIs(t, err, ErrLost)
	// Unlocking by oneself, with the ctx that ends by that.
	require.NoError(t, m.Do(testCtx(t), func(ctx context.Context, h *Held) error { return h.Unlock(ctx) }))
	require.Empty(t, entries(t, c, name))
}

func TestPool_BadInput(t *testing.T) {
	c := cluster.Client(t)
	closed := NewPool(c)
	require.NoError(t, closed.Close(testCtx(t)))
	for text, from := range map[string]SessionSource{
		"session is nil":        (*Session)(nil),
		"pool is nil":           (*Pool)(nil),
		"not made with NewPool": &Pool{},
		"client is nil":         NewPool(nil),
		"TTL 0s":                NewPool(c, WithTTL(0)),
		"logger is nil":         NewPool(c, WithLogger(nil)),
		"WithLease":             NewPool(c, WithLease(7)),
		"too large":             NewPool(c, WithTTL(1<<63-1)),
		"session closed":        closed,
	} {
		m := NewMutex(from, "a")
		calls := lockFuncs(from, "a")
		calls["Do"] = func(ctx context.Context) (*Held, error) {
			return nil, m.Do(ctx, func(context.Context, *Held) error { t.Error("called"); return nil })
		}
		calls["Enqueue"] = func(ctx context.Context) (*Held, error) {
			tk, err := m.Enqueue(ctx)
			require.Nil(t, tk)
			return nil, err
		}
		for call, f := range calls {
			h, err := f(testCtx(t))
			require.Nil(t, h)
			require.ErrorContains(t, err, text, call)
			require.ErrorContains(t, err, `"a"`, "it does not name the lock")
		}
	}
	_, err := NewMutex(nil, "a").Lock(testCtx(t))
	require.ErrorContains(t, err, "session is nil")
	_, err = NewMutex(NewPool(c), "").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrInvalidName)
	_, err = (&Mutex{}).Lock(testCtx(t))
	require.ErrorContains(t, err, "NewMutex")
	require.NoError(t, (&Pool{}).Close(testCtx(t)))
}
