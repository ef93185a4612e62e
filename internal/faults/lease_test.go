package faults

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/harness"
)

// Rows F8 to F15: leases in a cluster that changes.

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
		select {
		case <-done:
		case <-time.After(harness.Told):
			t.Fatal(kind, "the holder is not told of the loss")
		}
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
	for i := range 2 * runs(t) {
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

// Each change of the leader restarts the TTL of all leases. So the lock of a crashed
// holder passes to the next one late, but never early.
func TestFault_F8_LeaderChangesExtendLeases(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxy := own.Proxy(t)
	client, err := own.NewClient(proxy)
	require.NoError(t, err)
	defer client.Close()
	s, err := etcdlock.NewSession(harness.Ctx(t), client, etcdlock.WithTTL(2*time.Second))
	require.NoError(t, err)
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := etcdlock.NewMutex(newSession(t, own.Client(t)), "a").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	proxy.Blackhole(etcdtest.Both)
	crashed := time.Now()
	for i := 0; time.Since(crashed) < 3*time.Second; i++ {
		require.NoError(t, own.MoveLeader(harness.Ctx(t), i%3))
	}
	moved := time.Now()
	h2, err := next.Wait(harness.Ctx(t))
	require.NoError(t, err)
	granted := time.Now()
	select {
	case <-done:
	default:
		t.Fatal("the old holder was not told of the loss")
	}
	t.Logf("shown: TTL 2 s, leaders moved for %v: the next waiter was granted %v after that", moved.Sub(crashed).Round(time.Second), granted.Sub(moved).Round(100*time.Millisecond))
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

// An entry without a lease, or with a lease that etcd never expires because of a bug, keeps
// the lock. Inspect shows it, waiters wait only as long as their ctx allows, and the lock is
// free when an operator deletes the entry.
func TestFault_F9_LeaseNeverExpires(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	for _, leaseless := range []bool{true, false} {
		name := harness.LockName(t)
		var id clientv3.LeaseID
		if !leaseless {
			grant, err := c.Grant(harness.Ctx(t), 1_000_000)
			require.NoError(t, err)
			id = grant.ID
		}
		stuck := harness.ExclusiveKey(name, 0xdead)
		_, err := c.Put(harness.Ctx(t), stuck, "", clientv3.WithLease(id))
		require.NoError(t, err)
		require.ErrorIs(t, returnsWithCtx(t, 100*time.Millisecond, func(ctx context.Context) error {
			_, err := etcdlock.NewMutex(s, name).Lock(ctx)
			return err
		}), context.DeadlineExceeded)
		tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(harness.Entries(t, c, name)) == 2 }, harness.Hang, harness.Tick)
		harness.NotGranted(t, tk, 1)
		_, err = c.Delete(harness.Ctx(t), stuck)
		require.NoError(t, err)
		h, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		if !leaseless {
			_, err = c.Revoke(harness.Ctx(t), id)
			require.NoError(t, err)
		}
	}
}

// etcd grants at least one and a half election timeouts. The granted TTL counts, and the
// session reports it.
func TestFault_F10_GrantedTTLCounts(t *testing.T) {
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }))
	began := time.Now()
	s := newSession(t, own.Client(t), etcdlock.WithTTL(time.Second))
	require.Equal(t, 2*time.Second, s.TTL())
	require.True(t, s.Deadline().After(began.Add(1500*time.Millisecond)), "the deadline must be that of the granted TTL")
	h, err := etcdlock.NewMutex(s, "a").Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, s.Deadline(), h.Deadline())
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// The session renews once in a third of its TTL, even if nobody listens, and not after its
// end.
func TestFault_F11_RenewalsAreFew(t *testing.T) {
	tap := etcdtest.NewTap()
	began := time.Now()
	s := newSession(t, cluster.Client(t, tap), etcdlock.WithTTL(time.Second))
	require.Zero(t, tap.Calls("LeaseKeepAlive"))
	for range 3 {
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, harness.Hang, harness.Tick)
	}
	n := tap.Calls("LeaseKeepAlive")
	// A renewal that takes a sixth of the TTL is followed by another one.
	require.LessOrEqual(t, n, int(time.Since(began)/(s.TTL()/6)))
	s.Orphan()
	n = tap.Calls("LeaseKeepAlive")
	harness.Elapse(s.TTL())
	require.LessOrEqual(t, tap.Calls("LeaseKeepAlive"), n+1, "an orphaned lease must not be renewed")
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionClosed)
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
			select {
			case <-ctx.Done():
				return errors.Join(fail, context.Cause(ctx))
			case <-time.After(harness.Told):
				return errors.New("fn is not told of the loss")
			}
		})
		require.ErrorIs(t, err, fail)
		require.ErrorIs(t, err, etcdlock.ErrLost)
	}
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionExpired)
}

