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

func newTestClient(t testing.TB, c *clientv3.Client, opts ...Option) *Client {
	t.Helper()
	p := New(c, opts...)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// A hundred mutexes, half of them held and half waited for, and the lease that
// all of them have is revoked. The held ones are lost, and their holders told. The
// waiting ones go on in the next session, behind who came meanwhile. And all of
// them can be locked afterwards.
func TestClient_LeaseRevoked(t *testing.T) {
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	p := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute))
	first, second := newTestSession(t, c), newTestSession(t, c)
	const half = 50
	var held [half]*Held
	var before [half]*Held
	var meanwhile [half]*Ticket
	var granted [half]<-chan *Held
	free, taken := lockName(t), lockName(t)
	for i := range half {
		h, err := p.Mutex(fmt.Sprint(free, "/", i)).Lock(testCtx(t))
		require.NoError(t, err)
		h.Done()
		held[i] = h

		name := fmt.Sprint(taken, "/", i)
		before[i], err = NewMutex(first, name).Lock(testCtx(t))
		require.NoError(t, err)
		lock := p.Mutex(name).Lock
		if i%2 == 1 {
			lock = p.RWMutex(name).RLock
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
			h, err := p.Mutex(fmt.Sprint(name, "/", i)).Lock(testCtx(t))
			require.NoError(t, err)
			require.NotEqual(t, old.Lease(), h.s.Lease())
			require.NoError(t, h.Unlock(testCtx(t)))
		}
	}
	require.Equal(t, 2, tap.Calls("LeaseGrant"))
}

