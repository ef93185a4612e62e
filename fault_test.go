package etcdlock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The fault tests: each is named after a row of docs/faults.md, and fails on the
// code without the protection that the row is about.

// requireFree requires that another session gets the lock.
func requireFree(t *testing.T, name string) {
	t.Helper()
	h, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A lost reply is no error: the txn is repeated and finds its own entry.
func TestFault_A1_LostAcquireReply(t *testing.T) {
	for _, times := range []int{1, 3} {
		c, w := wiredClient(t, cluster)
		s := newTestSession(t, c)
		for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
			name := lockName(t)
			var lost atomic.Int32
			w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
				err := send(ctx)
				if method == "Txn" && int(lost.Add(1)) <= times && err == nil {
					return errLostReply
				}
				return err
			})
			h, err := lockFuncs(s, name)[kind](testCtx(t))
			require.NoError(t, err, kind)
			require.NoError(t, h.Check(testCtx(t)))
			require.NoError(t, h.Unlock(testCtx(t)))
			require.Empty(t, entries(t, c, name), kind)
			requireFree(t, name)
		}
	}
}

// ctx ends before the reply arrives: the entry is removed in the background.
func TestFault_A1_CtxEndsInFlight(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			if err := send(ctx); err != nil {
				return err
			}
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		_, err := lockFuncs(s, name)[kind](ctx)
		require.ErrorIs(t, err, context.Canceled, kind)
		requireGone(t, c, name)
		requireFree(t, name)
	}
}

// ctx has ended when the reply arrives: the lock is released and not returned.
func TestFault_A1_CtxEndsBeforeTheReply(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			err := send(ctx)
			cancel()
			return err
		})
		_, err := lockFuncs(s, name)[kind](ctx)
		require.ErrorIs(t, err, context.Canceled, kind)
		requireGone(t, c, name)
	}
}

// The request itself is delayed: the entry appears after Lock has returned.
func TestFault_A1_LateRequest(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		release, sent := make(chan struct{}), make(chan error, 1)
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			go func() {
				<-release
				sent <- send(context.WithoutCancel(ctx))
			}()
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		_, err := lockFuncs(s, name)[kind](ctx)
		require.ErrorIs(t, err, context.Canceled)
		// Let the settling read once and find nothing; then the late write is carried out.
		w.Reset()
		require.Eventually(t, func() bool { calls, _ := w.Counts(); return calls["Range"] > 0 }, hang, tick)
		close(release)
		require.NoError(t, <-sent)
		requireGone(t, c, name)
		requireFree(t, name)
	}
	require.NoError(t, s.Err())
}

// The same with a repetition that succeeded: the late write is carried out after Unlock.
func TestFault_A1_LateRequestAfterUnlock(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	release, sent := make(chan struct{}), make(chan error, 1)
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		go func() {
			<-release
			sent <- send(context.WithoutCancel(ctx))
		}()
		return errLostReply
	})
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	close(release)
	require.NoError(t, <-sent)
	requireGone(t, c, name)
	requireFree(t, name)
}

// A late write may be carried out after the session has stopped looking for it. The next
// acquisition with its key finds it, does not wait for it, and does not take it for its
// own entry.
func TestFault_A1_LateWriteUnderTheOwnKey(t *testing.T) {
	c := cluster.Client(t)
	mutex, read := exclusiveBase, sharedBase
	lock, rlock := (*RWMutex).Lock, (*RWMutex).RLock
	for what, test := range map[string]struct {
		lock func(*RWMutex, context.Context) (*Held, error)
		late []func(name string, id clientv3.LeaseID) string
	}{
		"of a Mutex":                  {lock, []func(string, clientv3.LeaseID) string{mutex}},
		"of a write lock":             {lock, []func(string, clientv3.LeaseID) string{mutex, read}},
		"of a read lock":              {lock, []func(string, clientv3.LeaseID) string{read}},
		"of a read lock, by the next": {rlock, []func(string, clientv3.LeaseID) string{read}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := lockName(t)
			appear := func(s *Session) {
				var puts []clientv3.Op
				for _, key := range test.late {
					puts = append(puts, clientv3.OpPut(key(name, s.Lease()), `{"nonce":"`+s.nonce+`0"}`, clientv3.WithLease(s.Lease())))
				}
				_, err := c.Txn(testCtx(t)).Then(puts...).Commit()
				require.NoError(t, err)
			}
			pass := func(s *Session) {
				appear(s)
				h, err := test.lock(NewRWMutex(s, name), testCtx(t))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(testCtx(t)))
				requireGone(t, c, name)
			}
			pass(newTestSession(t, c, WithTTL(2*hang))) // found at once, not by a later search
			s := newTestSession(t, c, WithTTL(2*time.Second))
			pass(s)
			appear(s) // a late write of a key that the session has skipped
			requireGone(t, c, name)
		})
	}
}

