package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows F3, F5 to F7 and F15: the entry or the lease is gone, and the holder is told at once.

// lossIsTold takes locks of all kinds with a TTL of a minute, has each one removed by take,
// and requires that its holder is told. check then checks the errors; since is when it was taken.
func lossIsTold(t *testing.T, take func(h *etcdlock.Held), check func(t *testing.T, h *etcdlock.Held, since time.Time)) {
	t.Helper()
	c := cluster.Client(t)
	slowest := time.Duration(0)
	var took []time.Duration
	for i := range harness.Runs(t) {
		kind := []string{"Mutex", "RWMutex", "RWMutex read", "Try read"}[i%4]
		name := harness.LockName(t)
		client, w := harness.WiredClient(t, cluster)
		s := newSession(t, client, etcdlock.WithTTL(time.Minute))
		locked := make(chan *etcdlock.Held, 1)
		lock := func() {
			h, err := lockFuncs(s, name)[kind](harness.Ctx(t))
			if err != nil {
				t.Error(err)
			}
			locked <- h
		}
		if i/4%3 == 0 && kind != "Try read" { // a hold that had to wait keeps its watch
			before, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
			require.NoError(t, err)
			w.Reset()
			go lock()
			w.WaitFor(t, 0, 1)
			require.NoError(t, before.Unlock(harness.Ctx(t)))
		} else {
			lock()
		}
		h := <-locked
		require.NotNil(t, h)
		done := h.Done()
		if i/4%3 == 1 {
			w.WaitFor(t, 0, 1) // otherwise the watch may open after the loss
		}
		taking := time.Now()
		take(h)
		began := time.Now()
		took = append(took, harness.RequireTold(t, done, kind))
		slowest = max(slowest, time.Since(began))
		require.False(t, h.Valid())
		require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
		check(t, h, taking)
		require.ErrorIs(t, h.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
		harness.RequireGone(t, c, name)
	}
	slices.Sort(took)
	require.Less(t, took[len(took)/2], harness.Told, "most are told in time")
	t.Logf("shown: %d runs: told within %v", harness.Runs(t), slowest.Round(time.Microsecond))
}

// nameOf returns the name of the hold's lock.
func nameOf(t *testing.T, h *etcdlock.Held) string {
	t.Helper()
	name, ok := keyspace.NameOf(h.Key())
	require.True(t, ok, h.Key())
	return name
}

func TestFault_F3_RevokedByAnother(t *testing.T) {
	c := cluster.Client(t)
	lossIsTold(t, func(h *etcdlock.Held) {
		_, err := c.Revoke(harness.Ctx(t), h.Session().Lease())
		require.NoError(t, err)
	}, func(t *testing.T, h *etcdlock.Held, since time.Time) {
		harness.RequireCause(t, since, h.Err(), etcdlock.ErrSessionExpired, etcdlock.ErrLost, "the cause must be the lease")
		select {
		case <-h.Session().Done():
		case <-time.After(harness.Hang): // a session that does not know the cause hears of it with its next renewal
			t.Fatal("the session does not end")
		}
	})
}

func TestFault_F5_KeyDeleted(t *testing.T) {
	c := cluster.Client(t)
	lossIsTold(t, func(h *etcdlock.Held) {
		_, err := c.Delete(harness.Ctx(t), h.Key())
		require.NoError(t, err)
	}, func(t *testing.T, h *etcdlock.Held, _ time.Time) {
		require.NotErrorIs(t, h.Err(), etcdlock.ErrSessionExpired, "the cause must not be the lease")
		require.NoError(t, h.Session().Err())
		again, err := etcdlock.NewMutex(h.Session(), nameOf(t, h)).Lock(harness.Ctx(t))
		require.NoError(t, err, "the session must go on")
		require.Greater(t, again.Token(), h.Token())
		require.NoError(t, again.Unlock(harness.Ctx(t)))
	})
}

// Many holds of one session are lost together: the session asks only a few times whether
// the lease is the cause, and not once for each hold.
func TestFault_F5_ManyKeysDeleted(t *testing.T) {
	tap, base := etcdtest.NewTap(), harness.LockName(t)
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(time.Minute))
	holds := make([]*etcdlock.Held, 100)
	for i := range holds {
		h, err := etcdlock.NewMutex(s, fmt.Sprint(base, "/", i)).Lock(harness.Ctx(t))
		require.NoError(t, err)
		h.Done()
		holds[i] = h
	}
	all := func() bool { return !slices.ContainsFunc(holds, (*etcdlock.Held).Valid) }
	tap.Next("LeaseTimeToLive", func(ctx context.Context, c *etcdtest.Call) error {
		for !all() && ctx.Err() == nil {
			_ = etcd.Sleep(ctx, harness.Tick)
		}
		return c.Send(ctx)
	})
	_, err := cluster.Client(t).Delete(harness.Ctx(t), base, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, h := range holds {
		<-h.Done()
		require.NotErrorIs(t, h.Err(), etcdlock.ErrSessionExpired)
	}
	require.Less(t, tap.Calls("LeaseTimeToLive"), len(holds)/2)
	require.NoError(t, s.Err())
}

// An old leader revokes a live lease (etcd-io/etcd#15247): the client still renews, but
// loses its lock. The lock of the next holder is not affected.
func TestFault_F6_LiveLeaseRevoked(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	s := newSession(t, cluster.Client(t), etcdlock.WithTTL(time.Minute))
	h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	_, err = c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	h2, err := next.Wait(harness.Ctx(t))
	require.NoError(t, err)
	harness.RequireTold(t, done, "the old holder")
	_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", "stale")).Commit()
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.ErrorIs(t, h.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
	require.NoError(t, h2.Check(harness.Ctx(t)), "the next holder must keep its lock")
	require.Greater(t, h2.Token(), h.Token())
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

// A leader renews a lease that has been revoked, because it is the last member to apply the
// revocation. The missing entry shows that the lease has to be checked in another way.
func TestFault_F7_RenewedByALeaderThatLags(t *testing.T) {
	tap := etcdtest.NewTap()
	tap.OnKeepAliveResponse(func(_ context.Context, m *pb.LeaseKeepAliveResponse) error {
		m.TTL = 60
		return nil
	})
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(time.Minute))
	h, err := etcdlock.NewMutex(s, harness.LockName(t)).Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	taking := time.Now()
	_, err = cluster.Client(t).Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	harness.RequireTold(t, done)
	harness.RequireCause(t, taking, h.Err(), etcdlock.ErrSessionExpired, etcdlock.ErrLost, "the cause must be the lease")
	require.Equal(t, errors.Is(h.Err(), etcdlock.ErrSessionExpired), s.Err() != nil)
}

// Renewals and TimeToLive are answered as if a revoked lease were alive
// (etcd-io/etcd#14758): no such answer proves that a lock is held.
func TestFault_F7_RenewalConfirmedAfterRevoke(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	tap := etcdtest.NewTap()
	tap.OnKeepAliveResponse(func(_ context.Context, m *pb.LeaseKeepAliveResponse) error {
		m.TTL = 60
		return nil
	})
	tap.Every("LeaseTimeToLive", func(ctx context.Context, c *etcdtest.Call) error {
		err := c.Send(ctx)
		c.Reply.(*pb.LeaseTimeToLiveResponse).GrantedTTL = 60
		return err
	})
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(time.Minute))
	lock := func(name string) *etcdlock.Held {
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		return h
	}
	watched, checked, guarded, unlocked := lock(name+"1"), lock(name+"2"), lock(name+"3"), lock(name+"4")
	done := watched.Done()
	blocking, err := etcdlock.NewMutex(newSession(t, c), name+"5").Lock(harness.Ctx(t))
	require.NoError(t, err)
	waiting, err := etcdlock.NewMutex(s, name+"5").Enqueue(harness.Ctx(t))
	require.NoError(t, err)

	_, err = c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	harness.RequireTold(t, done)
	require.NoError(t, s.Refresh(harness.Ctx(t)), "the tap must make the renewal succeed")
	require.ErrorIs(t, watched.Err(), etcdlock.ErrLost)
	require.ErrorIs(t, checked.Check(harness.Ctx(t)), etcdlock.ErrLost)
	_, err = guarded.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", "stale")).Commit()
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.ErrorIs(t, unlocked.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
	_, err = waiting.Wait(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLost)
	// A refusal can be trusted.
	_, err = etcdlock.NewMutex(s, name+"6").Lock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionExpired)
	require.NoError(t, blocking.Unlock(harness.Ctx(t)))
}

// The member that serves a watch may lag behind the member that executed the lock's txn. It
// shows a queue without the entry, but the lock is not lost.
func TestFault_F5_WatchOnAMemberThatLags(t *testing.T) {
	c := cluster.Client(t)
	tap := etcdtest.NewTap()
	var created atomic.Int64
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		if m.Created {
			m.Header.Revision-- // the revision before the txn, because nothing else was written
			created.Add(1)
		}
		return nil
	})
	s := newSession(t, cluster.Client(t, tap))
	for kind, lock := range lockFuncs(s, harness.LockName(t)) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err)
		before := created.Load()
		done := h.Done()
		require.Eventually(t, func() bool { return created.Load() > before }, harness.Hang, harness.Tick)
		require.NoError(t, s.Refresh(harness.Ctx(t)))
		select {
		case <-done:
			t.Fatal(kind, h.Err())
		case <-time.After(20 * time.Millisecond): // time for the monitor to act
		}
		require.NoError(t, h.Check(harness.Ctx(t)))
		// A real loss is still noticed.
		_, err = c.Delete(harness.Ctx(t), h.Key())
		require.NoError(t, err)
		harness.RequireTold(t, done, kind)
		harness.RequireGone(t, c, nameOf(t, h))
	}
}

