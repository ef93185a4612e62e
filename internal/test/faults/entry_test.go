package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Rows A6, A7, B5 to B7, D and E: entries that others remove, rewrite or leave, and their order.

// A wait that fails for another reason also removes its entry. Here etcd refuses to
// show the queue.
func TestFault_A6_EveryExitRemovesTheEntry(t *testing.T) {
	c, w := harness.WiredClient(t, cluster)
	s := newSession(t, c)
	name := harness.LockName(t)
	m := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name)
	h, err := m.Lock(harness.Ctx(t))
	require.NoError(t, err)
	const before = 17 // more than the txn that enqueues shows, so that a read is needed to choose the blocker
	for range before {
		_, err = m.Enqueue(harness.Ctx(t))
		require.NoError(t, err)
	}
	// It shows single keys: what a late request may have written is found by those.
	w.OnUnary(func(ctx context.Context, method string, req any, send func(context.Context) error) error {
		if method == "Range" && len(harness.RangesOf(req)[0].RangeEnd) > 0 {
			return status.Error(codes.PermissionDenied, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied))
		}
		return send(ctx)
	})
	_, err = etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, "readwrite")
	require.Eventually(t, func() bool { return len(harness.Entries(t, cluster.Client(t), name)) == 1+before }, harness.Hang, harness.Tick)
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// An entry without a lease, as a crashed tool may leave it, blocks the lock. Keys that are
// not entries do not block it.
func TestFault_A7_StrayKeys(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	for _, key := range []string{"/config", "/b/694d", "/0", "/r", "/r0", "/abc-0", "/ABC", "/zzz"} {
		_, err := c.Put(harness.Ctx(t), name+key, "")
		require.NoError(t, err)
	}
	for kind, lock := range lockFuncs(s, name) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err, kind)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	_, err := c.Put(harness.Ctx(t), name+"/abc", "")
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s, name).TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, tk, 1)
	_, err = c.Delete(harness.Ctx(t), name+"/abc")
	require.NoError(t, err)
	h, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

func TestFault_B5_NoLocker(t *testing.T) {
	for _, v := range []any{&etcdlock.Mutex{}, &etcdlock.RWMutex{}, &etcdlock.Held{}} {
		_, is := v.(sync.Locker)
		require.False(t, is, "%T", v)
	}
}

// The waiter's own lease is revoked while it waits.
func TestFault_B6_OwnLeaseGone(t *testing.T) {
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		name := harness.LockName(t)
		h, err := etcdlock.NewRWMutex(newSession(t, c), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		c2, w := harness.WiredClient(t, cluster)
		s := newSession(t, c2, etcdlock.WithTTL(time.Minute))
		failed := make(chan error, 1)
		w.Reset()
		go func() {
			_, err := lockFuncs(s, name)[kind](harness.Ctx(t))
			failed <- err
		}()
		w.WaitFor(t, 0, 1)
		taking := time.Now()
		_, err = c.Revoke(harness.Ctx(t), s.Lease())
		require.NoError(t, err)
		select {
		case err := <-failed:
			harness.RequireCause(t, taking, err, etcdlock.ErrSessionExpired, etcdlock.ErrLost, kind)
		case <-time.After(10 * time.Second): // its next renewal is in 20 s
			t.Fatal("the waiter still waits")
		}
		<-s.Done()
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}

// Deeper in the queue a waiter does not watch its own entry. It hears of a lost lease at
// the session's next renewal, and of a removed entry at the next recheck.
func TestFault_B6_DeepInTheQueue(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	for what, tc := range map[string]struct {
		remove func(ctx context.Context, s *etcdlock.Session, key string) error
		want   error
	}{
		"revoked": {func(ctx context.Context, s *etcdlock.Session, _ string) error {
			_, err := c.Revoke(ctx, s.Lease())
			return err
		}, etcdlock.ErrSessionExpired},
		"deleted": {func(ctx context.Context, _ *etcdlock.Session, key string) error {
			_, err := c.Delete(ctx, key)
			return err
		}, etcdlock.ErrLost},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
				name := harness.LockName(t)
				m := etcdlock.NewMutex(newSession(t, c), name)
				h, err := m.Lock(harness.Ctx(t))
				require.NoError(t, err)
				_, err = m.Enqueue(harness.Ctx(t))
				require.NoError(t, err)
				c2, w := harness.WiredClient(t, cluster)
				s := newSession(t, c2, etcdlock.WithTTL(9*time.Second))
				failed := make(chan error, 1)
				w.Reset()
				go func() {
					_, err := lockFuncs(s, name)[kind](harness.Ctx(t))
					failed <- err
				}()
				w.WaitFor(t, 0, 1)
				key := harness.ExclusiveKey(name, s.Lease())
				if kind == "RWMutex read" {
					key = harness.SharedKey(name, s.Lease())
				}
				require.NoError(t, tc.remove(harness.Ctx(t), s, key))
				select {
				case err := <-failed:
					require.ErrorIs(t, err, tc.want, kind)
				case <-time.After(harness.Hang):
					t.Fatal("the waiter still waits")
				}
				require.NoError(t, h.Unlock(harness.Ctx(t)))
			}
		})
	}
}

