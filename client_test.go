package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

func newTestClient(t testing.TB, c *clientv3.Client, opts ...Option) *Client {
	t.Helper()
	locks := New(c, opts...)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

// allCalls holds back all calls of a method until goOn is called, and counts those that etcd carries out and answers in time:
// a call that has no answer within a second is made again.
type allCalls struct {
	caught   chan struct{} // closed at the first one
	open     chan struct{}
	answered atomic.Int64
	stop     func()
}

func holdAll(tap *etcdtest.Tap, method string) *allCalls {
	a := &allCalls{caught: make(chan struct{}), open: make(chan struct{})}
	catch := sync.OnceFunc(func() { close(a.caught) })
	a.stop = tap.Every(method, func(ctx context.Context, c *etcdtest.Call) error {
		catch()
		select {
		case <-a.open:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := c.Send(ctx)
		if err == nil {
			a.answered.Add(1)
		}
		return err
	})
	return a
}

func (a *allCalls) goOn() { close(a.open) }

// countAll holds back none of them.
func countAll(tap *etcdtest.Tap, method string) *allCalls {
	a := holdAll(tap, method)
	a.goOn()
	return a
}

// The lease of a hundred acquisitions is revoked; half of them are held and half are waiting.
// The holds are lost, and their holders are told. The waiters go on in the next session, behind
// waiters that arrived meanwhile. Afterwards all mutexes can be locked.
func TestClient_LeaseRevoked(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	grants := countAll(tap, "LeaseGrant")
	locks := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute))
	first, second := newTestSession(t, c), newTestSession(t, c)
	const half = 50
	var held [half]*Held
	var before [half]*Held
	var meanwhile [half]*Ticket
	var granted [half]<-chan *Held
	free, taken := lockName(t), lockName(t)
	for i := range half {
		h, err := locks.Mutex(fmt.Sprint(free, "/", i)).Lock(testCtx(t))
		require.NoError(t, err)
		h.Done()
		held[i] = h

		name := fmt.Sprint(taken, "/", i)
		before[i], err = NewMutex(first, name).Lock(testCtx(t))
		require.NoError(t, err)
		lock := locks.Mutex(name).Lock
		if i%2 == 1 {
			lock = locks.RWMutex(name).RLock
		}
		granted[i] = inBackground(t, lock)
	}
	require.Eventually(t, func() bool { return len(entries(t, c, taken)) == 2*half }, hang, tick)
	for i := range half {
		var err error
		meanwhile[i], err = NewMutex(second, fmt.Sprint(taken, "/", i)).Enqueue(testCtx(t))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, grants.answered.Load())

	old := held[0].s
	_, err := c.Revoke(testCtx(t), old.Lease())
	require.NoError(t, err)
	for _, h := range held {
		<-h.Done()
		require.ErrorIs(t, h.Err(), ErrLost)
		require.False(t, h.Valid())
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	}
	require.Eventually(t, func() bool { return len(entries(t, c, taken)) == 3*half }, hang, tick, "the waiters must go on")
	require.Empty(t, entries(t, c, free), "lost holds must not be acquired again")
	require.EqualValues(t, 2, grants.answered.Load(), "all must share one session")
	for i := range half {
		name := fmt.Sprint(taken, "/", i)
		keys := entries(t, c, name)
		require.Len(t, keys, 3)
		require.Equal(t, before[i].Key(), keys[0])
		require.Equal(t, meanwhile[i].h.Key(), keys[1], "the waiter must be at the end of the queue")
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
			h, err := locks.Mutex(fmt.Sprint(name, "/", i)).Lock(testCtx(t))
			require.NoError(t, err)
			require.NotEqual(t, old.Lease(), h.s.Lease())
			require.NoError(t, h.Unlock(testCtx(t)))
		}
	}
	require.EqualValues(t, 2, grants.answered.Load())
}

// An outage lasts longer than the TTL. Holders are told of the loss at the deadline. Waiters,
// and calls that begin meanwhile, wait until etcd answers again or their ctx ends.
func TestClient_EtcdAway(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	locks := newTestClient(t, own.Client(t), WithTTL(4*time.Second))
	before, err := NewMutex(newTestSession(t, c, WithTTL(time.Minute)), "a").Lock(testCtx(t))
	require.NoError(t, err)
	h, err := locks.Mutex("b").Lock(testCtx(t))
	require.NoError(t, err)
	waiting := inBackground(t, locks.Mutex("a").Lock)
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)

	own.Member(0).Kill()
	<-h.Done()
	require.ErrorIs(t, h.Err(), ErrSessionExpired)
	coming := inBackground(t, locks.Mutex("b").Lock)
	ctx, cancel := context.WithCancel(testCtx(t))
	left := async(func() error { _, err := locks.Mutex("c").Lock(ctx); return err })
	hangs(t, left, 100*time.Millisecond)
	cancel()
	require.ErrorIs(t, result(t, left), context.Canceled)
	_, err = locks.Mutex("c").Lock(ctx)
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