func TestFault_A2_I5_StaleUnlock(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	m := NewMutex(s, name)
	a, err := m.Lock(testCtx(t))
	require.NoError(t, err)

	// The reply to Unlock is lost. Its repetition is delayed until another acquisition
	// has the key.
	again := make(chan struct{})
	repeated := make(chan struct{})
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			close(repeated)
			<-again
			return send(ctx)
		})
		return errLostReply
	})
	unlocked := make(chan error, 1)
	go func() { unlocked <- a.Unlock(testCtx(t)) }()
	<-repeated
	require.Equal(t, exclusiveBase(name, s.Lease()), a.Key())
	put, err := c.Put(testCtx(t), a.Key(), "another acquisition", clientv3.WithLease(s.Lease()))
	require.NoError(t, err)
	close(again)
	require.NoError(t, <-unlocked, "an earlier attempt has deleted the entry")
	resp, err := c.Get(testCtx(t), a.Key())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, "the repetition deleted a newer entry")
	require.Equal(t, put.Header.Revision, resp.Kvs[0].CreateRevision)
	require.ErrorIs(t, a.Unlock(testCtx(t)), ErrNotHeld)
	_, err = c.Delete(testCtx(t), a.Key())
	require.NoError(t, err)
}

func TestFault_A3_TryLockLeavesNothing(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	holder, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(testCtx(t))
	w.Once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		cancel() // after the txn, before Try returns
		return err
	})
	_, err = NewMutex(s, name).TryLock(ctx)
	require.Error(t, err)
	require.Len(t, entries(t, c, name), 1)
	require.NoError(t, holder.Unlock(testCtx(t)))
	h, err := NewMutex(s, name).TryLock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
}

func TestFault_A4_UnlockWithEndedCtx(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	for _, lock := range lockFuncs(s, name) {
		h, err := lock(testCtx(t))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(testCtx(t))
		cancel()
		require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
		require.False(t, h.Valid())
		requireGone(t, c, name)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrNotHeld)
	}
}

// Unlock's requests fail for a while, some before and some after they were carried
// out. Unlock repeats them until etcd has confirmed one, also after its ctx has ended.
func TestFault_A5_UnlockFailsOnce(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewRWMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	w.Once("Txn", func(context.Context, func(context.Context) error) error { return errLostReply })
	require.NoError(t, h.Unlock(testCtx(t)))
	require.Empty(t, entries(t, c, name))

	h, err = NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(testCtx(t))
	w.Once("Txn", func(context.Context, func(context.Context) error) error { cancel(); return errLostReply })
	require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
	requireGone(t, c, name)
}

