package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
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
	s := newTestSession(t, cluster.Client(t, tap))
	for kind, lock := range lockFuncs(s, lockName(t)) {
		h, err := lock(testCtx(t))
		require.NoError(t, err)
		before := created.Load()
		done := h.Done()
		require.Eventually(t, func() bool { return created.Load() > before }, hang, tick)
		require.NoError(t, s.Refresh(testCtx(t)))
		select {
		case <-done:
			t.Fatal(kind, h.Err())
		case <-time.After(20 * time.Millisecond): // time for the monitor to act
		}
		require.NoError(t, h.Check(testCtx(t)))
		// A real loss is still noticed.
		_, err = c.Delete(testCtx(t), h.Key())
		require.NoError(t, err)
		select {
		case <-done:
		case <-time.After(told):
			t.Fatal(kind, "the holder is not told of the loss")
		}
		requireGone(t, c, h.name)
	}
}

// The same on real members, which lag at random.
func TestFault_F5_NoFalseLoss(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	var sessions []*Session
	for range 3 {
		sessions = append(sessions, newTestSession(t, own.Client(t), WithTTL(time.Minute)))
	}
	for i := range 2 * runs(t) {
		for kind, lock := range lockFuncs(sessions[i%3], fmt.Sprint("a", i)) {
			h, err := lock(testCtx(t))
			require.NoError(t, err)
			done := h.Done()
			require.NoError(t, h.Check(testCtx(t)), kind)
			select {
			case <-done:
				t.Fatal(kind, h.Err())
			default:
			}
			require.NoError(t, h.Unlock(testCtx(t)), kind)
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
	s, err := NewSession(testCtx(t), client, WithTTL(2*time.Second))
	require.NoError(t, err)
	h, err := NewMutex(s, "a").Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := NewMutex(newTestSession(t, own.Client(t)), "a").Enqueue(testCtx(t))
	require.NoError(t, err)
	proxy.Blackhole(etcdtest.Both)
	crashed := time.Now()
	for i := 0; time.Since(crashed) < 3*time.Second; i++ {
		require.NoError(t, own.MoveLeader(testCtx(t), i%3))
	}
	moved := time.Now()
	h2, err := next.Wait(testCtx(t))
	require.NoError(t, err)
	granted := time.Now()
	select {
	case <-done:
	default:
		t.Fatal("the old holder was not told of the loss")
	}
	t.Logf("shown: TTL 2 s, leaders moved for %v: the next waiter was granted %v after that", moved.Sub(crashed).Round(time.Second), granted.Sub(moved).Round(100*time.Millisecond))
	require.NoError(t, h2.Unlock(testCtx(t)))
}

// An entry without a lease, or with a lease that etcd never expires because of a bug, keeps
// the lock. Inspect shows it, waiters wait only as long as their ctx allows, and the lock is
// free when an operator deletes the entry.
func TestFault_F9_LeaseNeverExpires(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	for _, leaseless := range []bool{true, false} {
		name := lockName(t)
		var id clientv3.LeaseID
		if !leaseless {
			grant, err := c.Grant(testCtx(t), 1_000_000)
			require.NoError(t, err)
			id = grant.ID
		}
		stuck := exclusiveBase(name, 0xdead)
		_, err := c.Put(testCtx(t), stuck, "", clientv3.WithLease(id))
		require.NoError(t, err)
		require.ErrorIs(t, returnsWithCtx(t, 100*time.Millisecond, func(ctx context.Context) error {
			_, err := NewMutex(s, name).Lock(ctx)
			return err
		}), context.DeadlineExceeded)
		tk, err := NewMutex(s, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick)
		notGranted(t, tk, 1)
		_, err = c.Delete(testCtx(t), stuck)
		require.NoError(t, err)
		h, err := tk.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
		if !leaseless {
			_, err = c.Revoke(testCtx(t), id)
			require.NoError(t, err)
		}
	}
}

// etcd grants at least one and a half election timeouts. The granted TTL counts, and the
// session reports it.
func TestFault_F10_GrantedTTLCounts(t *testing.T) {
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }))
	began := time.Now()
	s := newTestSession(t, own.Client(t), WithTTL(time.Second))
	require.Equal(t, 2*time.Second, s.TTL())
	require.True(t, s.Deadline().After(began.Add(1500*time.Millisecond)), "the deadline must be that of the granted TTL")
	h, err := NewMutex(s, "a").Lock(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, s.Deadline(), h.Deadline())
	require.NoError(t, h.Unlock(testCtx(t)))
}