// Calls may begin when the session is lost but does not know it yet. They begin again in
// the next session.
func TestClient_SessionGoneUnknown(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	for kind, lock := range map[string]func(context.Context) (*Held, error){
		"lock":  locks.Mutex(name).Lock,
		"write": locks.RWMutex(name).Lock,
		"rlock": locks.RWMutex(name).RLock,
		"try":   locks.Mutex(name).TryLock,
		"tryr":  locks.RWMutex(name).TryRLock,
		"enqueue": func(ctx context.Context) (*Held, error) {
			tk, err := locks.Mutex(name).Enqueue(ctx)
			if err != nil {
				return nil, err
			}
			return tk.Wait(ctx)
		},
		"do": func(ctx context.Context) (got *Held, err error) {
			err = locks.Mutex(name).Do(ctx, func(_ context.Context, h *Held) error { got = h; return nil })
			return got, err
		},
	} {
		s, err := locks.session(testCtx(t))
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

// A ticket is a place of one session, and is lost with the session.
func TestClient_Ticket(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	tk, err := locks.Mutex(name).Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = c.Revoke(testCtx(t), tk.h.s.Lease())
	require.NoError(t, err)
	_, err = tk.Wait(testCtx(t))
	require.Error(t, err)
	require.Len(t, entries(t, c, name), 1)
	require.NoError(t, before.Unlock(testCtx(t)))
}

// Another client removes the entry of a waiting Lock, but the session lives: Lock fails and
// does not queue up again. The client asks until etcd answers whether the session is lost.
func TestClient_EntryRemoved(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	grants := countAll(tap, "LeaseGrant")
	locks := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute))
	name := lockName(t)
	before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	lock := func() (key string, left <-chan error) {
		left = async(func() error {
			h, err := locks.Mutex(name).Lock(testCtx(t))
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
	require.EqualValues(t, 1, grants.answered.Load())

	// The session itself asks once, and gets no answer. Nor is the next request answered.
	key, left = lock()
	asked := false
	tap.Next("LeaseTimeToLive", func(ctx context.Context, _ *etcdtest.Call) error {
		asked = true
		<-ctx.Done()
		return ctx.Err()
	})
	again := tap.Next("LeaseTimeToLive", etcdtest.FailBefore)
	_, err = c.Revoke(testCtx(t), locks.liveSession().Lease())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick, "Lock must go on in another session")
	require.NotEqual(t, key, entries(t, c, name)[1])
	require.NoError(t, before.Unlock(testCtx(t)))
	require.NoError(t, result(t, left))
	require.True(t, asked)
	<-again
}

// Another client removes the entries of many Locks that wait. They ask after the lease together.
func TestClient_ManyEntriesRemoved(t *testing.T) {
	t.Parallel()
	c, tap, renewals, name := cluster.Client(t), etcdtest.NewTap(), atomic.Int32{}, lockName(t)
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error { renewals.Add(1); return nil })
	const n = 200
	queued, ended := make(chan struct{}, n), make(chan error, n)
	locks := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute), WithHooks(&Hooks{
		Enqueued: func(context.Context, EnqueuedInfo) { queued <- struct{}{} },
	}))
	s, err := locks.Session(testCtx(t))
	require.NoError(t, err)
	_, err = NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	for range n {
		go func() {
			_, err := locks.Mutex(name).Lock(testCtx(t))
			ended <- err
		}()
	}
	for range n {
		<-queued
	}
	before := tap.Calls("LeaseTimeToLive")
	_, err = c.Delete(testCtx(t), exclusiveBase(name, s.Lease()), clientv3.WithPrefix())
	require.NoError(t, err)
	for range n {
		require.ErrorIs(t, <-ended, ErrLost)
	}
	require.Less(t, int(renewals.Load()), n/5)
	require.Less(t, tap.Calls("LeaseTimeToLive")-before, n, "two for each Lock otherwise")
}

