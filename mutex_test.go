package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// etcd's own mutex and the keys of `etcdctl lock` wait in the same queue.
func TestMutex_SharesTheQueueWithConcurrencyAndRWMutex(t *testing.T) {
	rounds := sample.Rounds(t, 40, 200)
	name := lockName(t)
	c := cluster.Client(t)
	s := newTestSession(t, cluster.Client(t))
	m, rw := NewMutex(s, name), NewRWMutex(s, name)
	sessions := make(chan *concurrency.Session, 4)
	for range cap(sessions) { // one acquisition at a time each, because two of one session exclude nobody
		cs, err := concurrency.NewSession(c)
		require.NoError(t, err)
		defer cs.Close()
		sessions <- cs
	}

	var mu sync.Mutex
	inside, overlaps := 0, 0
	var order []int64
	section := func(rev int64) {
		mu.Lock()
		inside++
		if inside > 1 {
			overlaps++
		}
		order = append(order, rev)
		mu.Unlock()
		mu.Lock()
		inside--
		mu.Unlock()
	}
	ours := func(lock func(context.Context) (*Held, error)) error {
		h, err := lock(testCtx(t))
		if err != nil {
			return err
		}
		section(h.Token())
		return h.Unlock(testCtx(t))
	}
	run := []func() error{
		func() error { return ours(m.Lock) },
		func() error { return ours(rw.Lock) },
		func() error { // concurrency.Mutex
			cs := <-sessions
			defer func() { sessions <- cs }()
			cm := concurrency.NewMutex(cs, name)
			if err := cm.Lock(testCtx(t)); err != nil {
				return err
			}
			resp, err := c.Get(testCtx(t), cm.Key())
			if err != nil {
				return err
			}
			section(resp.Kvs[0].CreateRevision)
			return cm.Unlock(testCtx(t))
		},
		func() error { // a key as `etcdctl lock` and v3lock write it, watched by hand
			lease, err := c.Grant(testCtx(t), 60)
			if err != nil {
				return err
			}
			key := exclusiveBase(name, lease.ID)
			put, err := c.Put(testCtx(t), key, "", clientv3.WithLease(lease.ID))
			if err != nil {
				return err
			}
			for {
				resp, err := c.Get(testCtx(t), name+"/", clientv3.WithPrefix(), clientv3.WithMaxCreateRev(put.Header.Revision-1), clientv3.WithLimit(1))
				if err != nil {
					return err
				}
				if len(resp.Kvs) == 0 {
					break
				}
			}
			section(put.Header.Revision)
			_, err = c.Revoke(testCtx(t), lease.ID)
			return err
		},
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range 12 {
		wg.Go(func() {
			for i := range next {
				if err := run[i%len(run)](); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			}
		})
	}
	for i := range rounds {
		next <- i
	}
	close(next)
	wg.Wait()
	require.Zero(t, overlaps)
	require.Len(t, order, rounds)
	require.IsIncreasing(t, order)
	harness.RequireReleased(t, c, name+"/", order...)
}

// The waiter in the middle ends. The last waiter must not get the lock before the holder
// unlocks.
func TestMutex_WaiterInTheMiddleDies(t *testing.T) {
	name := lockName(t)
	c := cluster.Client(t)
	ends := map[string]func(s *Session, cancel context.CancelFunc){
		"session closed": func(s *Session, _ context.CancelFunc) { _ = s.Close() },
		"ctx ended":      func(_ *Session, cancel context.CancelFunc) { cancel() },
		"lease revoked": func(s *Session, _ context.CancelFunc) {
			if _, err := c.Revoke(testCtx(t), s.Lease()); err != nil {
				t.Error(err)
			}
		},
	}
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			h, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
			require.NoError(t, err)
			middle := newTestSession(t, c)
			ctx, cancel := context.WithCancel(testCtx(t))
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := NewMutex(middle, name).Lock(ctx)
				failed <- err
			}()
			require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick)
			last, err := NewMutex(newTestSession(t, c), name).Enqueue(testCtx(t))
			require.NoError(t, err)
			end(middle, cancel)
			require.Error(t, <-failed)
			require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick)
			n, err := last.Ahead(testCtx(t))
			require.NoError(t, err)
			require.Equal(t, 1, n)
			select {
			case <-last.Done():
				t.Fatal("the last waiter was granted while the holder had the lock")
			default:
			}
			require.NoError(t, h.Check(testCtx(t)))
			require.NoError(t, h.Unlock(testCtx(t)))
			h2, err := last.Wait(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, h2.Unlock(testCtx(t)))
		})
	}
}