// etcd is away for longer than the TTL: what was held is told at the deadline;
// who waits, or comes meanwhile, waits until etcd is back, or its ctx ends.
func TestClient_EtcdAway(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	p := newTestClient(t, own.Client(t), WithTTL(2*time.Second))
	before, err := NewMutex(newTestSession(t, c, WithTTL(time.Minute)), "a").Lock(testCtx(t))
	require.NoError(t, err)
	h, err := p.Mutex("b").Lock(testCtx(t))
	require.NoError(t, err)
	waiting := inBackground(t, p.Mutex("a").Lock)
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)

	own.Member(0).Kill()
	<-h.Done()
	require.ErrorIs(t, h.Err(), ErrSessionExpired)
	coming := inBackground(t, p.Mutex("b").Lock)
	ctx, cancel := context.WithCancel(testCtx(t))
	left := async(func() error { _, err := p.Mutex("c").Lock(ctx); return err })
	hangs(t, left, 100*time.Millisecond)
	cancel()
	require.ErrorIs(t, result(t, left), context.Canceled)
	_, err = p.Mutex("c").Lock(ctx)
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
func TestClient_SessionGoneUnknown(t *testing.T) {
	c := cluster.Client(t)
	p := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	for kind, lock := range map[string]func(context.Context) (*Held, error){
		"lock":  p.Mutex(name).Lock,
		"write": p.RWMutex(name).Lock,
		"rlock": p.RWMutex(name).RLock,
		"try":   p.Mutex(name).TryLock,
		"tryr":  p.RWMutex(name).TryRLock,
		"enqueue": func(ctx context.Context) (*Held, error) {
			tk, err := p.Mutex(name).Enqueue(ctx)
			if err != nil {
				return nil, err
			}
			return tk.Wait(ctx)
		},
		"do": func(ctx context.Context) (got *Held, err error) {
			err = p.Mutex(name).Do(ctx, func(_ context.Context, h *Held) error { got = h; return nil })
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
func TestClient_Ticket(t *testing.T) {
	c := cluster.Client(t)
	p := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	tk, err := p.Mutex(name).Enqueue(testCtx(t))
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
func TestClient_EntryRemoved(t *testing.T) {
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	p := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	lock := func() (key string, left <-chan error) {
		left = async(func() error {
			h, err := p.Mutex(name).Lock(testCtx(t))
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
func TestClient_ExpiredForAMoment(t *testing.T) {
	tap := etcdtest.NewTap()
	p := newTestClient(t, cluster.Client(t, tap))
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
func TestClient_RevokesTheLostLease(t *testing.T) {
	c := cluster.Client(t)
	p := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	h, err := p.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err)
	h.s.terminate(ErrSessionExpired, "test")
	again, err := p.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err, "its own entry is in the way for a minute")
	require.ErrorIs(t, h.Err(), ErrLost)
	require.Equal(t, []string{again.Key()}, entries(t, c, name))
	require.NoError(t, again.Unlock(testCtx(t)))
}

// Who waits for a session shares one; who leaves, or whose grant fails, takes
// nobody along.
func TestClient_OneGrantForAll(t *testing.T) {
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	p := newTestClient(t, c)
	grant := tap.Postpone("LeaseGrant", 1)
	ctx, cancel := context.WithCancel(testCtx(t))
	leaves := async(func() error { _, err := p.Mutex("leaves").Lock(ctx); return err })
	<-grant.Caught()
	var granted []<-chan *Held
	for i := range 20 {
		granted = append(granted, inBackground(t, p.Mutex(fmt.Sprint(i)).Lock))
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
	require.NoError(t, p.Close())
	require.Zero(t, leases(t, c))
}

func TestClient_Close(t *testing.T) {
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	require.NoError(t, New(c).Close(), "before it is used")

	p := New(c)
	h, err := p.Mutex("a").Lock(testCtx(t))
	require.NoError(t, err)
	h.Done()
	waiting := async(func() error { _, err := p.Mutex("a").Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)
	revoke := tap.Postpone("LeaseRevoke", 1)
	closes := async(p.Close)
	<-revoke.Caught()
	hangs(t, closes, 100*time.Millisecond)
	require.False(t, h.Valid())
	require.ErrorIs(t, h.Err(), ErrSessionClosed)
	require.ErrorIs(t, result(t, waiting), ErrSessionClosed)
	require.NoError(t, revoke.Send(testCtx(t)))
	require.NoError(t, result(t, closes))
	require.NoError(t, p.Close(), "further calls return the same")
	require.Zero(t, leases(t, c))
	_, err = p.Mutex("a").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)

	// While a grant is under way: that ends, and leaves no lease.
	p = New(c)
	grant := tap.Postpone("LeaseGrant", 1)
	granting := async(func() error { _, err := p.Mutex("b").Lock(testCtx(t)); return err })
	<-grant.Caught()
	require.NoError(t, p.Close())
	require.ErrorIs(t, result(t, granting), ErrSessionClosed)
	_ = grant.Send(testCtx(t))
	require.Eventually(t, func() bool { return len(leases(t, c)) == 0 }, hang, tick)

	// While the reply is on its way.
	p = New(c)
	var closing <-chan error
	tap.Next("LeaseGrant", etcdtest.After(func() {
		closing = async(func() error { return p.Close() })
		<-p.ctx.Done()
	}))
	_, err = p.Mutex("b").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
	require.NoError(t, result(t, closing))
	require.Zero(t, leases(t, c))
}

// The client is closed: nothing waits for what can't come any more.
func TestClient_ClientClosed(t *testing.T) {
	t.Parallel()
	c, err := cluster.NewClient()
	require.NoError(t, err)
	p := New(c)
	name := lockName(t)
	h, err := p.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err)
	waiting := async(func() error { _, err := p.Mutex(name).Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), name)) == 2 }, hang, tick)
	require.NoError(t, c.Close())
	require.ErrorIs(t, result(t, waiting), ErrSessionExpired)
	_, err = p.Mutex(name).Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.ErrorContains(t, err, "closed")
	require.Error(t, p.Close(), "the lease is left to expire, and that is said")
	_, err = cluster.Client(t).Revoke(testCtx(t), h.s.Lease())
	require.NoError(t, err)
}

// Do goes by the pool: its own caller's hold is known whatever session another
// acquisition would be in.
func TestClient_Do(t *testing.T) {
	c := cluster.Client(t)
	p := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	m, again := p.Mutex(name), p.RWMutex(name)
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
		_, err = newTestClient(t, c).Mutex(name).TryLock(ctx)
		require.ErrorIs(t, err, ErrLocked, "another client is another owner")

		_, err = c.Revoke(testCtx(t), h.s.Lease())
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		other, err := p.Mutex(name + ".x").Lock(testCtx(t))
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

func TestClient_BadInput(t *testing.T) {
	c := cluster.Client(t)
	closed := New(c)
	require.NoError(t, closed.Close())
	for text, from := range map[string]source{
		"session is nil":    (*Session)(nil),
		"client is nil":     (*Client)(nil),
		"not made with New": &Client{},
		"with clientv3.New": New(nil),
		"TTL 0s":            New(c, WithTTL(0)),
		"logger is nil":     New(c, WithLogger(nil)),
		"WithLease":         New(c, WithLease(7)),
		"too large":         New(c, WithTTL(1<<63-1)),
		"session closed":    closed,
	} {
		m := mutexOf(from, "a")
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
	_, err = New(c).Mutex("").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrInvalidName)
	_, err = (&Mutex{}).Lock(testCtx(t))
	require.ErrorContains(t, err, "NewMutex")
	require.NoError(t, (&Client{}).Close())
}