// A session whose deadline had passed, but whose lease lives, is renewed before it is used
// again.
func TestClient_ExpiredForAMoment(t *testing.T) {
	tap := etcdtest.NewTap()
	locks := newTestClient(t, cluster.Client(t, tap), WithTTL(time.Minute))
	s, err := locks.session(testCtx(t))
	require.NoError(t, err)
	s.etcd.NeverHedge() // the machine may stall
	renewals := tap.Calls("LeaseKeepAlive")
	require.True(t, locks.goesOn(testCtx(t), s, fmt.Errorf("x: %w", ErrSessionExpired)))
	require.Equal(t, renewals+1, tap.Calls("LeaseKeepAlive"))
	require.False(t, locks.goesOn(testCtx(t), s, ErrLocked))
	require.Equal(t, renewals+1, tap.Calls("LeaseKeepAlive"))
}

// A lease may live longer than its session, if the session was paused or cut off. Its entries
// block the lock only until the next session is there, which revokes the lease.
func TestClient_RevokesTheLostLease(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	h, err := locks.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err)
	h.s.lease.End(ErrSessionExpired, "test")
	again, err := locks.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err, "the client's own old entry blocks the lock for a minute")
	require.ErrorIs(t, h.Err(), ErrLost)
	require.Equal(t, []string{again.Key()}, entries(t, c, name))
	require.NoError(t, again.Unlock(testCtx(t)))
}

// Calls that wait for a session share one. A call that gives up, or a grant that fails, does
// not affect the others.
func TestClient_OneGrantForAll(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	locks := newTestClient(t, c)
	grants := holdAll(tap, "LeaseGrant") // those that the call which gives up makes beside the first one, too
	grant := tap.Postpone("LeaseGrant", 1)
	ctx, cancel := context.WithCancel(testCtx(t))
	leaves := async(func() error { _, err := locks.Mutex("leaves").Lock(ctx); return err })
	<-grant.Caught()
	var granted []<-chan *Held
	for i := range 20 {
		granted = append(granted, inBackground(t, locks.Mutex(fmt.Sprint(i)).Lock))
	}
	cancel()
	require.ErrorIs(t, result(t, leaves), context.Canceled)
	grants.goOn()
	for _, ch := range granted {
		h := <-ch
		require.NotNil(t, h)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	require.EqualValues(t, 1, grants.answered.Load())
	_ = grant.Send(testCtx(t)) // the grant arrives late or fails
	require.Eventually(t, func() bool { return len(leases(t, c)) == 1 }, hang, tick, "the lease of the call that gave up must be revoked")
	require.NoError(t, locks.Close())
	require.Zero(t, leases(t, c))
}

func TestClient_Close(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	require.NoError(t, New(c).Close(), "Close before use must succeed")

	locks := New(c)
	h, err := locks.Mutex("a").Lock(testCtx(t))
	require.NoError(t, err)
	h.Done()
	waiting := async(func() error { _, err := locks.Mutex("a").Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, c, "a")) == 2 }, hang, tick)
	revokes := holdAll(tap, "LeaseRevoke")
	closes := async(locks.Close)
	<-revokes.caught
	hangs(t, closes, 100*time.Millisecond)
	require.False(t, h.Valid())
	require.ErrorIs(t, h.Err(), ErrSessionClosed)
	require.ErrorIs(t, result(t, waiting), ErrSessionClosed)
	revokes.goOn()
	require.NoError(t, result(t, closes))
	revokes.stop()
	require.NoError(t, locks.Close(), "further calls must return the same")
	require.Zero(t, leases(t, c))
	_, err = locks.Mutex("a").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)

	// Close while a grant is in flight: the grant ends, and Close returns when no lease can be left.
	locks = New(c)
	grant := tap.Postpone("LeaseGrant", 1)
	granting := async(func() error { _, err := locks.Mutex("b").Lock(testCtx(t)); return err })
	<-grant.Caught()
	late := async(func() error { <-locks.sessions.Closing(); return grant.Send(testCtx(t)) }) // Close waits a second for it
	closes = async(locks.Close)
	require.ErrorIs(t, result(t, granting), ErrSessionClosed)
	require.NoError(t, result(t, late))
	require.NoError(t, result(t, closes))
	require.Zero(t, leases(t, c))

	// Close before the reply to the grant arrives.
	locks = New(c)
	var closing <-chan error
	tap.Next("LeaseGrant", etcdtest.After(func() {
		closing = async(func() error { return locks.Close() })
		<-locks.sessions.Closing()
	}))
	_, err = locks.Mutex("b").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
	require.NoError(t, result(t, closing))
	require.Zero(t, leases(t, c))

	// The same after the ctx of the first lock has ended, as after SIGTERM.
	locks = New(c)
	ctx, cancel := context.WithCancel(testCtx(t))
	held := func(ctx context.Context, call *etcdtest.Call) error { // its reply
		err := call.Send(ctx)
		cancel()
		<-ctx.Done()
		return cmp.Or(err, ctx.Err())
	}
	tap.Next("LeaseGrant", held)
	revokes = holdAll(tap, "LeaseRevoke")
	_, err = locks.Mutex("b").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	closes = async(locks.Close)
	<-revokes.caught
	hangs(t, closes, 100*time.Millisecond)
	revokes.goOn()
	require.NoError(t, result(t, closes))
	require.Zero(t, leases(t, c))
}

