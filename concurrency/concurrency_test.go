package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcds "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

func session(t *testing.T, c *clientv3.Client, opts ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// waitsFor requires that the lock is not had within d.
func waitsFor(t *testing.T, lock func(context.Context) error, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(harness.Ctx(t), d)
	defer cancel()
	require.Equal(t, context.DeadlineExceeded, lock(ctx), "callers compare with ==")
}

// The package has the shape of etcd's.
func TestShape(t *testing.T) {
	for _, pair := range [][2]any{
		{(*concurrency.Session)(nil), (*etcds.Session)(nil)},
		{(*concurrency.Mutex)(nil), (*etcds.Mutex)(nil)},
		{(*concurrency.Election)(nil), (*etcds.Election)(nil)},
	} {
		ours, theirs := reflect.TypeOf(pair[0]), reflect.TypeOf(pair[1])
		require.Equal(t, theirs.NumMethod(), ours.NumMethod())
		for i := range theirs.NumMethod() {
			want := theirs.Method(i)
			got, ok := ours.MethodByName(want.Name)
			require.True(t, ok, want.Name)
			require.Equal(t, want.Type.NumIn(), got.Type.NumIn())
			for j := 1; j < want.Type.NumIn(); j++ {
				require.Equal(t, want.Type.In(j), got.Type.In(j), want.Name)
			}
			for j := range want.Type.NumOut() {
				out := want.Type.Out(j)
				if out == reflect.TypeFor[<-chan clientv3.GetResponse]() { // of Observe, in client 3.6
					out = reflect.TypeFor[<-chan *clientv3.GetResponse]()
				}
				require.Equal(t, out, got.Type.Out(j), want.Name)
			}
		}
	}
	for _, pair := range [][2]error{
		{concurrency.ErrLocked, etcds.ErrLocked}, {concurrency.ErrSessionExpired, etcds.ErrSessionExpired},
		{concurrency.ErrLockReleased, etcds.ErrLockReleased}, {concurrency.ErrElectionNoLeader, etcds.ErrElectionNoLeader},
		{concurrency.ErrElectionNotLeader, etcds.ErrElectionNotLeader},
	} {
		require.EqualError(t, pair[0], pair[1].Error())
	}
}

func TestMutex(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)+"/"
	s := session(t, c)
	m := concurrency.NewMutex(s, name)
	require.Empty(t, m.Key())
	require.Nil(t, m.Header())
	owner := func() bool {
		resp, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpGet("x")).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	require.False(t, owner(), "before Lock the guard must be false and no error")
	require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))
	require.NoError(t, m.Lock(harness.Ctx(t)))
	require.NoError(t, m.Lock(harness.Ctx(t)), "the Mutex has it")
	require.NoError(t, m.TryLock(harness.Ctx(t)))
	require.Equal(t, harness.ExclusiveKey(name, s.Lease()), m.Key())
	got, err := c.Get(harness.Ctx(t), m.Key())
	require.NoError(t, err)
	require.Equal(t, got.Kvs[0].CreateRevision, m.Header().Revision)
	require.True(t, owner())

	// Another one of the session, another session, and etcd's own.
	other, old := concurrency.NewMutex(s, name), etcdsSession(t, c)
	require.Equal(t, concurrency.ErrLocked, other.TryLock(harness.Ctx(t)))
	require.Equal(t, concurrency.ErrLocked, concurrency.NewMutex(session(t, c), name).TryLock(harness.Ctx(t)))
	require.Equal(t, etcds.ErrLocked, etcds.NewMutex(old, name).TryLock(harness.Ctx(t)))
	waitsFor(t, other.Lock, 50*time.Millisecond)
	harness.QueueIs(t, c, name, 1)
	theirs := harness.Async(func() error { return etcds.NewMutex(old, name).Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	ours := harness.Async(func() error { return other.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 3)
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, theirs))
	require.False(t, owner())
	require.Equal(t, "\x00", m.Key())
	require.Equal(t, got.Kvs[0].CreateRevision, m.Header().Revision, "it stays, as etcd's does")
	require.NoError(t, old.Close())
	require.NoError(t, harness.Result(t, ours))
	runtime.KeepAlive(m)
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	require.Equal(t, concurrency.ErrLockReleased, other.Unlock(harness.Ctx(t)))
}