// Mutex and RWMutex have no state: after the end of the session a new one works.
func TestFault_B7_AfterExpiry(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	for range 2 {
		_, err = etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
	}
	require.ErrorIs(t, s.Err(), etcdlock.ErrSessionExpired)
	requireFree(t, name)
}

func TestFault_D2_TryLockBesideAWaiter(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	waiter, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s, name).TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h2, err := waiter.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h2.Check(harness.Ctx(t)))
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

func TestFault_D1_D3_OneSessionManyGoroutines(t *testing.T) {
	for _, values := range []int{1, 100} {
		t.Run(fmt.Sprintf("values=%d", values), func(t *testing.T) {
			c := cluster.Client(t)
			s := newSession(t, c)
			name := harness.LockName(t)
			mutexes := make([]*etcdlock.Mutex, values)
			for i := range mutexes {
				mutexes[i] = etcdlock.NewMutex(s, name)
			}
			counter := 0
			var tokens []int64
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					h, err := mutexes[i%values].Lock(harness.Ctx(t))
					if err != nil {
						t.Error(err)
						return
					}
					counter++ // the race detector reports two goroutines in here
					tokens = append(tokens, h.Token())
					if err := h.Unlock(harness.Ctx(t)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.Equal(t, 100, counter)
			require.IsIncreasing(t, tokens, "locks must be granted in the order of create revisions")
			harness.RequireReleased(t, c, name+"/", tokens...)
			require.Eventually(t, func() bool {
				h := mustLock(t, s, name)
				defer func() { require.NoError(t, h.Unlock(harness.Ctx(t))) }()
				return h.Key() == harness.ExclusiveKey(name, s.Lease())
			}, 2*harness.Hang, harness.Tick, "the session's keys must become free again")
		})
	}
}

// Another client deletes the waiter's key and writes it again: that is not the waiter's
// entry.
func TestFault_D5_WrongIncarnation(t *testing.T) {
	for _, recreate := range []bool{true, false} {
		c := cluster.Client(t)
		name := harness.LockName(t)
		h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		c2, w := harness.WiredClient(t, cluster)
		s := newSession(t, c2)
		w.Reset()
		tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		w.WaitFor(t, 0, 1)
		key := harness.ExclusiveKey(name, s.Lease())
		_, err = c.Delete(harness.Ctx(t), key)
		require.NoError(t, err)
		if recreate {
			_, err = c.Put(harness.Ctx(t), key, "", clientv3.WithLease(s.Lease()))
			require.NoError(t, err)
		}
		_, err = tk.Wait(harness.Ctx(t))
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.NotErrorIs(t, err, etcdlock.ErrSessionExpired)
		require.NoError(t, s.Err())
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		if recreate {
			require.Equal(t, []string{key}, harness.Entries(t, c, name), "the entry of another client must stay")
			_, err = c.Delete(harness.Ctx(t), key)
			require.NoError(t, err)
		}
	}
}

// When the lock is not held, IsOwner is a comparison that is false, and never an error.
func TestFault_D6_Guards(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	owner := func(h *etcdlock.Held) bool {
		// The Get is needed: etcd treats a transaction of comparisons alone as serializable,
		// so a lagging member would answer it from its old state.
		resp, err := c.Txn(harness.Ctx(t)).If(h.IsOwner()).Then(clientv3.OpGet(h.Key())).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	for kind, lock := range lockFuncs(s, name) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err, kind)
		resp, err := c.Get(harness.Ctx(t), h.Key())
		require.NoError(t, err)
		require.Equal(t, resp.Kvs[0].CreateRevision, h.Token())
		require.True(t, owner(h))

		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", kind)).Commit()
		require.NoError(t, err)
		txn, err := h.Txn(harness.Ctx(t)).If(clientv3.Compare(clientv3.Value(name+".x"), "=", "no")).
			Then(clientv3.OpPut(name+".x", "wrong")).Else(clientv3.OpGet(name + ".x")).Commit()
		require.NoError(t, err)
		require.False(t, txn.Succeeded, "the caller's own comparison must count")
		require.Equal(t, kind, string(txn.Responses[0].GetResponseRange().Kvs[0].Value))

		_, err = c.Delete(harness.Ctx(t), h.Key())
		require.NoError(t, err)
		require.False(t, owner(h))
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", "too late")).Commit()
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.False(t, h.Valid())
		got, err := c.Get(harness.Ctx(t), name+".x")
		require.NoError(t, err)
		require.Equal(t, kind, string(got.Kvs[0].Value))
		require.ErrorIs(t, h.Unlock(harness.Ctx(t)), etcdlock.ErrLost)
		harness.RequireGone(t, c, name)
	}
}

