package etcdlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A call says when one of the calls of hedged answers, and what.
type call struct {
	after time.Duration // longer than any limit: not before it is cancelled
	err   error
}

func TestHedged(t *testing.T) {
	const never = time.Hour
	gone := errors.New("no leader")
	for name, c := range map[string]struct {
		calls []call // those after the last are as the last
		pace  time.Duration
		took  time.Duration
		made  int
		from  int // whose answer it is
		doubt bool
		err   error
	}{
		"the ordinary case":                 {calls: []call{{after: 0}}, made: 1},
		"slow, but in time":                 {calls: []call{{after: 299 * time.Millisecond}}, took: 299 * time.Millisecond, made: 1},
		"the first hangs":                   {calls: []call{{after: never}, {after: 0}}, took: 300 * time.Millisecond, made: 2, from: 1, doubt: true},
		"the first is late, and first":      {calls: []call{{after: 400 * time.Millisecond}, {after: never}}, took: 400 * time.Millisecond, made: 2, doubt: true},
		"two hang":                          {calls: []call{{after: never}, {after: never}, {after: 0}}, took: 600 * time.Millisecond, made: 3, from: 2, doubt: true},
		"one hangs, the next has no leader": {calls: []call{{after: never}, {err: gone}, {after: 0}}, took: 1010 * time.Millisecond, made: 3, from: 2, doubt: true},
		"late without a leader, then not":   {calls: []call{{after: 350 * time.Millisecond, err: gone}, {after: 100 * time.Millisecond}}, took: 400 * time.Millisecond, made: 2, from: 1, doubt: true},
		"no leader at first":                {calls: []call{{err: gone}, {after: 0}}, took: 10 * time.Millisecond, made: 2, from: 1, doubt: true},
		"refused":                           {calls: []call{{err: rpctypes.ErrPermissionDenied}}, made: 1, err: rpctypes.ErrPermissionDenied},
		"hangs, and refused":                {calls: []call{{after: never}, {err: rpctypes.ErrPermissionDenied}}, took: 300 * time.Millisecond, made: 2, from: 1, doubt: true, err: rpctypes.ErrPermissionDenied},
		"all hang for the first attempt":    {calls: []call{{after: never}, {after: never}, {after: never}, {after: 0}}, took: 1010 * time.Millisecond, made: 4, from: 3, doubt: true},
		"etcd is far away":                  {calls: []call{{after: 790 * time.Millisecond}}, pace: 200 * time.Millisecond, took: 790 * time.Millisecond, made: 1},
		"etcd is very far away":             {calls: []call{{after: never}, {after: 1200 * time.Millisecond}}, pace: 400 * time.Millisecond, took: 2210 * time.Millisecond, made: 2, from: 1, doubt: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeEtcd().session(1)
				s.pace.Store(int64(c.pace))
				began := time.Now()
				numbers := make(chan int, 100)
				for i := range cap(numbers) {
					numbers <- i
				}
				running := make(chan struct{}, 100)
				from, doubt, err := hedged(context.Background(), s.leaseCtx, s, func(ctx context.Context) (int, error) {
					running <- struct{}{}
					defer func() { <-running }()
					n := <-numbers
					call := c.calls[min(n, len(c.calls)-1)]
					if err := sleep(ctx, call.after); err != nil {
						return n, err
					}
					return n, call.err
				})
				require.Empty(t, running, "a call goes on")
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.made, cap(numbers)-len(numbers))
				require.Equal(t, c.from, from)
				require.Equal(t, c.doubt, doubt)
				// The pauses between attempts are jittered.
				require.InDelta(t, c.took, time.Since(began), float64(10*time.Millisecond))
				s.terminate(ErrSessionClosed, "the test is over")
				s.endLease()
			})
		})
	}
}

// What is late depends on how long answers took lately, not on what was waited
// for in vain.
func TestHedged_Pace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeEtcd().session(1)
		answer := func(after time.Duration, hangs bool) {
			first := make(chan struct{}, 1)
			if hangs {
				first <- struct{}{}
			}
			_, _, err := hedged(context.Background(), s.leaseCtx, s, func(ctx context.Context) (int, error) {
				select {
				case <-first:
					return 0, sleep(ctx, time.Hour)
				default:
					return 0, sleep(ctx, after)
				}
			})
			require.NoError(t, err)
		}
		require.Equal(t, hedgeMin, s.pace.late())
		for range 20 {
			answer(200*time.Millisecond, false)
		}
		require.InDelta(t, 800*time.Millisecond, s.pace.late(), float64(5*time.Millisecond))
		for range 20 {
			answer(time.Millisecond, true)
		}
		require.Equal(t, hedgeMin, s.pace.late())
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
	})
}

// A ctx that ends, ends all calls at once.
func TestHedged_CtxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeEtcd().session(1)
		ctx, cancel := context.WithTimeout(context.Background(), 450*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, doubt, err := hedged(ctx, s.leaseCtx, s, func(ctx context.Context) (int, error) { return 0, sleep(ctx, time.Hour) })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, doubt)
		require.Equal(t, 450*time.Millisecond, time.Since(began))
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
	})
}

