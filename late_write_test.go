package etcdlock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// The first request is stuck. It arrives after the lock that the second request took was
// released: the key was not used again, and the late write is removed.
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
		require.NotEqual(t, h.Key(), h2.Key(), "a key must not be used again while a late write of it is possible")
		require.NoError(t, late.Send(testCtx(t)))
		require.NoError(t, h2.Check(testCtx(t)))
		require.NoError(t, h2.Unlock(testCtx(t)))
		requireGone(t, c, name)
		requireFree(t, name)
	}
}

// The reply to an Unlock is late, and its repetition finds nothing to remove: that is not a
// loss.
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

// A request is executed minutes after it was given up, for example by a member that hung
// meanwhile. Its entry is still found and removed, and nothing else is.
func TestFault_A1_LateWriteAfterTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		s.ttl = 10 * time.Second
		var txns atomic.Int32
		var before atomic.Pointer[func()] // the next read
		f.step = func(_ context.Context, what string) error {
			if what == "Txn" && txns.Add(1) == 1 {
				return errLostReply // given up before it was executed
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
		require.True(t, s.uses("a/5"), "the key must stay in use while a late write is possible")
		elapse(5 * time.Minute)
		require.False(t, s.uses("a/5"), "the key must be free when the search has ended")
		put := func(key, value string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.applyLocked([]*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: 5}}}}, nil)
		}
		for _, key := range []string{"a/5", "a/r5", "a/5-1", "a/5-7ffffffffffffff"} {
			put(key, value)
		}
		put("a/r5-2", "a value of another process with the same lease")
		put("a/b/5/x", value)
		elapse(2 * s.ttl)
		require.ElementsMatch(t, []string{"a/r5-2", "a/b/5/x", "a/5-7ffffffffffffff"}, keysOf(f.keys("a/")))
		require.Equal(t, []string{kept.Key()}, keysOf(f.keys("b/")))
		// Another client removes a late write, and its key is in use again when it is
		// read.
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
		require.NoError(t, h.Unlock(context.Background()), "the new entry must not be taken for a late write")
		require.NoError(t, kept.Unlock(context.Background()))
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
		elapse(2 * s.ttl)
	})
}

func keysOf(queue []queue.Entry) (keys []string) {
	for _, q := range queue {
		keys = append(keys, q.Key)
	}
	return keys
}

// The same with a real etcd, and in a namespace.
func TestFault_A1_LateWritesAreSwept(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "ns/"} {
		client, w := wiredClient(t, cluster)
		if prefix != "" {
			inNamespace(client, prefix)
		}
		s := newTestSession(t, client, WithTTL(3*time.Second))
		name := lockName(t)
		w.LoseReply("Txn")
		h, err := NewMutex(s, name).Lock(testCtx(t))
		require.NoError(t, err)
		raw := cluster.Client(t)
		late := prefix + sharedBase(name, s.Lease()) + "-3"
		_, err = raw.Put(testCtx(t), late, h.acquiring.value, clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
		requireGone(t, raw, prefix+name)
		require.NoError(t, s.Err())
	}
}