// More keys that are not entries than any limited read returns.
func TestMutex_ManyForeignKeys(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c)
	name := lockName(t)
	for i := range 20 {
		for _, p := range []string{"/0config", "/b/", "/zz", "/r-", "/ffffffffffffffffffff"} {
			_, err := c.Put(testCtx(t), fmt.Sprintf("%s%s%d", name, p, i), "")
			require.NoError(t, err)
		}
	}
	for kind, lock := range lockFuncs(s, name) {
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		for _, try := range []func(context.Context) (*Held, error){NewMutex(s, name).TryLock, NewRWMutex(s, name).TryLock} {
			_, err = try(testCtx(t))
			require.ErrorIs(t, err, ErrLocked, kind)
		}
		tk, err := NewRWMutex(s, name).Enqueue(testCtx(t))
		require.NoError(t, err)
		n, err := tk.Ahead(testCtx(t))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, h.Unlock(testCtx(t)))
		h, err = tk.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

func TestDo(t *testing.T) {
	s := newTestSession(t, cluster.Client(t))
	name := lockName(t)
	m, rw := NewMutex(s, name), NewRWMutex(s, name)
	other := NewMutex(newTestSession(t, cluster.Client(t)), name)
	fail := errors.New("fn failed")

	t.Run("holds, and gives back", func(t *testing.T) {
		err := m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
			_, err := other.TryLock(ctx)
			require.ErrorIs(t, err, ErrLocked)
			require.NoError(t, h.Check(ctx))
			return fail
		})
		require.Equal(t, fail, err)
		queueIs(t, s.Client(), name, 0)
	})
	t.Run("reentrant", func(t *testing.T) {
		ran := 0
		err := rw.Do(testCtx(t), func(ctx context.Context, h *Held) error {
			inside := func(_ context.Context, h2 *Held) error {
				ran++
				require.Same(t, h, h2)
				return nil
			}
			require.NoError(t, rw.Do(ctx, inside))
			require.NoError(t, m.Do(ctx, inside))
			require.NoError(t, rw.RDo(ctx, inside), "a read lock inside the write lock must be reentrant")
			return rw.RDo(ctx, func(ctx context.Context, _ *Held) error { return m.Do(ctx, inside) })
		})
		require.NoError(t, err)
		require.Equal(t, 4, ran)
	})
	t.Run("what would deadlock", func(t *testing.T) {
		never := func(context.Context, *Held) error { t.Error("ran"); return nil }
		for _, do := range []func(context.Context, func(context.Context, *Held) error) error{m.Do, rw.Do, rw.RDo} {
			require.NoError(t, do(testCtx(t), func(ctx context.Context, h *Held) error {
				for _, lock := range []func(context.Context) (*Held, error){m.Lock, rw.Lock, rw.RLock} {
					_, err := lock(ctx)
					require.ErrorIs(t, err, ErrWouldDeadlock)
				}
				for _, enqueue := range []func(context.Context) (*Ticket, error){m.Enqueue, rw.Enqueue, rw.REnqueue} {
					_, err := enqueue(ctx)
					require.ErrorIs(t, err, ErrWouldDeadlock)
				}
				for _, try := range []func(context.Context) (*Held, error){m.TryLock, rw.TryLock, rw.TryRLock} {
					_, err := try(ctx)
					require.ErrorIs(t, err, ErrLocked)
				}
				h2, err := NewMutex(s, name+"2").Lock(ctx)
				require.NoError(t, err, "a lock of another name must be granted")
				return h2.Unlock(ctx)
			}))
		}
		require.NoError(t, rw.RDo(testCtx(t), func(ctx context.Context, _ *Held) error {
			require.ErrorIs(t, rw.Do(ctx, never), ErrWouldDeadlock)
			require.ErrorIs(t, m.Do(ctx, never), ErrWouldDeadlock)
			return nil
		}))
		require.NoError(t, rw.Do(testCtx(t), func(ctx context.Context, h *Held) error {
			require.NoError(t, h.Downgrade(ctx))
			require.ErrorIs(t, rw.Do(ctx, never), ErrWouldDeadlock)
			return rw.RDo(ctx, func(context.Context, *Held) error { return nil })
		}))
	})
	t.Run("loss", func(t *testing.T) {
		err := m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
			_, err := s.Client().Delete(testCtx(t), h.Key()) // ctx may end before the reply
			require.NoError(t, err)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			require.ErrorIs(t, m.Do(context.WithoutCancel(ctx), func(context.Context, *Held) error {
				t.Error("fn was called after the loss")
				return nil
			}), ErrLost)
			return fail
		})
		require.ErrorIs(t, err, fail)
		require.ErrorIs(t, err, ErrLost)
	})
	t.Run("panic", func(t *testing.T) {
		require.PanicsWithValue(t, "oops", func() {
			_ = m.Do(testCtx(t), func(context.Context, *Held) error { panic("oops") })
		})
		queueIs(t, s.Client(), name, 0)
	})
	t.Run("fn unlocks", func(t *testing.T) {
		require.NoError(t, m.Do(testCtx(t), func(ctx context.Context, h *Held) error {
			require.NoError(t, h.Unlock(ctx))
			require.ErrorIs(t, context.Cause(ctx), ErrNotHeld)
			h, err := m.Lock(testCtx(t))
			require.NoError(t, err)
			return h.Unlock(testCtx(t))
		}))
	})
	t.Run("ctx ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testCtx(t))
		require.ErrorIs(t, m.Do(ctx, func(ctx context.Context, h *Held) error {
			cancel()
			<-ctx.Done()
			require.NoError(t, h.Err(), "the end of ctx must not end the hold")
			return ctx.Err()
		}), context.Canceled)
		require.Eventually(t, func() bool { return len(entries(t, s.Client(), name)) == 0 }, hang, tick)
	})
}