// The session renews once in a third of its TTL, even if nobody listens, and not after its
// end.
func TestFault_F11_RenewalsAreFew(t *testing.T) {
	tap := etcdtest.NewTap()
	began := time.Now()
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(time.Second))
	require.Zero(t, tap.Calls("LeaseKeepAlive"))
	for range 3 {
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, hang, tick)
	}
	n := tap.Calls("LeaseKeepAlive")
	// A renewal that takes a sixth of the TTL is followed by another one.
	require.LessOrEqual(t, n, int(time.Since(began)/(s.TTL()/6)))
	s.Orphan()
	n = tap.Calls("LeaseKeepAlive")
	elapse(s.TTL())
	require.LessOrEqual(t, tap.Calls("LeaseKeepAlive"), n+1, "an orphaned lease must not be renewed")
	require.ErrorIs(t, s.Err(), ErrSessionClosed)
}

// A member hangs with its connections open. The client is busy, so its balancer spreads the
// requests over all members, and a renewal may meet the hanging member several times in a
// row. An earlier version made only 4 attempts; one hanging member of three then ended a
// busy client's session within minutes.
func TestFault_F12_RenewalsMeetTheMemberThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientv3.NewCtxClient(context.Background())
		s := makeSession(client, config{lease: 1, ttl: 10 * time.Second, log: discard})
		var attempts, answered atomic.Int32
		s.keepAlive = func(ctx context.Context) (int64, error) {
			if attempts.Add(1)%12 == 0 {
				answered.Add(1)
				return 10, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		s.record(time.Now(), 10)
		s.wg.Add(1)
		go s.run()
		elapse(1000 * time.Second)
		require.NoError(t, s.Err())
		require.Greater(t, answered.Load(), int32(100))
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
		s.wg.Wait()
	})
}

// Do's function is told of the loss, and so is the caller of Do.
func TestFault_F15_DoIsTold(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, cluster.Client(t), WithTTL(time.Minute))
	name := lockName(t)
	fail := errors.New("the work was cut short")
	for _, take := range []func(h *Held) error{
		func(h *Held) error { _, err := c.Delete(testCtx(t), h.Key()); return err },
		func(h *Held) error { _, err := c.Revoke(testCtx(t), s.Lease()); return err },
	} {
		err := NewMutex(s, name).Do(testCtx(t), func(ctx context.Context, h *Held) error {
			if err := take(h); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return errors.Join(fail, context.Cause(ctx))
			case <-time.After(told):
				return errors.New("fn is not told of the loss")
			}
		})
		require.ErrorIs(t, err, fail)
		require.ErrorIs(t, err, ErrLost)
	}
	require.ErrorIs(t, s.Err(), ErrSessionExpired)
}

