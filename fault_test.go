package etcdlock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// One test for each row of the list of what goes wrong with locks on etcd, by
// its id. Each fails on the code without the line that it is about.

func requireGone(t *testing.T, c *clientv3.Client, name string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 0 }, hang, tick, "entries are left")
}

// requireFree: another session gets the lock.
func requireFree(t *testing.T, name string) {
	t.Helper()
	h, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A lost reply is no error: the txn is repeated and finds itself.
func TestFault_A1_LostAcquireReply(t *testing.T) {
	for _, times := range []int{1, 3} {
		c, w := wiredClient(t, cluster)
		s := newTestSession(t, c)
		for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
			name := lockName(t)
			var lost atomic.Int32
			w.onUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
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

// ctx ends while the reply is on its way: the entry is removed behind it.
func TestFault_A1_CtxEndsInFlight(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
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

// ctx has ended when the reply comes: the lock is given back, not handed out.
func TestFault_A1_CtxEndsBeforeTheReply(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try", "Try write", "Try read"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
			err := send(ctx)
			cancel()
			return err
		})
		_, err := lockFuncs(s, name)[kind](ctx)
		require.ErrorIs(t, err, context.Canceled, kind)
		requireGone(t, c, name)
	}
}

// The request itself is held back: the entry appears after Lock has returned.
func TestFault_A1_LateRequest(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try"} {
		name := lockName(t)
		ctx, cancel := context.WithCancel(testCtx(t))
		release, sent := make(chan struct{}), make(chan error, 1)
		w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
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
		// Let the settling look once and find nothing, then the ghost comes.
		w.reset()
		require.Eventually(t, func() bool { calls, _ := w.counts(); return calls["Range"] > 0 }, hang, tick)
		close(release)
		require.NoError(t, <-sent)
		requireGone(t, c, name)
		requireFree(t, name)
	}
	require.NoError(t, s.Err())
}