// A lock is held and waited for without requests for longer than a token lives.
func TestFault_F13_AuthTokenExpires(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	proxy := own.Proxy(t)
	worker := as("worker", proxy)
	s := newSession(t, worker)
	held, err := etcdlock.NewMutex(s, "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := held.Done()
	waiter := newSession(t, as("worker"))
	waiting, err := etcdlock.NewMutex(waiter, "a/1").Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	quiet, err := etcdlock.NewMutex(newSession(t, as("worker")), "a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)

	harness.Elapse(s.TTL()/3 + 500*time.Millisecond) // the token was used at the last renewal
	// The open streams have old tokens. New watches on them must still work.
	second, err := etcdlock.NewMutex(s, "a/3").Lock(harness.Ctx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = as("root").Delete(harness.Ctx(t), second.Key())
	require.NoError(t, err)
	select {
	case <-lost:
	case <-time.After(harness.Told):
		t.Error("the holder is not told of the loss: the watch's token has expired")
	}
	require.NoError(t, quiet.Check(harness.Ctx(t)))
	require.NoError(t, quiet.Unlock(harness.Ctx(t)))
	proxy.Reset()
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	select {
	case <-done:
		t.Fatal(held.Err())
	default:
	}
	began := time.Now()
	require.NoError(t, held.Unlock(harness.Ctx(t)))
	h, err := waiting.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 2*time.Second)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	for _, s := range []*etcdlock.Session{s, waiter} {
		require.NoError(t, s.Err())
		require.NoError(t, s.Close())
	}
	require.Empty(t, harness.Entries(t, as("root"), "a"))
}

// A change of any user or role invalidates all tokens, including those of open streams.
func TestFault_F13_RolesChange(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	root := as("root")
	s := newSession(t, as("worker"))
	first, err := etcdlock.NewMutex(s, "a/1").Lock(harness.Ctx(t))
	require.NoError(t, err)
	done := first.Done()
	_, err = root.RoleAdd(harness.Ctx(t), "another")
	require.NoError(t, err)
	second, err := etcdlock.NewMutex(s, "a/2").Lock(harness.Ctx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = root.Delete(harness.Ctx(t), second.Key())
	require.NoError(t, err)
	select {
	case <-lost:
	case <-time.After(harness.Told):
		t.Error("the holder is not told of the loss: the watch's token has an old revision")
	}
	require.NoError(t, s.Refresh(harness.Ctx(t)))
	select {
	case <-done:
		t.Error(first.Err())
	default:
	}
	require.NoError(t, first.Unlock(harness.Ctx(t)))
}

// A lock needs no other right than to read and write below its name.
func TestFault_F13_LeastRights(t *testing.T) {
	_, as := harness.StartWithAuth(t)
	root := as("root")
	for kind := range lockFuncs(nil, "a") {
		a, b := newSession(t, as("worker")), newSession(t, as("worker"))
		h, err := lockFuncs(a, "a")[kind](harness.Ctx(t))
		require.NoError(t, err, kind)
		done := h.Done()
		require.NoError(t, h.Check(harness.Ctx(t)))
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("a/config", kind)).Commit()
		require.NoError(t, err)
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("b", "")).Commit()
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NoError(t, h.Err())
		w, err := etcdlock.NewRWMutex(b, "a").Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		r, err := etcdlock.NewRWMutex(b, "a").REnqueue(harness.Ctx(t))
		require.NoError(t, err)
		harness.NotGranted(t, w, 1)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		<-done
		hw, err := w.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Downgrade(harness.Ctx(t)))
		hr, err := r.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Unlock(harness.Ctx(t)))
		require.NoError(t, hr.Unlock(harness.Ctx(t)))
		require.Equal(t, []string{"a/config"}, harness.Entries(t, root, "a"))
	}
	// With fewer rights Lock fails at once, its error says what is missing, and it
	// leaves nothing.
	for user, name := range map[string]string{"reader": "a", "worker": "b"} {
		s := newSession(t, as(user), etcdlock.WithTTL(2*time.Second))
		for kind, lock := range lockFuncs(s, name) {
			began := time.Now()
			_, err := lock(harness.Ctx(t))
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, kind)
			require.ErrorContains(t, err, `needs readwrite on the prefix "`+name+`/"`)
			require.Less(t, time.Since(began), soon)
		}
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, harness.Hang, harness.Tick, "the session must go on")
		require.Equal(t, map[string]int{"a": 1, "b": 0}[name], len(harness.Entries(t, root, name)))
		require.NoError(t, s.Close())
	}
}