// A lock is held and waited for without requests for longer than a token lives.
func TestFault_F13_AuthTokenExpires(t *testing.T) {
	t.Parallel()
	own, as := authCluster(t)
	proxy := own.Proxy(t)
	worker := as("worker", proxy)
	s := newTestSession(t, worker)
	held, err := NewMutex(s, "a/1").Lock(testCtx(t))
	require.NoError(t, err)
	done := held.Done()
	waiter := newTestSession(t, as("worker"))
	waiting, err := NewMutex(waiter, "a/1").Enqueue(testCtx(t))
	require.NoError(t, err)
	quiet, err := NewMutex(newTestSession(t, as("worker")), "a/2").Lock(testCtx(t))
	require.NoError(t, err)

	elapse(s.TTL()/3 + 500*time.Millisecond) // the token was used at the last renewal
	// The open streams have old tokens. New watches on them must still work.
	second, err := NewMutex(s, "a/3").Lock(testCtx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = as("root").Delete(testCtx(t), second.Key())
	require.NoError(t, err)
	select {
	case <-lost:
	case <-time.After(told):
		t.Error("the holder is not told of the loss: the watch's token has expired")
	}
	require.NoError(t, quiet.Check(testCtx(t)))
	require.NoError(t, quiet.Unlock(testCtx(t)))
	proxy.Reset()
	require.NoError(t, s.Refresh(testCtx(t)))
	select {
	case <-done:
		t.Fatal(held.Err())
	default:
	}
	began := time.Now()
	require.NoError(t, held.Unlock(testCtx(t)))
	h, err := waiting.Wait(testCtx(t))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 2*time.Second)
	require.NoError(t, h.Unlock(testCtx(t)))
	for _, s := range []*Session{s, waiter} {
		require.NoError(t, s.Err())
		require.NoError(t, s.Close())
	}
	require.Empty(t, entries(t, as("root"), "a"))
}

// A change of any user or role invalidates all tokens, including those of open streams.
func TestFault_F13_RolesChange(t *testing.T) {
	_, as := authCluster(t)
	root := as("root")
	s := newTestSession(t, as("worker"))
	first, err := NewMutex(s, "a/1").Lock(testCtx(t))
	require.NoError(t, err)
	done := first.Done()
	_, err = root.RoleAdd(testCtx(t), "another")
	require.NoError(t, err)
	second, err := NewMutex(s, "a/2").Lock(testCtx(t))
	require.NoError(t, err)
	lost := second.Done()
	_, err = root.Delete(testCtx(t), second.Key())
	require.NoError(t, err)
	select {
	case <-lost:
	case <-time.After(told):
		t.Error("the holder is not told of the loss: the watch's token has an old revision")
	}
	require.NoError(t, s.Refresh(testCtx(t)))
	select {
	case <-done:
		t.Error(first.Err())
	default:
	}
	require.NoError(t, first.Unlock(testCtx(t)))
}

// A lock needs no other right than to read and write below its name.
func TestFault_F13_LeastRights(t *testing.T) {
	_, as := authCluster(t)
	root := as("root")
	for kind := range lockFuncs(nil, "a") {
		a, b := newTestSession(t, as("worker")), newTestSession(t, as("worker"))
		h, err := lockFuncs(a, "a")[kind](testCtx(t))
		require.NoError(t, err, kind)
		done := h.Done()
		require.NoError(t, h.Check(testCtx(t)))
		_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut("a/config", kind)).Commit()
		require.NoError(t, err)
		_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut("b", "")).Commit()
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NoError(t, h.Err())
		w, err := NewRWMutex(b, "a").Enqueue(testCtx(t))
		require.NoError(t, err)
		r, err := NewRWMutex(b, "a").REnqueue(testCtx(t))
		require.NoError(t, err)
		notGranted(t, w, 1)
		require.NoError(t, h.Unlock(testCtx(t)))
		<-done
		hw, err := w.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Downgrade(testCtx(t)))
		hr, err := r.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, hw.Unlock(testCtx(t)))
		require.NoError(t, hr.Unlock(testCtx(t)))
		require.Equal(t, []string{"a/config"}, entries(t, root, "a"))
	}
	// With fewer rights Lock fails at once, its error says what is missing, and it
	// leaves nothing.
	for user, name := range map[string]string{"reader": "a", "worker": "b"} {
		s := newTestSession(t, as(user), WithTTL(2*time.Second))
		for kind, lock := range lockFuncs(s, name) {
			began := time.Now()
			_, err := lock(testCtx(t))
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, kind)
			require.ErrorContains(t, err, `needs readwrite on the prefix "`+name+`/"`)
			require.Less(t, time.Since(began), soon)
		}
		was := s.Deadline()
		require.Eventually(t, func() bool { return s.Deadline().After(was) }, hang, tick, "the session must go on")
		require.Equal(t, map[string]int{"a": 1, "b": 0}[name], len(entries(t, root, name)))
		require.NoError(t, s.Close())
	}
}