// A wait that fails for another reason also removes its entry. Here etcd refuses to
// show the queue.
func TestFault_A6_EveryExitRemovesTheEntry(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	m := NewMutex(newTestSession(t, cluster.Client(t)), name)
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	for range 2 { // with two entries before it, a read is needed to choose the blocker
		_, err = m.Enqueue(testCtx(t))
		require.NoError(t, err)
	}
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method == "Range" {
			return status.Error(codes.PermissionDenied, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied))
		}
		return send(ctx)
	})
	_, err = NewMutex(s, name).Lock(testCtx(t))
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, "readwrite")
	require.Eventually(t, func() bool { return len(entries(t, cluster.Client(t), name)) == 3 }, hang, tick)
	require.NoError(t, h.Check(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
}

// An entry without a lease, as a crashed tool may leave it, blocks the lock. Keys that are
// not entries do not block it.
func TestFault_A7_StrayKeys(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	for _, key := range []string{"/config", "/b/694d", "/0", "/r", "/r0", "/abc-0", "/ABC", "/zzz"} {
		_, err := c.Put(testCtx(t), name+key, "")
		require.NoError(t, err)
	}
	for kind, lock := range lockFuncs(s, name) {
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	_, err := c.Put(testCtx(t), name+"/abc", "")
	require.NoError(t, err)
	_, err = NewMutex(s, name).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, tk, 1)
	_, err = c.Delete(testCtx(t), name+"/abc")
	require.NoError(t, err)
	h, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
}

func TestFault_A8_LostGrantReply(t *testing.T) {
	c, w := wiredClient(t, cluster)
	before := leases(t, c)
	w.LoseReply("LeaseGrant")
	s := newTestSession(t, c)
	require.Equal(t, []clientv3.LeaseID{s.Lease()}, leases(t, c, before...), "a second lease must not be granted")
	require.NoError(t, s.Close())
	require.Empty(t, leases(t, c, before...))

	// ctx ends before it is known whether a lease was granted.
	ctx, cancel := context.WithCancel(testCtx(t))
	w.Once("LeaseGrant", func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	_, err := NewSession(ctx, c)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return len(leases(t, c, before...)) == 0 }, hang, tick)
}

func TestFault_B5_NoLocker(t *testing.T) {
	for _, v := range []any{&Mutex{}, &RWMutex{}, &Held{}} {
		_, is := v.(sync.Locker)
		require.False(t, is, "%T", v)
	}
}

// The waiter's own lease is revoked while it waits.
func TestFault_B6_OwnLeaseGone(t *testing.T) {
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := lockName(t)
		h, err := NewRWMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		c2, w := wiredClient(t, cluster)
		s := newTestSession(t, c2, WithTTL(time.Minute))
		failed := make(chan error, 1)
		w.Reset()
		go func() {
			_, err := lockFuncs(s, name)[kind](testCtx(t))
			failed <- err
		}()
		w.WaitFor(t, 0, 1)
		_, err = c.Revoke(testCtx(t), s.Lease())
		require.NoError(t, err)
		select {
		case err := <-failed:
			require.ErrorIs(t, err, ErrSessionExpired, kind)
		case <-time.After(10 * time.Second): // its next renewal is in 20 s
			t.Fatal("the waiter still waits")
		}
		<-s.Done()
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

// Deeper in the queue a waiter does not watch its own entry. It hears of a lost lease at
// the session's next renewal, and of a removed entry at the next recheck.
func TestFault_B6_DeepInTheQueue(t *testing.T) {
	c := cluster.Client(t)
	for what, tc := range map[string]struct {
		remove func(ctx context.Context, s *Session, key string) error
		want   error
	}{
		"revoked": {func(ctx context.Context, s *Session, _ string) error { _, err := c.Revoke(ctx, s.Lease()); return err }, ErrSessionExpired},
		"deleted": {func(ctx context.Context, _ *Session, key string) error { _, err := c.Delete(ctx, key); return err }, ErrLost},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
				name := lockName(t)
				m := NewMutex(newTestSession(t, c), name)
				h, err := m.Lock(testCtx(t))
				require.NoError(t, err)
				_, err = m.Enqueue(testCtx(t))
				require.NoError(t, err)
				c2, w := wiredClient(t, cluster)
				s := newTestSession(t, c2, WithTTL(2*time.Second))
				failed := make(chan error, 1)
				w.Reset()
				go func() {
					_, err := lockFuncs(s, name)[kind](testCtx(t))
					failed <- err
				}()
				w.WaitFor(t, 0, 1)
				key := exclusiveBase(name, s.Lease())
				if kind == "RWMutex read" {
					key = sharedBase(name, s.Lease())
				}
				require.NoError(t, tc.remove(testCtx(t), s, key))
				select {
				case err := <-failed:
					require.ErrorIs(t, err, tc.want, kind)
				case <-time.After(10 * time.Second):
					t.Fatal("the waiter still waits")
				}
				require.NoError(t, h.Unlock(testCtx(t)))
			}
		})
	}
}