// A user whose role has the prefix of the lock and nothing else may ask IsOwner at any time.
func TestMutex_IsOwnerNeedsNoOtherRight(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	c := as("worker")
	m := concurrency.NewMutex(session(t, c), "a/x")
	owner := func() bool {
		resp, err := c.Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpPut("a/y", "1")).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	require.False(t, owner(), "before Lock")
	require.NoError(t, m.Lock(harness.Ctx(t)))
	require.True(t, owner())
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	require.False(t, owner(), "after Unlock")
}

// A TryLock does not wait for a Lock of the same Mutex that waits.
func TestMutex_TryLockBesideALock(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	holder, m := concurrency.NewMutex(session(t, c), name), concurrency.NewMutex(session(t, c), name)
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	waits := harness.Async(func() error { return m.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	require.Equal(t, concurrency.ErrLocked, m.TryLock(harness.Ctx(t)))
	ended, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	require.Equal(t, context.Canceled, m.TryLock(ended))
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, waits))
	require.NoError(t, m.TryLock(harness.Ctx(t)), "the Mutex has it")
	require.NoError(t, m.Unlock(harness.Ctx(t)))
}

func etcdsSession(t *testing.T, c *clientv3.Client) *etcds.Session {
	t.Helper()
	s, err := etcds.NewSession(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMutex_Lost(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	m := concurrency.NewMutex(s, name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	key := m.Key()
	_, err := c.Delete(harness.Ctx(t), key)
	require.NoError(t, err)
	require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))
	require.Equal(t, key, m.Key(), "what a log line about the error names")
	require.NoError(t, m.Lock(harness.Ctx(t)), "a Mutex that has lost its lock can have another one")
	require.NoError(t, s.Close())
	require.Equal(t, concurrency.ErrSessionExpired, m.Unlock(harness.Ctx(t)))
	require.NotEqual(t, "\x00", m.Key())
	require.Equal(t, concurrency.ErrSessionExpired, m.Lock(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// A Mutex whose entry somebody has removed does not have the lock, though it has not heard of that: another session may
// have it. So it is with one that nobody can reach any more.
func TestMutex_LockAfterRemoval(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	m := concurrency.NewMutex(s, name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	remove := func(key string) {
		_, err := c.Delete(harness.Ctx(t), key)
		require.NoError(t, err)
	}
	remove(m.Key())
	other := concurrency.NewMutex(session(t, c), name)
	require.NoError(t, other.Lock(harness.Ctx(t)))
	require.Equal(t, concurrency.ErrLocked, m.TryLock(harness.Ctx(t)))
	again := harness.Async(func() error { return m.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	require.Equal(t, concurrency.ErrLocked, m.TryLock(harness.Ctx(t)), "beside that Lock")
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, again))

	remove(m.Key())
	require.NoError(t, other.Lock(harness.Ctx(t)))
	again = harness.Async(func() error { return m.Lock(harness.Ctx(t)) }) // nothing has asked since it was removed
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, again))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
}

// While etcd does not answer, nobody knows whether a Mutex has the lock still. Its hold stays.
func TestMutex_LockAgainInAnOutage(t *testing.T) {
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	m := concurrency.NewMutex(session(t, c), name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	key := m.Key()
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	stop := tap.Every("Txn", func(ctx context.Context, _ *etcdtest.Call) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	require.Equal(t, context.Canceled, m.Lock(ctx))
	require.Equal(t, context.Canceled, m.TryLock(ctx))
	stop()
	require.NoError(t, m.Lock(harness.Ctx(t)))
	require.Equal(t, []string{key}, harness.Entries(t, c, name))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// A caller repeats an Unlock that has ended with its ctx.
func TestMutex_UnlockAgain(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	m := concurrency.NewMutex(session(t, c), name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	ended, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	require.Equal(t, context.Canceled, m.Unlock(ended))
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// While an Unlock waits for etcd, another goroutine takes the lock with the same Mutex, and releases it. What becomes of the first entry
// then says nothing of the second one.
func TestMutex_UnlockBesideTheNextHold(t *testing.T) {
	t.Parallel()
	for _, confirmed := range []bool{false, true} {
		client, wire := harness.WiredClient(t, cluster)
		m := concurrency.NewMutex(session(t, client), fmt.Sprint(harness.LockName(t), confirmed))
		// By a request that was not sent again: else the next hold waits until etcd has confirmed the Unlock.
		harness.Quickly(t, func(ctx context.Context) (*concurrency.Mutex, error) { return m, m.Lock(ctx) }, (*concurrency.Mutex).Unlock)
		key, sent, goOn := m.Key(), make(chan struct{}, 100), make(chan struct{})
		wire.OnUnary(func(ctx context.Context, _ string, req any, send func(context.Context) error) error {
			if r, ok := req.(*pb.TxnRequest); ok && len(r.Success) == 1 && string(r.Success[0].GetRequestDeleteRange().GetKey()) == key {
				sent <- struct{}{}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-goOn:
				}
			}
			return send(ctx)
		})
		ctx, cancel := context.WithCancel(harness.Ctx(t))
		first := harness.Async(func() error { return m.Unlock(ctx) })
		<-sent
		require.NoError(t, m.Lock(harness.Ctx(t)))
		if confirmed {
			ended, end := context.WithCancel(harness.Ctx(t))
			end()
			require.Equal(t, context.Canceled, m.Unlock(ended))
			close(goOn)
			require.NoError(t, harness.Result(t, first))
			require.NoError(t, m.Unlock(harness.Ctx(t)))
		} else {
			require.NoError(t, m.Unlock(harness.Ctx(t)))
			cancel()
			require.Equal(t, context.Canceled, harness.Result(t, first))
			close(goOn)
		}
		cancel()
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))
	}
}

// Etcd answers neither an Unlock nor its repetition: neither says that the lock is released.
func TestMutex_UnlockAgainInAnOutage(t *testing.T) {
	t.Parallel()
	c, name, proxy := cluster.Client(t), harness.LockName(t), cluster.Proxy(t)
	s := session(t, cluster.Client(t, proxy))
	m := concurrency.NewMutex(s, name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	proxy.Hold(etcdtest.ToServer)
	for range 3 {
		waitsFor(t, m.Unlock, 100*time.Millisecond)
	}
	proxy.Heal()
	require.NoError(t, m.Unlock(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
	require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))

	require.NoError(t, m.Lock(harness.Ctx(t)))
	proxy.Hold(etcdtest.ToServer)
	waitsFor(t, m.Unlock, 100*time.Millisecond)
	s.Orphan()
	require.Equal(t, concurrency.ErrSessionExpired, m.Unlock(harness.Ctx(t)), "a successor may have the entry")
	proxy.Heal()
}

// The hold of a Mutex that nobody can reach passes to the next one of its session, and to no other session.
func TestMutex_Dropped(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	kept := concurrency.NewMutex(s, name)
	dropped := concurrency.NewMutex(s, name)
	require.NoError(t, dropped.Lock(harness.Ctx(t)))
	key := dropped.Key()
	other := harness.Async(func() error { return concurrency.NewMutex(session(t, c), name).Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	locking := harness.Async(func() error { return kept.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 3)
	runtime.KeepAlive(dropped) // and no longer
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case err := <-locking:
			return errors.Is(err, nil)
		default:
			return false
		}
	}, harness.Hang, harness.Tick)
	require.Equal(t, key, kept.Key())
	harness.QueueIs(t, c, name, 2)
	runtime.GC() // it is reachable, so it keeps the lock
	waitsFor(t, concurrency.NewMutex(s, name).Lock, 100*time.Millisecond)
	require.NoError(t, kept.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, other))
}

// A copy of a Mutex keeps the lock as the Mutex does, since etcd's Mutex may be copied too.
func TestMutex_CopyIsNotDropped(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	m := concurrency.NewMutex(s, name)
	service := struct{ concurrency.Mutex }{*m}
	require.NoError(t, service.Lock(harness.Ctx(t)))
	runtime.KeepAlive(m) // and no longer
	next := concurrency.NewMutex(s, name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	locking := harness.Async(func() error { return next.Lock(ctx) })
	harness.QueueIs(t, c, name, 2)
	for i := range 2 { // what nobody could reach before has been dropped when these have
		name := fmt.Sprint(name, ".dropped", i)
		require.NoError(t, concurrency.NewMutex(s, name).Lock(harness.Ctx(t)))
		other := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
		require.Eventually(t, func() bool {
			runtime.GC()
			return len(other) == 1
		}, harness.Hang, harness.Tick)
		require.NoError(t, <-other)
	}
	require.Empty(t, locking, "two have the lock")
	require.NoError(t, service.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	require.NoError(t, next.Unlock(harness.Ctx(t)))
}

// Of those who wait in a session, one takes over what was dropped. All others keep their places.
func TestMutex_DroppedWakesOne(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	dropped := concurrency.NewMutex(s, name)
	require.NoError(t, dropped.Lock(harness.Ctx(t)))
	first, second := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	locking := harness.Async(func() error { return first.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	waits := harness.Async(func() error { return second.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 3)
	other := harness.Async(func() error { return concurrency.NewMutex(session(t, c), name).Lock(harness.Ctx(t)) })
	before := harness.QueueIs(t, c, name, 4)
	runtime.KeepAlive(dropped) // and no longer
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(locking) == 1
	}, harness.Hang, harness.Tick)
	require.NoError(t, <-locking)
	after := harness.QueueIs(t, c, name, 3)
	require.Equal(t, []string{before[0], before[2], before[3]}, after)
	require.NoError(t, first.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, waits))
	require.NoError(t, second.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, other))
}

func TestLocker(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	l := concurrency.NewLocker(s, name)
	l.Lock()
	second := harness.Async(func() error {
		l.Lock()
		return nil
	})
	harness.Hangs(t, second, 100*time.Millisecond)
	l.Unlock()
	require.NoError(t, harness.Result(t, second))
	l.Unlock()
	l.Lock()
	require.NoError(t, s.Close())
	l.Unlock()
	require.PanicsWithValue(t, concurrency.ErrSessionExpired, l.Lock)
}

func TestSession(t *testing.T) {
	c := cluster.Client(t)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(harness.Ctx(t), key{}, "v"))
	s := session(t, c, concurrency.WithTTL(0), concurrency.WithContext(ctx))
	require.Same(t, c, s.Client())
	require.Equal(t, "v", s.Ctx().Value(key{}))
	ttl, err := c.TimeToLive(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.EqualValues(t, 60, ttl.GrantedTTL)
	cancel()
	<-s.Done()
	<-s.Ctx().Done()
	_ = s.Close() // its ctx has ended: it does not wait
	require.Eventually(t, func() bool {
		ttl, err := c.TimeToLive(harness.Ctx(t), s.Lease())
		return err == nil && ttl.GrantedTTL == 0
	}, harness.Hang, harness.Tick, "it is revoked all the same")
	_, err = concurrency.NewSession(c, concurrency.WithContext(ctx))
	require.Equal(t, context.Canceled, err)
	_, err = concurrency.NewSession(c, concurrency.WithLease(4711))
	require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
}

// After Orphan, or the end of the ctx of WithContext, etcd's package goes on until the lease expires. Here nothing does, and the
// lock stays until Close has revoked the lease. docs/coming-from.md says so.
func TestSession_AfterItsEnd(t *testing.T) {
	for _, way := range []string{"Orphan", "ctx"} {
		t.Run(way, func(t *testing.T) {
			c, name := cluster.Client(t), harness.LockName(t)
			ctx, cancel := context.WithCancel(harness.Ctx(t))
			defer cancel()
			old, err := etcds.NewSession(c, etcds.WithContext(ctx))
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = c.Revoke(context.Background(), old.Lease()) })
			s := session(t, c, concurrency.WithContext(ctx))
			m, e := concurrency.NewMutex(s, name), concurrency.NewElection(s, name+"-e")
			require.NoError(t, m.Lock(harness.Ctx(t)))
			require.NoError(t, e.Campaign(harness.Ctx(t), "v"))
			if way == "Orphan" {
				old.Orphan()
				s.Orphan()
			} else {
				cancel()
				<-old.Done()
				<-s.Done()
			}

			theirs, election := etcds.NewMutex(old, name+"-old"), etcds.NewElection(old, name+"-old-e")
			require.NoError(t, theirs.Lock(harness.Ctx(t)))
			require.NoError(t, election.Campaign(harness.Ctx(t), "v"))
			require.NoError(t, theirs.Unlock(harness.Ctx(t)))
			require.NoError(t, election.Resign(harness.Ctx(t)))
			harness.QueueIs(t, c, name+"-old", 0)
			harness.QueueIs(t, c, name+"-old-e", 0)

			require.Equal(t, concurrency.ErrSessionExpired, concurrency.NewMutex(s, name+"-new").Lock(harness.Ctx(t)))
			require.Equal(t, concurrency.ErrSessionExpired, concurrency.NewElection(s, name+"-new").Campaign(harness.Ctx(t), "v"))
			require.Equal(t, concurrency.ErrSessionExpired, m.Unlock(harness.Ctx(t)))
			require.NoError(t, e.Resign(harness.Ctx(t)))
			harness.QueueIs(t, c, name, 1)
			harness.QueueIs(t, c, name+"-e", 1)
			if err := s.Close(); way == "Orphan" {
				require.NoError(t, err)
			} else {
				require.Equal(t, context.Canceled, err)
			}
			harness.QueueIs(t, c, name, 0)
			harness.QueueIs(t, c, name+"-e", 0)
		})
	}
}

// A signal ends a session and what waits in it: nothing of those that waited is in anybody's way.
func TestSession_CtxEndsItsWaiters(t *testing.T) {
	for what, wait := range map[string]func(s *concurrency.Session, ctx context.Context, name string) error{
		"Lock": func(s *concurrency.Session, ctx context.Context, name string) error {
			return concurrency.NewMutex(s, name).Lock(ctx)
		},
		"Campaign": func(s *concurrency.Session, ctx context.Context, name string) error {
			return concurrency.NewElection(s, name).Campaign(ctx, "v")
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, name := cluster.Client(t), harness.LockName(t)
			ctx, cancel := context.WithCancel(harness.Ctx(t))
			defer cancel()
			calls, end := context.WithCancel(harness.Ctx(t)) // or the same ctx, which ends here and there at about the same time
			defer end()
			tap := etcdtest.NewTap()
			first, s := session(t, c), session(t, cluster.Client(t, tap), concurrency.WithContext(ctx))
			var names []string
			var waits []<-chan error
			for i := range 10 {
				name := fmt.Sprint(name, i)
				require.NoError(t, concurrency.NewMutex(first, name).Lock(harness.Ctx(t)))
				names, waits = append(names, name), append(waits, harness.Async(func() error { return wait(s, calls, name) }))
			}
			for _, name := range names {
				harness.QueueIs(t, c, name, 2)
			}
			// Each waits once it has etcd's answer. A call that has none leaves its entry: see Orphan of package etcdlock.
			require.Eventually(t, func() bool { return len(tap.WatchCreates()) >= len(names) }, harness.Hang, harness.Tick)
			time.AfterFunc(time.Millisecond, end)
			cancel()
			for i, name := range names {
				require.Equal(t, context.Canceled, harness.Result(t, waits[i]))
				harness.QueueIs(t, c, name, 1)
			}
		})
	}
}

// What waits under another ctx ends with the session, and does not keep it from ending.
func TestSession_CtxEndsBesideAWaiter(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	require.NoError(t, concurrency.NewMutex(session(t, c), name).Lock(harness.Ctx(t)))
	s := session(t, c, concurrency.WithContext(ctx))
	waits := harness.Async(func() error { return concurrency.NewMutex(s, name).Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	cancel()
	require.Equal(t, concurrency.ErrSessionExpired, harness.Result(t, waits))
}

// A TTL that etcd does not grant is etcd's error, and no lease of what is left of it in nanoseconds.
func TestSession_TTLTooLarge(t *testing.T) {
	for _, ttl := range []int64{math.MaxInt64, math.MaxUint64/1_000_000_000 + 6, 9_000_000_001} {
		if int64(int(ttl)) != ttl {
			continue // no int where it has 32 bits
		}
		_, err := concurrency.NewSession(cluster.Client(t), concurrency.WithTTL(int(ttl)))
		require.ErrorIs(t, err, rpctypes.ErrLeaseTTLTooLarge, "%d", ttl)
	}
}

func TestElection(t *testing.T) {
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	_, err := e.Leader(harness.Ctx(t))
	require.Equal(t, concurrency.ErrElectionNoLeader, err)
	require.Equal(t, concurrency.ErrElectionNotLeader, e.Proclaim(harness.Ctx(t), "x"))
	require.NoError(t, e.Resign(harness.Ctx(t)))
	old := etcds.NewElection(etcdsSession(t, c), name)
	seen := old.Observe(harness.Ctx(t))
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	require.Equal(t, harness.ExclusiveKey(name, s.Lease()), e.Key())
	require.Equal(t, e.Rev(), e.Header().Revision)
	require.Equal(t, "a", string((<-seen).Kvs[0].Value))
	require.NoError(t, concurrency.NewElection(s, name).Campaign(harness.Ctx(t), "b"), "a session is one candidate")
	require.Equal(t, "b", string((<-seen).Kvs[0].Value))

	// A reply is lost: the value is written once.
	tap.Next("Txn", etcdtest.DropReply)
	require.NoError(t, e.Proclaim(harness.Ctx(t), "c"))
	require.Equal(t, "c", string((<-seen).Kvs[0].Value))
	leader, err := e.Leader(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, []any{"c", int64(3)}, []any{string(leader.Kvs[0].Value), leader.Kvs[0].Version})
	// One that was given up comes late: a newer one stays.
	late := tap.Postpone("Txn", 1)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	proclaiming := harness.Async(func() error { return e.Proclaim(ctx, "late") })
	<-late.Caught()
	cancel()
	require.Equal(t, context.Canceled, harness.Result(t, proclaiming))
	require.NoError(t, e.Proclaim(harness.Ctx(t), "d"))
	require.NoError(t, late.Send(harness.Ctx(t)))
	require.Equal(t, "d", string((<-seen).Kvs[0].Value))

	// The leader is removed.
	_, err = c.Delete(harness.Ctx(t), e.Key())
	require.NoError(t, err)
	require.Equal(t, concurrency.ErrElectionNotLeader, e.Proclaim(harness.Ctx(t), "x"))
	require.Empty(t, e.Key())
	require.NoError(t, e.Resign(harness.Ctx(t)))

	// They lead, and are observed.
	ours := e.Observe(harness.Ctx(t))
	require.NoError(t, old.Campaign(harness.Ctx(t), "theirs"))
	require.Equal(t, "theirs", string((<-ours).Kvs[0].Value))
	require.NoError(t, old.Proclaim(harness.Ctx(t), "changed"))
	got := <-ours
	require.Equal(t, []any{"changed", int64(2)}, []any{string(got.Kvs[0].Value), got.Kvs[0].Version})
	campaign := harness.Async(func() error { return e.Campaign(harness.Ctx(t), "again") })
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, old.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
	require.Equal(t, "again", string((<-ours).Kvs[0].Value))
	require.NoError(t, s.Close())
	require.Equal(t, concurrency.ErrSessionExpired, e.Campaign(harness.Ctx(t), "x"))
}

// A leader is known by its key, in its own session, in that of a successor, and in another one.
func TestElection_Resume(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	for what, resume := range map[string]func(s *concurrency.Session, e *concurrency.Election) *concurrency.Election{
		"own": func(s *concurrency.Session, e *concurrency.Election) *concurrency.Election {
			return concurrency.ResumeElection(s, name+"/", e.Key(), e.Rev())
		},
		"successor": func(s *concurrency.Session, e *concurrency.Election) *concurrency.Election {
			s.Orphan()
			return concurrency.ResumeElection(session(t, c, concurrency.WithLease(s.Lease())), name, e.Key(), e.Rev())
		},
		"other": func(_ *concurrency.Session, e *concurrency.Election) *concurrency.Election {
			return concurrency.ResumeElection(session(t, c), name, e.Key(), e.Rev())
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := session(t, c)
			e := concurrency.NewElection(s, name)
			require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
			r := resume(s, e)
			require.NoError(t, r.Proclaim(harness.Ctx(t), "b"))
			got, err := r.Leader(harness.Ctx(t))
			require.NoError(t, err)
			require.Equal(t, []any{"b", e.Rev()}, []any{string(got.Kvs[0].Value), got.Kvs[0].CreateRevision})
			require.NoError(t, r.Resign(harness.Ctx(t)))
			harness.RequireGone(t, c, name)
			require.NoError(t, r.Campaign(harness.Ctx(t), "c"))
			require.NoError(t, r.Resign(harness.Ctx(t)))
		})
	}
}

// A process that is restarted takes its candidacy up again, while it leads and while it waits.
func TestElection_Restart(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	next := concurrency.NewElection(session(t, c), name)
	campaign := harness.Async(func() error { return next.Campaign(harness.Ctx(t), "next") })
	harness.QueueIs(t, c, name, 2)
	s.Orphan()
	again := concurrency.NewElection(session(t, c, concurrency.WithLease(s.Lease())), name)
	require.NoError(t, again.Campaign(harness.Ctx(t), "b"))
	require.Equal(t, e.Rev(), again.Rev())
	got, err := next.Leader(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, "b", string(got.Kvs[0].Value))
	// The process before had a second place, which the next campaign takes.
	_, err = c.Put(harness.Ctx(t), again.Key()+"-1", "", clientv3.WithLease(s.Lease()))
	require.NoError(t, err)
	place := again.Key() + "-1"
	require.NoError(t, again.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
	second := harness.Async(func() error { return again.Campaign(harness.Ctx(t), "c") })
	require.NoError(t, next.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, second))
	require.Equal(t, []string{place}, harness.Entries(t, c, name))
	require.Equal(t, place, again.Key())
}

// What the process before had for reading, or in a Multi, is no Mutex's, and excludes no others of its kind.
func TestSession_AdoptsNoReader(t *testing.T) {
	c := cluster.Client(t)
	for what, reads := range map[string]func(s *etcdlock.Session, name string) func(context.Context) (*etcdlock.Held, error){
		"RLock": func(s *etcdlock.Session, name string) func(context.Context) (*etcdlock.Held, error) {
			return etcdlock.NewRWMutex(s, name).RLock
		},
		"Multi": func(s *etcdlock.Session, name string) func(context.Context) (*etcdlock.Held, error) {
			return etcdlock.NewMulti(s, etcdlock.Write(name+"-other"), etcdlock.Read(name)).Lock
		},
	} {
		for call, take := range map[string]func(s *concurrency.Session, name string) error{
			"Lock": func(s *concurrency.Session, name string) error {
				return concurrency.NewMutex(s, name).Lock(harness.Ctx(t))
			},
			"TryLock": func(s *concurrency.Session, name string) error {
				return concurrency.NewMutex(s, name).TryLock(harness.Ctx(t))
			},
			"Campaign": func(s *concurrency.Session, name string) error {
				return concurrency.NewElection(s, name).Campaign(harness.Ctx(t), "v")
			},
		} {
			t.Run(what+", "+call, func(t *testing.T) {
				name := harness.LockName(t)
				before, err := etcdlock.NewSession(harness.Ctx(t), c)
				require.NoError(t, err)
				harness.Take(t, reads(before, name))
				before.Orphan()
				s := session(t, c, concurrency.WithLease(before.Lease()))
				require.ErrorContains(t, take(s, name), "for reading")
				harness.RequireGone(t, c, name)
				require.NoError(t, take(s, name))
			})
		}
	}
}

// A process that is restarted takes its lock again, while it has it and while it waits: nobody else could release it. A
// TryLock takes it only if it has it.
func TestMutex_Restart(t *testing.T) {
	c := cluster.Client(t)
	restart := func(s *concurrency.Session) *concurrency.Session {
		s.Orphan()
		return session(t, c, concurrency.WithLease(s.Lease()))
	}
	for what, take := range map[string]func(m *concurrency.Mutex) error{
		"Lock":    func(m *concurrency.Mutex) error { return m.Lock(harness.Ctx(t)) },
		"TryLock": func(m *concurrency.Mutex) error { return m.TryLock(harness.Ctx(t)) },
	} {
		t.Run(what, func(t *testing.T) {
			name := harness.LockName(t)
			s := session(t, c)
			m := concurrency.NewMutex(s, name)
			require.NoError(t, m.Lock(harness.Ctx(t)))
			behind := concurrency.NewMutex(session(t, c), name)
			waits := harness.Async(func() error { return behind.Lock(harness.Ctx(t)) })
			harness.QueueIs(t, c, name, 2)
			s = restart(s)
			again := concurrency.NewMutex(s, name)
			require.NoError(t, take(again))
			require.Equal(t, []any{m.Key(), m.Header().Revision}, []any{again.Key(), again.Header().Revision})
			require.Equal(t, concurrency.ErrLocked, concurrency.NewMutex(s, name).TryLock(harness.Ctx(t)), "it is taken once")
			require.NoError(t, again.Unlock(harness.Ctx(t)))
			require.NoError(t, harness.Result(t, waits))

			// The process before has died while it waited.
			lease, err := c.Grant(harness.Ctx(t), 60)
			require.NoError(t, err)
			place := harness.ExclusiveKey(name, lease.ID)
			_, err = c.Put(harness.Ctx(t), place, "", clientv3.WithLease(lease.ID))
			require.NoError(t, err)
			s = session(t, c, concurrency.WithLease(lease.ID))
			heir := concurrency.NewMutex(s, name)
			require.Equal(t, concurrency.ErrLocked, heir.TryLock(harness.Ctx(t)))
			harness.QueueIs(t, c, name, 2)
			lock := harness.Async(func() error { return heir.Lock(harness.Ctx(t)) })
			require.NoError(t, behind.Unlock(harness.Ctx(t)))
			require.NoError(t, harness.Result(t, lock))
			require.Equal(t, place, heir.Key())

			// It has left a second place, behind what the heir has by now: a TryLock does not wait there.
			_, err = c.Put(harness.Ctx(t), place+"-1", "", clientv3.WithLease(lease.ID))
			require.NoError(t, err)
			another := concurrency.NewMutex(s, name)
			require.Equal(t, concurrency.ErrLocked, another.TryLock(harness.Ctx(t)))
			require.NoError(t, heir.Unlock(harness.Ctx(t)))
			require.NoError(t, another.TryLock(harness.Ctx(t)))
			require.Equal(t, place+"-1", another.Key())
			require.NoError(t, another.Unlock(harness.Ctx(t)))
			harness.RequireGone(t, c, name)
		})
	}
}

// A TryLock looks for the process before among those that are in the queue, and asks nothing of each of them.
func TestMutex_TryLockOfABusyLockAsksLittle(t *testing.T) {
	c, name, tap := cluster.Client(t), harness.LockName(t), etcdtest.NewTap()
	lease, err := c.Grant(harness.Ctx(t), 60)
	require.NoError(t, err)
	m := concurrency.NewMutex(session(t, cluster.Client(t, tap), concurrency.WithLease(lease.ID)), name)
	for range 20 {
		other, err := c.Grant(harness.Ctx(t), 60)
		require.NoError(t, err)
		_, err = c.Put(harness.Ctx(t), harness.ExclusiveKey(name, other.ID), "", clientv3.WithLease(other.ID))
		require.NoError(t, err)
	}
	before := tap.Calls()
	require.Equal(t, concurrency.ErrLocked, m.TryLock(harness.Ctx(t)))
	require.Less(t, tap.Calls()-before, 10)
}

// The errors are those of etcd's package, for the files of a program that still import it.
func TestErrorsAreEtcds(t *testing.T) {
	require.ErrorIs(t, concurrency.ErrLocked, etcds.ErrLocked)
	require.ErrorIs(t, concurrency.ErrSessionExpired, etcds.ErrSessionExpired)
	require.EqualError(t, concurrency.ErrLockReleased, etcds.ErrLockReleased.Error())
	require.ErrorIs(t, concurrency.ErrElectionNotLeader, etcds.ErrElectionNotLeader)
	require.ErrorIs(t, concurrency.ErrElectionNoLeader, etcds.ErrElectionNoLeader)
}

// What is made without a session, or with no client, says so when it is used. An unlocked Mutex of etcd's package needs no
// session either.
func TestWithoutASession(t *testing.T) {
	_, err := concurrency.NewSession(nil)
	require.ErrorContains(t, err, "the client is nil")
	const want = "the session is nil"
	for _, m := range []*concurrency.Mutex{concurrency.NewMutex(nil, "a"), {}} {
		require.ErrorContains(t, m.Lock(harness.Ctx(t)), want)
		require.ErrorContains(t, m.TryLock(harness.Ctx(t)), want)
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(harness.Ctx(t)))
		require.Empty(t, m.Key())
		require.Nil(t, m.Header())
		resp, err := cluster.Client(t).Txn(harness.Ctx(t)).If(m.IsOwner()).Then(clientv3.OpGet("x")).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
	}
	e := concurrency.NewElection(nil, "a")
	require.ErrorContains(t, e.Campaign(harness.Ctx(t), "x"), want)
	_, err = e.Leader(harness.Ctx(t))
	require.ErrorContains(t, err, want)
	_, open := <-e.Observe(harness.Ctx(t))
	require.False(t, open)
	require.Equal(t, concurrency.ErrElectionNotLeader, e.Proclaim(harness.Ctx(t), "x"))
	require.NoError(t, e.Resign(harness.Ctx(t)))
	e = concurrency.ResumeElection(nil, "a", "a/694d", 7)
	require.ErrorContains(t, e.Proclaim(harness.Ctx(t), "x"), want)
	require.ErrorContains(t, e.Resign(harness.Ctx(t)), want)

	l := concurrency.NewLocker(nil, "a") // whose methods return no error
	require.PanicsWithError(t, want+": make one with NewSession, and the Mutex or Election with it", l.Lock)
	require.PanicsWithError(t, concurrency.ErrLockReleased.Error(), l.Unlock)
}