// A Mutex may be copied, and assigned to while it is held: a hold is of the lock that it was taken with.
func TestMutex_Assigned(t *testing.T) {
	s := newTestSession(t, cluster.Client(t))
	a, b := lockName(t)+"-a", lockName(t)+"-b"
	m := *NewMutex(s, a)
	first, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	m = *NewMutex(s, b)
	second, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	for name, h := range map[string]*Held{a: first, b: second} {
		require.NoError(t, h.Unlock(testCtx(t)))
		require.ErrorContains(t, h.Unlock(testCtx(t)), fmt.Sprintf("%q", name))
	}
}

func TestMisuse(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	fn := func(context.Context, *Held) error { t.Error("ran"); return nil }
	all := func(t *testing.T, s *Session, name string, want error, text string) {
		t.Helper()
		m, rw := NewMutex(s, name), NewRWMutex(s, name)
		errs := []error{m.Do(testCtx(t), fn), rw.Do(testCtx(t), fn), rw.RDo(testCtx(t), fn)}
		for _, lock := range []func(context.Context) (*Held, error){m.Lock, m.TryLock, rw.Lock, rw.TryLock, rw.RLock, rw.TryRLock} {
			h, err := lock(testCtx(t))
			require.Nil(t, h)
			errs = append(errs, err)
		}
		for _, enqueue := range []func(context.Context) (*Ticket, error){m.Enqueue, rw.Enqueue, rw.REnqueue} {
			tk, err := enqueue(testCtx(t))
			require.Nil(t, tk)
			errs = append(errs, err)
		}
		for _, err := range errs {
			if want != nil {
				require.ErrorIs(t, err, want)
			}
			require.ErrorContains(t, err, text)
			require.ErrorContains(t, err, fmt.Sprintf("%q", name), "the error must name the lock")
		}
	}
	all(t, nil, name, nil, "NewSession")
	all(t, newTestSession(t, c), "bad/", ErrInvalidName, "ends in")
	all(t, newTestSession(t, c), "", ErrInvalidName, "empty")
	closed := newTestSession(t, c)
	require.NoError(t, closed.Close())
	all(t, closed, name, ErrSessionClosed, "closed")
	_, err := new(Mutex).Lock(testCtx(t))
	require.ErrorContains(t, err, "NewMutex")

	s := newTestSession(t, c)
	ctx, cancel := context.WithCancelCause(testCtx(t))
	why := errors.New("why")
	cancel(why)
	_, err = NewMutex(s, name).Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, why)
	require.Empty(t, entries(t, c, name))

	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	require.ErrorContains(t, h.Downgrade(testCtx(t)), "RWMutex")
	require.True(t, h.Valid())
	require.NoError(t, h.Unlock(testCtx(t)))
	for _, err := range []error{h.Unlock(testCtx(t)), h.Err(), h.Check(testCtx(t)), h.Downgrade(testCtx(t)), context.Cause(h.Context())} {
		require.ErrorIs(t, err, ErrNotHeld)
	}
	_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut(name, "")).Commit()
	require.ErrorIs(t, err, ErrNotHeld)
	require.False(t, h.Valid())
	<-h.Done()
}