// Two requests for the lease were sent, and the first is carried out after the lease of the second was revoked.
func TestClient_CloseLateGrant(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	ctx, cancel := context.WithCancel(testCtx(t))
	late := tap.Postpone("LeaseGrant", 1)
	tap.Next("LeaseGrant", func(ctx context.Context, call *etcdtest.Call) error { // when the first has had its second
		_ = call.Send(ctx)
		cancel()
		return etcdtest.ErrTransport
	})
	tap.Next("LeaseRevoke", func(ctx context.Context, call *etcdtest.Call) error {
		err := call.Send(ctx)
		if err == nil {
			err = late.Send(ctx)
		}
		return err
	})
	locks := New(c)
	_, err := locks.Mutex("a").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, locks.Close())
	require.Zero(t, leases(t, c))
}

// The request of a session that was given up is looked for while Close revokes the lease of the session after it.
func TestClient_CloseBesideLostGrant(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c := own.Client(t, tap)
	locks := New(c) // whose Close takes 5 s at the most
	ctx, cancel := context.WithCancel(testCtx(t))
	tap.Next("LeaseGrant", func(context.Context, *etcdtest.Call) error { // nobody can know that it was not sent
		cancel()
		return etcdtest.ErrTransport
	})
	_, err := locks.Mutex("a").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = locks.Mutex("a").Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, locks.Close())
	require.Zero(t, leases(t, c))
}

// Close has nothing to wait for where no request for a lease could be sent.
func TestClient_CloseWithoutEtcd(t *testing.T) {
	p := cluster.Proxy(t)
	p.Refuse()
	tap := etcdtest.NewTap()
	locks := New(cluster.Client(t, p, tap))
	ctx, cancel := context.WithCancel(testCtx(t))
	left := async(func() error { _, err := locks.Mutex("a").Lock(ctx); return err })
	require.Eventually(t, func() bool { return tap.Calls("LeaseGrant") > 0 }, hang, tick)
	hangs(t, left, 100*time.Millisecond)
	cancel()
	require.ErrorIs(t, result(t, left), context.Canceled)
	require.NoError(t, locks.Close())
	require.Zero(t, tap.Calls("LeaseRevoke"))
}

// The etcd client is closed: no call waits for an answer that can't arrive any more.
func TestClient_ClientClosed(t *testing.T) {
	t.Parallel()
	c, err := cluster.NewClient()
	require.NoError(t, err)
	locks := New(c)
	name := lockName(t)
	h, err := locks.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err)
	waiting := async(func() error { _, err := locks.Mutex(name).Lock(testCtx(t)); return err })
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), name)) == 2 }, hang, tick)
	require.NoError(t, c.Close())
	require.ErrorIs(t, result(t, waiting), ErrSessionExpired)
	_, err = locks.Mutex(name).Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.ErrorContains(t, err, "closed")
	require.Error(t, locks.Close(), "Close must say that the lease was not revoked")
	_, err = cluster.Client(t).Revoke(testCtx(t), h.s.Lease())
	require.NoError(t, err)
}