// The same on real members, which lag at random.
func TestFault_F5_NoFalseLoss(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	var sessions []*etcdlock.Session
	for range 3 {
		sessions = append(sessions, newSession(t, own.Client(t), etcdlock.WithTTL(time.Minute)))
	}
	for i := range 2 * harness.Runs(t) {
		for kind, lock := range lockFuncs(sessions[i%3], fmt.Sprint("a", i)) {
			h, err := lock(harness.Ctx(t))
			require.NoError(t, err)
			done := h.Done()
			require.NoError(t, h.Check(harness.Ctx(t)), kind)
			select {
			case <-done:
				t.Fatal(kind, h.Err())
			default:
			}
			require.NoError(t, h.Unlock(harness.Ctx(t)), kind)
		}
	}
}

// Do's function is told of the loss, and so is the caller of Do.
func TestFault_F15_DoIsTold(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, cluster.Client(t), etcdlock.WithTTL(time.Minute))
	name := harness.LockName(t)
	fail := errors.New("the work was cut short")
	for _, take := range []func(h *etcdlock.Held) error{
		func(h *etcdlock.Held) error { _, err := c.Delete(harness.Ctx(t), h.Key()); return err },
		func(h *etcdlock.Held) error { _, err := c.Revoke(harness.Ctx(t), s.Lease()); return err },
	} {
		err := etcdlock.NewMutex(s, name).Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
			if err := take(h); err != nil {
				return err
			}
			harness.RequireTold(t, ctx.Done(), "fn")
			return errors.Join(fail, context.Cause(ctx))
		})
		require.ErrorIs(t, err, fail)
		require.ErrorIs(t, err, etcdlock.ErrLost)
	}
	<-s.Done() // if etcd has not said in time that it was the lease, the next renewal does
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionExpired)
}