// The same, with a repetition that succeeded: the ghost comes after Unlock.
func TestFault_A1_LateRequestAfterUnlock(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	release, sent := make(chan struct{}), make(chan error, 1)
	w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
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

// A ghost that comes later than anybody looks for it is found by the next user
// of its key, which neither waits for it nor takes it for its own.
func TestFault_A1_GhostUnderTheOwnKey(t *testing.T) {
	c := cluster.Client(t)
	mutex, read := exclusiveBase, sharedBase
	lock, rlock := (*RWMutex).Lock, (*RWMutex).RLock
	for what, test := range map[string]struct {
		lock   func(*RWMutex, context.Context) (*Held, error)
		ghosts []func(name string, id clientv3.LeaseID) string
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
				for _, key := range test.ghosts {
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
			pass(newTestSession(t, c, WithTTL(2*hang))) // at once, not by a sweep
			s := newTestSession(t, c, WithTTL(2*time.Second))
			pass(s)
			appear(s) // a request to write a key that was passed over comes late
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

	// The reply to Unlock is lost; its repetition is held back until another
	// acquisition has the key.
	again := make(chan struct{})
	repeated := make(chan struct{})
	w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
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
	put, err := c.Put(testCtx(t), a.Key(), "somebody else's", clientv3.WithLease(s.Lease()))
	require.NoError(t, err)
	close(again)
	require.NoError(t, <-unlocked, "an earlier attempt has done it")
	resp, err := c.Get(testCtx(t), a.Key())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, "the repetition touched a newer entry")
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
	w.once("Txn", func(ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		cancel() // right after the txn has returned
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

// Unlock's requests fail for a while, some before and some after they were
// carried out: it goes on until etcd has confirmed, also behind an ended ctx.
func TestFault_A5_UnlockFailsOnce(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	h, err := NewRWMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	w.once("Txn", func(context.Context, func(context.Context) error) error { return errLostReply })
	require.NoError(t, h.Unlock(testCtx(t)))
	require.Empty(t, entries(t, c, name))

	h, err = NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(testCtx(t))
	w.once("Txn", func(context.Context, func(context.Context) error) error { cancel(); return errLostReply })
	require.ErrorIs(t, h.Unlock(ctx), context.Canceled)
	requireGone(t, c, name)
}

// A wait that fails for any other reason removes its entry too: here etcd
// refuses to show the queue.
func TestFault_A6_EveryExitRemovesTheEntry(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	m := NewMutex(newTestSession(t, cluster.Client(t)), name)
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	for range 2 { // so that a read is needed to choose the blocker
		_, err = m.Enqueue(testCtx(t))
		require.NoError(t, err)
	}
	w.onUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
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

// An entry without a lease, as a tool that crashed leaves it, blocks; keys that
// are no entries don't.
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

// leases are those that there are, apart from some. A member lists what it has
// itself, so one is asked that has come as far as the present.
func leases(t *testing.T, c *clientv3.Client, but ...clientv3.LeaseID) (ids []clientv3.LeaseID) {
	t.Helper()
	one, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints()[:1], Logger: zap.NewNop()})
	require.NoError(t, err)
	defer one.Close()
	revision(t, one)
	resp, err := one.Leases(testCtx(t))
	require.NoError(t, err)
	for _, l := range resp.Leases {
		if !slices.Contains(but, l.ID) {
			ids = append(ids, l.ID)
		}
	}
	return ids
}

func TestFault_A8_LostGrantReply(t *testing.T) {
	c, w := wiredClient(t, cluster)
	before := leases(t, c)
	w.loseReply("LeaseGrant")
	s := newTestSession(t, c)
	require.Equal(t, []clientv3.LeaseID{s.Lease()}, leases(t, c, before...), "a second lease was granted")
	require.NoError(t, s.Close())
	require.Empty(t, leases(t, c, before...))

	// ctx ends before it is known whether one was granted.
	ctx, cancel := context.WithCancel(testCtx(t))
	w.once("LeaseGrant", func(ctx context.Context, send func(context.Context) error) error {
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

// The waiter's own lease goes while it waits.
func TestFault_B6_OwnLeaseGone(t *testing.T) {
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := lockName(t)
		h, err := NewRWMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		c2, w := wiredClient(t, cluster)
		s := newTestSession(t, c2, WithTTL(time.Minute))
		failed := make(chan error, 1)
		w.reset()
		go func() {
			_, err := lockFuncs(s, name)[kind](testCtx(t))
			failed <- err
		}()
		waitsFor(t, w, 1)
		_, err = c.Revoke(testCtx(t), s.Lease())
		require.NoError(t, err)
		select {
		case err := <-failed:
			require.ErrorIs(t, err, ErrSessionExpired, kind)
		case <-time.After(10 * time.Second): // its next renewal is 20 s away
			t.Fatal("it waits on")
		}
		<-s.Done()
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

// Deeper in the queue there is no watch on the own entry: the session tells of a
// lease that is gone when it renews, and a recheck of an entry that is gone.
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
				w.reset()
				go func() {
					_, err := lockFuncs(s, name)[kind](testCtx(t))
					failed <- err
				}()
				waitsFor(t, w, 1)
				key := exclusiveBase(name, s.Lease())
				if kind == "RWMutex read" {
					key = sharedBase(name, s.Lease())
				}
				require.NoError(t, tc.remove(testCtx(t), s, key))
				select {
				case err := <-failed:
					require.ErrorIs(t, err, tc.want, kind)
				case <-time.After(10 * time.Second):
					t.Fatal("it waits on")
				}
				require.NoError(t, h.Unlock(testCtx(t)))
			}
		})
	}
}

// Handles have no state: what ends is the session, and a new one does.
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

// Somebody deletes the waiter's key and writes it anew: that is not its entry.
func TestFault_D5_WrongIncarnation(t *testing.T) {
	for _, recreate := range []bool{true, false} {
		c := cluster.Client(t)
		name := lockName(t)
		h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		c2, w := wiredClient(t, cluster)
		s := newTestSession(t, c2)
		w.reset()
		tk, err := NewMutex(s, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		waitsFor(t, w, 1)
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
			require.Equal(t, []string{key}, entries(t, c, name), "another's entry is left alone")
			_, err = c.Delete(testCtx(t), key)
			require.NoError(t, err)
		}
	}
}

// IsOwner is a comparison that is false, never an error, when not held.
func TestFault_D6_Guards(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	owner := func(h *Held) bool {
		// With a read: etcd takes a transaction of comparisons alone for a serializable
		// one, which a member that lags answers from what it has.
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
		require.False(t, txn.Succeeded, "the caller's own comparison")
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

// revoked is the loss of the lease of the first of two waiters: the row that
// lets two writers in at once (E1), or a leader without a key (E2).
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

// Rewriting an entry's value moves nobody.
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

// Late writes are looked for many at once; where etcd refuses that, since one of
// the locks may have become forbidden, the others' are found all the same.
func TestFault_A1_GhostsBesideAForbiddenOne(t *testing.T) {
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
		if n := reads.Add(1); what == "Range" && (n == 1 || n == 2) { // all five, and the first two
			return rpctypes.ErrGRPCPermissionDenied
		}
		return nil
	}
	// Somebody else who uses the same lease has the next one's key.
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