// The end of the session ends all calls at once, and the pauses between attempts.
func TestHedged_LifeEnds(t *testing.T) {
	for name, op := range map[string]func(ctx context.Context) error{
		"all calls hang": func(ctx context.Context) error { return sleep(ctx, time.Hour) },
		"no leader":      func(context.Context) error { return errors.New("no leader") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeEtcd().session(1)
				const after = 450 * time.Millisecond
				defer time.AfterFunc(after, func() { s.terminate(ErrSessionClosed, "the test is over") }).Stop()
				began := time.Now()
				_, doubt, err := hedged(context.Background(), s.ctx, s, func(ctx context.Context) (int, error) { return 0, op(ctx) })
				require.ErrorIs(t, err, ErrSessionClosed)
				require.True(t, doubt)
				require.Equal(t, after, time.Since(began))
				s.endLease()
			})
		})
	}
}

// The first request is stuck and arrives when the lock that the second one took has
// been given back: its key is not in use again, and the ghost is removed.
func TestFault_A1_I6_HedgedRequestComesLate(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	c := cluster.Client(t)
	s := newTestSession(t, cluster.Client(t, tap))
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read", "Try"} {
		name := lockName(t)
		late := tap.Postpone("Txn", 1)
		h, err := lockFuncs(s, name)[kind](testCtx(t))
		require.NoError(t, err, kind)
		require.NoError(t, h.Check(testCtx(t)))
		require.NoError(t, h.Unlock(testCtx(t)))
		h2, err := lockFuncs(s, name)[kind](testCtx(t))
		require.NoError(t, err, kind)
		require.NotEqual(t, h.Key(), h2.Key(), "a key is in use again that a ghost may come to")
		require.NoError(t, late.Send(testCtx(t)))
		require.NoError(t, h2.Check(testCtx(t)))
		require.NoError(t, h2.Unlock(testCtx(t)))
		requireGone(t, c, name)
		requireFree(t, name)
	}
}

// The reply to an Unlock is late, and another request finds nothing to remove:
// that is no loss.
func TestFault_A2_HedgedUnlock(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	c := cluster.Client(t)
	s := newTestSession(t, cluster.Client(t, tap))
	for kind, lock := range lockFuncs(s, lockName(t)) {
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		sent := tap.Next("Txn", func(ctx context.Context, c *etcdtest.Call) error {
			if err := c.Send(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, h.Unlock(testCtx(t)), kind)
		<-sent
		got, err := c.Get(testCtx(t), h.Key(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.Zero(t, got.Count)
	}
}

// A request is carried out minutes after it was given up, as when a member wakes
// that has hung with it: its entry is found and removed all the same, and nothing
// else is.
func TestFault_A1_GhostLaterThanAnybodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		s.ttl = 10 * time.Second
		var txns atomic.Int32
		var before atomic.Pointer[func()] // the next read
		f.step = func(_ context.Context, what string) error {
			if what == "Txn" && txns.Add(1) == 1 {
				return errLostReply // given up before it was carried out
			}
			if do := before.Load(); what == "Range" && do != nil {
				before.Store(nil)
				(*do)()
			}
			return nil
		}
		rw := NewRWMutex(s, "a")
		h, err := rw.Lock(context.Background())
		require.NoError(t, err)
		value := h.acquiring.value
		kept, err := NewMutex(s, "b").Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(context.Background()))
		elapse(settleFor / 2)
		require.True(t, s.uses("a/5"), "a write may yet come")
		elapse(5 * time.Minute)
		require.False(t, s.uses("a/5"), "somebody still looks")
		put := func(key, value string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.applyLocked([]*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: 5}}}}, nil)
		}
		for _, key := range []string{"a/5", "a/r5", "a/5-1", "a/5-7ffffffffffffff"} {
			put(key, value)
		}
		put("a/r5-2", "of another process with the same lease")
		put("a/b/5/x", value)
		elapse(2 * s.ttl)
		require.ElementsMatch(t, []string{"a/r5-2", "a/b/5/x", "a/5-7ffffffffffffff"}, keysOf(f.keys("a/")))
		require.Equal(t, []string{kept.Key()}, keysOf(f.keys("b/")))
		// Somebody else removes a ghost, and its key is in use again, when it is
		// looked at.
		f.del(keysOf(f.keys("a/"))...)
		put("a/5", value)
		granted := make(chan *Held, 1)
		lock := func() {
			f.del("a/5")
			if h, err := NewMutex(s, "a").Lock(context.Background()); err == nil {
				granted <- h
			}
		}
		before.Store(&lock)
		elapse(2 * s.ttl)
		h = <-granted
		require.Equal(t, "a/5", h.Key())
		require.NoError(t, h.Unlock(context.Background()), "it was taken for a ghost")
		require.NoError(t, kept.Unlock(context.Background()))
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
		elapse(2 * s.ttl)
	})
}

func keysOf(queue []queued) (keys []string) {
	for _, q := range queue {
		keys = append(keys, q.Key)
	}
	return keys
}

// The same on etcd itself, and in a namespace.
func TestFault_A1_GhostsAreSwept(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "ns/"} {
		client, w := wiredClient(t, cluster)
		if prefix != "" {
			inNamespace(client, prefix)
		}
		s := newTestSession(t, client, WithTTL(3*time.Second))
		name := lockName(t)
		w.loseReply("Txn")
		h, err := NewMutex(s, name).Lock(testCtx(t))
		require.NoError(t, err)
		raw := cluster.Client(t)
		ghost := prefix + sharedBase(name, s.Lease()) + "-3"
		_, err = raw.Put(testCtx(t), ghost, h.acquiring.value, clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
		requireGone(t, raw, prefix+name)
		require.NoError(t, s.Err())
	}
}