// Mutex and RWMutex have no state: after the end of the session a new one works.
func TestFault_B7_AfterExpiry(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	_, err := c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	for range 2 {
		_, err = NewMutex(s, name).Lock(testCtx(t))
		require.ErrorIs(t, err, ErrSessionExpired)
	}
	require.ErrorIs(t, s.Err(), ErrSessionExpired)
	requireFree(t, name)
}

func TestFault_D2_TryLockBesideAWaiter(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	waiter, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = NewMutex(s, name).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, h.Unlock(testCtx(t)))
	h2, err := waiter.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h2.Check(testCtx(t)))
	require.NoError(t, h2.Unlock(testCtx(t)))
}

// Another client deletes the waiter's key and writes it again: that is not the waiter's
// entry.
func TestFault_D5_WrongIncarnation(t *testing.T) {
	for _, recreate := range []bool{true, false} {
		c := cluster.Client(t)
		name := lockName(t)
		h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		c2, w := wiredClient(t, cluster)
		s := newTestSession(t, c2)
		w.Reset()
		tk, err := NewMutex(s, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		w.WaitFor(t, 0, 1)
		key := exclusiveBase(name, s.Lease())
		_, err = c.Delete(testCtx(t), key)
		require.NoError(t, err)
		if recreate {
			_, err = c.Put(testCtx(t), key, "", clientv3.WithLease(s.Lease()))
			require.NoError(t, err)
		}
		_, err = tk.Wait(testCtx(t))
		require.ErrorIs(t, err, ErrLost)
		require.NotErrorIs(t, err, ErrSessionExpired)
		require.NoError(t, s.Err())
		require.NoError(t, h.Unlock(testCtx(t)))
		if recreate {
			require.Equal(t, []string{key}, entries(t, c, name), "the entry of another client must stay")
			_, err = c.Delete(testCtx(t), key)
			require.NoError(t, err)
		}
	}
}

// When the lock is not held, IsOwner is a comparison that is false, and never an error.
func TestFault_D6_Guards(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	owner := func(h *Held) bool {
		// The Get is needed: etcd treats a transaction of comparisons alone as serializable,
		// so a lagging member would answer it from its old state.
		resp, err := c.Txn(testCtx(t)).If(h.IsOwner()).Then(clientv3.OpGet(h.Key())).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	for kind, lock := range lockFuncs(s, name) {
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		resp, err := c.Get(testCtx(t), h.Key())
		require.NoError(t, err)
		require.Equal(t, resp.Kvs[0].CreateRevision, h.Token())
		require.True(t, owner(h))

		_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", kind)).Commit()
		require.NoError(t, err)
		txn, err := h.Txn(testCtx(t)).If(clientv3.Compare(clientv3.Value(name+".x"), "=", "no")).
			Then(clientv3.OpPut(name+".x", "wrong")).Else(clientv3.OpGet(name + ".x")).Commit()
		require.NoError(t, err)
		require.False(t, txn.Succeeded, "the caller's own comparison must count")
		require.Equal(t, kind, string(txn.Responses[0].GetResponseRange().Kvs[0].Value))

		_, err = c.Delete(testCtx(t), h.Key())
		require.NoError(t, err)
		require.False(t, owner(h))
		_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", "too late")).Commit()
		require.ErrorIs(t, err, ErrLost)
		require.False(t, h.Valid())
		got, err := c.Get(testCtx(t), name+".x")
		require.NoError(t, err)
		require.Equal(t, kind, string(got.Kvs[0].Value))
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
		requireGone(t, c, name)
	}
}

// The lease of the first of two waiters is revoked. In etcd's own packages this makes two
// writers hold the lock (E1), or elects a leader without a key (E2).
func TestFault_E1_FirstWaiterRevoked(t *testing.T) {
	c := cluster.Client(t)
	for range 10 {
		name := lockName(t)
		h, err := NewRWMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		s2 := newTestSession(t, cluster.Client(t))
		second, err := NewRWMutex(s2, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		third, err := NewRWMutex(newTestSession(t, cluster.Client(t)), name).Enqueue(testCtx(t))
		require.NoError(t, err)
		_, err = c.Revoke(testCtx(t), s2.Lease())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
		h3, err := third.Wait(testCtx(t))
		require.NoError(t, err)
		_, err = second.Wait(testCtx(t))
		require.ErrorIs(t, err, ErrSessionExpired)
		require.NoError(t, h3.Check(testCtx(t)))
		require.NoError(t, h3.Unlock(testCtx(t)))
	}
}

func TestFault_E2_PhantomGrant(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	s2 := newTestSession(t, c)
	tk, err := NewMutex(s2, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = c.Revoke(testCtx(t), s2.Lease())
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	_, err = tk.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.Empty(t, entries(t, c, name))
}

// Rewriting an entry's value does not change its place.
func TestFault_E3_ValueRewritten(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	m := NewMutex(s, name)
	var tickets []*Ticket
	for range 3 {
		tk, err := m.Enqueue(testCtx(t))
		require.NoError(t, err)
		tickets = append(tickets, tk)
	}
	keys := entries(t, c, name)
	for _, key := range keys {
		_, err := c.Put(testCtx(t), key, "rewritten", clientv3.WithIgnoreLease())
		require.NoError(t, err)
	}
	require.Equal(t, keys, entries(t, c, name))
	for _, tk := range tickets {
		h, err := tk.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
	require.Empty(t, entries(t, c, name))
}

func TestFault_E4_RLockTwice(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	rw := NewRWMutex(newTestSession(t, c), name)
	a, err := rw.RLock(testCtx(t))
	require.NoError(t, err)
	b, err := rw.RLock(testCtx(t))
	require.NoError(t, err)
	require.Len(t, entries(t, c, name), 2)
	require.NoError(t, a.Unlock(testCtx(t)))
	require.NoError(t, b.Check(testCtx(t)))
	require.NoError(t, b.Unlock(testCtx(t)))
	require.Empty(t, entries(t, c, name))
}

// One request looks for many late writes. If etcd refuses it, because the client has lost
// its rights on one of the locks, the late writes of the other locks are still found.
func TestFault_A1_LateWritesBesideAForbiddenOne(t *testing.T) {
	f := newFakeEtcd()
	s := f.session(5)
	var some []unsettled
	for _, name := range []string{"a", "b", "c", "d"} {
		e := NewRWMutex(s, name).l.entry(t.Context(), s, writeMode)
		e.reserveKeys()
		var puts []*pb.RequestOp
		for _, key := range e.keys() {
			puts = append(puts, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(e.acquiring.value)}}})
		}
		f.applyLocked(puts, nil)
		some = append(some, unsettled{&e.entry, time.Now()})
	}
	var reads atomic.Int32
	f.step = func(_ context.Context, what string) error {
		if n := reads.Add(1); what == "Range" && (n == 1 || n == 2) { // the request for all five, and for the first two
			return rpctypes.ErrGRPCPermissionDenied
		}
		return nil
	}
	// Another user of the same lease has the key of the next entry.
	other := NewMutex(s, "e").l.entry(t.Context(), s, mutexMode)
	other.reserveKeys()
	f.put(other.key)
	some = append(some, unsettled{&other.entry, time.Now()})
	require.NoError(t, s.removeLateWrites(t.Context(), some))
	for _, name := range []string{"a", "b", "c", "d"} {
		require.Empty(t, f.keys(name+"/"))
	}
	require.Equal(t, []string{other.key}, keysOf(f.keys("e/")))
	f.step = func(context.Context, string) error { return rpctypes.ErrGRPCPermissionDenied }
	require.ErrorIs(t, s.removeLateWrites(t.Context(), some), rpctypes.ErrPermissionDenied)
	s.terminate(ErrSessionClosed, "the test is over")
	s.endLease()
}