// The lease of the first of two waiters is revoked. In etcd's own packages this makes two
// writers hold the lock (E1), or elects a leader without a key (E2).
func TestFault_E1_FirstWaiterRevoked(t *testing.T) {
	c := cluster.Client(t)
	for range sample.Rounds(t, 4, 10) {
		name := harness.LockName(t)
		h, err := etcdlock.NewRWMutex(newSession(t, c), name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		s2 := newSession(t, cluster.Client(t))
		second, err := etcdlock.NewRWMutex(s2, name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		third, err := etcdlock.NewRWMutex(newSession(t, cluster.Client(t)), name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		taking := time.Now()
		_, err = c.Revoke(harness.Ctx(t), s2.Lease())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		h3, err := third.Wait(harness.Ctx(t))
		require.NoError(t, err)
		_, err = second.Wait(harness.Ctx(t))
		harness.RequireCause(t, taking, err, etcdlock.ErrSessionExpired, etcdlock.ErrLost)
		require.NoError(t, h3.Check(harness.Ctx(t)))
		require.NoError(t, h3.Unlock(harness.Ctx(t)))
	}
}

func TestFault_E2_PhantomGrant(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	h, err := etcdlock.NewMutex(newSession(t, c), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	s2 := newSession(t, c)
	tk, err := etcdlock.NewMutex(s2, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	taking := time.Now()
	_, err = c.Revoke(harness.Ctx(t), s2.Lease())
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	_, err = tk.Wait(harness.Ctx(t))
	harness.RequireCause(t, taking, err, etcdlock.ErrSessionExpired, etcdlock.ErrLost)
	harness.QueueIs(t, c, name, 0)
}

// Rewriting an entry's value does not change its place.
func TestFault_E3_ValueRewritten(t *testing.T) {
	c := cluster.Client(t)
	s := newSession(t, c)
	name := harness.LockName(t)
	m := etcdlock.NewMutex(s, name)
	var tickets []*etcdlock.Ticket
	for range 3 {
		tk, err := m.Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		tickets = append(tickets, tk)
	}
	keys := harness.Entries(t, c, name)
	for _, key := range keys {
		_, err := c.Put(harness.Ctx(t), key, "rewritten", clientv3.WithIgnoreLease())
		require.NoError(t, err)
	}
	require.Equal(t, keys, harness.Entries(t, c, name))
	var tokens []int64
	for _, tk := range tickets {
		h, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		tokens = append(tokens, h.Token())
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	harness.RequireReleased(t, c, name+"/", tokens...)
}

func TestFault_E4_RLockTwice(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	rw := etcdlock.NewRWMutex(newSession(t, c), name)
	a, b := harness.Take(t, rw.RLock), harness.Take(t, rw.RLock)
	require.Len(t, harness.Entries(t, c, name), 2)
	require.NoError(t, a.Unlock(harness.Ctx(t)))
	require.NoError(t, b.Check(harness.Ctx(t)))
	require.NoError(t, b.Unlock(harness.Ctx(t)))
	harness.RequireReleased(t, c, name+"/", a.Token(), b.Token())
}

func TestFault_E5_I2_OrderOfReadersAndWriters(t *testing.T) {
	c := cluster.Client(t)
	name := harness.LockName(t)
	rw := etcdlock.NewRWMutex(newSession(t, c), name)
	r1 := harness.Take(t, rw.RLock)
	w2 := harness.Take(t, rw.Enqueue)
	r3, r4 := harness.Take(t, rw.REnqueue), harness.Take(t, rw.REnqueue)
	m5 := harness.Take(t, etcdlock.NewMutex(newSession(t, c), name).Enqueue)
	harness.NotGranted(t, w2, 1)
	harness.NotGranted(t, r3, 1)
	harness.NotGranted(t, r4, 1)
	harness.NotGranted(t, m5, 4)
	_, err := rw.TryRLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked, "a reader must not pass the writer in the queue")

	require.NoError(t, r1.Unlock(harness.Ctx(t)))
	h2 := harness.Take(t, w2.Wait)
	harness.NotGranted(t, r3, 1)
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
	h3 := harness.Take(t, r3.Wait)
	h4 := harness.Take(t, r4.Wait)
	harness.NotGranted(t, m5, 2)
	require.NoError(t, h4.Unlock(harness.Ctx(t)))
	harness.NotGranted(t, m5, 1)
	require.NoError(t, h3.Unlock(harness.Ctx(t)))
	h5 := harness.Take(t, m5.Wait)
	require.NoError(t, h5.Unlock(harness.Ctx(t)))
	require.IsIncreasing(t, []int64{r1.Token(), h2.Token(), h3.Token(), h4.Token(), h5.Token()})
}