// Do is reentrant for the Client: it finds the caller's hold even if another acquisition would
// use another session.
func TestClient_Do(t *testing.T) {
	c := cluster.Client(t)
	locks := newTestClient(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	m, again := locks.Mutex(name), locks.RWMutex(name)
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
		require.ErrorIs(t, err, ErrLocked, "another Client must count as another owner")

		_, err = c.Revoke(testCtx(t), h.s.Lease())
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		other, err := locks.Mutex(name + ".x").Lock(testCtx(t))
		require.NoError(t, err)
		require.NotEqual(t, h.s.Lease(), other.s.Lease(), "the client must have made another session")
		called := false
		err = m.Do(ctx, func(context.Context, *Held) error { called = true; return nil })
		require.ErrorIs(t, err, ErrLost)
		require.False(t, called)
		inNext := NewMutex(other.s, name)
		require.ErrorIs(t, inNext.Do(context.WithoutCancel(ctx), func(context.Context, *Held) error { called = true; return nil }), ErrLost)
		require.False(t, called)
		require.ErrorIs(t, second(inNext.TryLock(ctx)), ErrLost)
		return other.Unlock(testCtx(t))
	})
	require.ErrorIs(t, err, ErrLost)
	// fn unlocks the hold itself, with the ctx that ends by it.
	require.NoError(t, m.Do(testCtx(t), func(ctx context.Context, h *Held) error { return h.Unlock(ctx) }))
	queueIs(t, c, name, 0)
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
		"option is nil":     New(c, nil, WithTTL(time.Minute)),
		"no KV, Lease":      New(clientv3.NewCtxClient(t.Context())),
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
			require.ErrorContains(t, err, `"a"`, "the error must name the lock")
		}
	}
	_, err := NewMutex(nil, "a").Lock(testCtx(t))
	require.ErrorContains(t, err, "session is nil")
	_, err = New(c).Mutex("").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrInvalidName)
	_, err = (&Mutex{}).Lock(testCtx(t))
	require.ErrorContains(t, err, "NewMutex")
	_, err = (&Mutex{}).Raw("v").Enqueue(testCtx(t))
	require.ErrorContains(t, err, "NewMutex")
	require.ErrorContains(t, (&RWMutex{}).RDo(testCtx(t), nil), "fn is nil")
	require.ErrorContains(t, (&RWMutex{}).RDo(testCtx(t), func(context.Context, *Held) error { return nil }), "NewMutex")
	require.NoError(t, (&Client{}).Close())
}

// A session that was handed to a successor is not the Client's to revoke: not when it grants the next one, and not when
// it closes.
func TestClient_LeavesAnOrphanedSession(t *testing.T) {
	c := cluster.Client(t)
	for what, end := range map[string]func(locks *Client) error{
		"the next session": func(locks *Client) error {
			_, err := locks.Mutex(lockName(t) + ".2").Lock(testCtx(t))
			return err
		},
		"Close": (*Client).Close,
	} {
		t.Run(what, func(t *testing.T) {
			locks := newTestClient(t, c)
			s, err := locks.Session(testCtx(t))
			require.NoError(t, err)
			name := lockName(t)
			h, err := NewMutex(s, name).Lock(testCtx(t))
			require.NoError(t, err)
			s2 := succeed(t, s, c)
			h2, err := s2.Adopt(testCtx(t), name)
			require.NoError(t, err)
			require.Equal(t, h.Token(), h2.Token())
			require.NoError(t, end(locks))
			require.NoError(t, locks.Close())
			require.NoError(t, s2.Refresh(testCtx(t)))
			require.NoError(t, h2.Check(testCtx(t)))
			require.NoError(t, s.Close(), "its own Close revokes it")
			require.ErrorIs(t, s2.Refresh(testCtx(t)), ErrSessionExpired)
		})
	}
}

// A Client that is closed while Orphan is under way leaves the lease too.
func TestClient_ClosedBesideOrphan(t *testing.T) {
	c, name := cluster.Client(t), lockName(t)
	locks := newTestClient(t, c)
	h, err := locks.Mutex(name).Lock(testCtx(t))
	require.NoError(t, err)
	h.mu.Lock() // for which Orphan waits, as it waits for etcd's answers
	orphan := async(func() error { h.s.Orphan(); return nil })
	require.Eventually(t, h.s.removals.Drains.Load, hang, tick)
	closing := async(locks.Close)
	harness.Hangs(t, closing, 50*time.Millisecond)
	h.mu.Unlock()
	require.NoError(t, result(t, orphan))
	require.NoError(t, result(t, closing))
	s2, err := NewSession(testCtx(t), c, WithLease(h.s.Lease()))
	require.NoError(t, err)
	defer s2.Close()
	h2, err := s2.Adopt(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), h2.Token())
}

// Sessions that are lost at once: a lease is granted by one etcd, and asked for of another, as behind a name with the addresses of
// two clusters.
func TestClient_SessionsLostAtOnce(t *testing.T) {
	tap := etcdtest.NewTap()
	c := cluster.Client(t, tap)
	tap.Every("Txn", func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCLeaseNotFound })
	var log logtest.Log
	locks := newTestClient(t, c, WithLogger(log.Logger()))
	ctx, cancel := context.WithTimeout(testCtx(t), 3*time.Second)
	defer cancel()
	_, err := locks.Mutex(lockName(t)).Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	t.Logf("%d grants, %d revocations, %d lines of log", tap.Calls("LeaseGrant"), tap.Calls("LeaseRevoke"), len(log.Lines()))
	require.Less(t, tap.Calls("LeaseGrant"), 30, "a pause must grow")
}
