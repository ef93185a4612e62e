package faults

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A writing holds back the requests of a client that write, or some of them, until send.
type writing struct {
	tap    *etcdtest.Tap
	caught chan struct{} // closed with the first request
	send   func()
}

func writes(ops []*pb.RequestOp) bool {
	return slices.ContainsFunc(ops, func(o *pb.RequestOp) bool {
		return o.GetRequestPut() != nil || o.GetRequestDeleteRange() != nil || writes(o.GetRequestTxn().GetSuccess())
	})
}

func holdWrites(t *testing.T, tap *etcdtest.Tap) *writing {
	w := &writing{tap: tap, caught: make(chan struct{})}
	free := make(chan struct{})
	caught := sync.OnceFunc(func() { close(w.caught) })
	w.send = sync.OnceFunc(func() { close(free) })
	t.Cleanup(w.send)
	tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
		if writes(call.Request.(*pb.TxnRequest).Success) {
			caught()
			select {
			case <-free:
			case <-ctx.Done():
			}
		}
		return call.Send(ctx)
	})
	return w
}

// adoptBeside calls Adopt, and returns when Adopt has read all that it needs.
func (w *writing) adoptBeside(t *testing.T, s *etcdlock.Session, name string, reads int) <-chan adopted {
	<-w.caught
	before := w.tap.Calls("Txn")
	got := make(chan adopted, 1)
	go func() {
		h, err := s.Adopt(harness.Ctx(t), name)
		got <- adopted{h, err}
	}()
	require.Eventually(t, func() bool { return len(got) > 0 || w.tap.Calls("Txn") >= before+reads }, harness.Hang, time.Millisecond)
	return got
}

type adopted struct {
	h   *etcdlock.Held
	err error
}

func (a adopted) held(t *testing.T) *etcdlock.Held {
	require.NoError(t, a.err)
	return a.h
}

// A Lock that is under way has reserved the key under which the process before has its lock, as the key goes by the lease.
// Adopt finds the lock even so, and the Lock waits behind it.
func TestAdopt_BesideALockUnderWay(t *testing.T) {
	type locker func(*etcdlock.Session, string) harness.Lock[*etcdlock.Held]
	mutex := func(s *etcdlock.Session, name string) harness.Lock[*etcdlock.Held] {
		return etcdlock.NewMutex(s, name).Lock
	}
	raw := func(s *etcdlock.Session, name string) harness.Lock[*etcdlock.Held] {
		return etcdlock.NewMutex(s, name).Raw("10.0.0.1").Lock
	}
	write := func(s *etcdlock.Session, name string) harness.Lock[*etcdlock.Held] {
		return etcdlock.NewRWMutex(s, name).Lock
	}
	read := func(s *etcdlock.Session, name string) harness.Lock[*etcdlock.Held] {
		return etcdlock.NewRWMutex(s, name).RLock
	}
	for what, tc := range map[string]struct {
		before, beside locker
		keys, left     int // of both, and of the one that is let in then
	}{
		"mutex": {mutex, mutex, 2, 1}, "raw": {raw, raw, 2, 1}, "mutex beside raw": {mutex, raw, 2, 1},
		"write lock beside a reader": {write, read, 3, 1}, "reader beside a write lock": {read, write, 3, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // only with each other
			c, tap := cluster.Client(t), etcdtest.NewTap()
			name := harness.LockName(t)
			s := newSession(t, c)
			h, err := tc.before(s, name)(harness.Ctx(t))
			require.NoError(t, err)
			s2 := successor(t, s, cluster.Client(t, tap))
			w := holdWrites(t, tap)
			locked := harness.InBackground(t, tc.beside(s2, name))
			got := w.adoptBeside(t, s2, name, 2)
			require.Empty(t, got, "the Lock has its key still")
			w.send()
			h2 := (<-got).held(t)
			require.Equal(t, []any{h.Keys(), h.Token()}, []any{h2.Keys(), h2.Token()})
			harness.QueueIs(t, c, name, tc.keys)
			require.Empty(t, locked)
			require.NoError(t, h2.Unlock(harness.Ctx(t)))
			next := <-locked
			entries := harness.Entries(t, c, name)
			require.Len(t, entries, tc.left)
			require.Subset(t, entries, next.Keys())
			require.NoError(t, next.Unlock(harness.Ctx(t)))
			harness.RequireGone(t, c, name)
		})
	}
}

// handedOver is a lock of a process before, and the session that has its lease now, whose requests go through tap.
func handedOver(t *testing.T, c *clientv3.Client, tap *etcdtest.Tap, name string) (*etcdlock.Held, *etcdlock.Session) {
	t.Helper()
	s := newSession(t, c)
	h := harness.Take(t, etcdlock.NewMutex(s, name).Lock)
	return h, successor(t, s, cluster.Client(t, tap))
}

// The Lock is given up while its request is on its way. So Adopt need not wait for it, and what the request writes after
// the adopted hold is removed.
func TestAdopt_BesideALockGivenUp(t *testing.T) {
	c, tap := cluster.Client(t), etcdtest.NewTap()
	name := harness.LockName(t)
	h, s2 := handedOver(t, c, tap, name)
	late := tap.Postpone("Txn", 1)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	locked := harness.Async(func() error { _, err := etcdlock.NewMutex(s2, name).Lock(ctx); return err })
	<-late.Caught()
	cancel()
	require.ErrorIs(t, harness.Result(t, locked), context.Canceled)
	h2, err := s2.Adopt(harness.Ctx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), h2.Token())
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
	require.NoError(t, late.Send(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// Somebody removes the entry while Adopt waits for a Lock. The Lock has the key then, and Adopt nothing to wait for.
func TestAdopt_RemovedBesideALockUnderWay(t *testing.T) {
	c, tap := cluster.Client(t), etcdtest.NewTap()
	name := harness.LockName(t)
	h, s2 := handedOver(t, c, tap, name)
	w := holdWrites(t, tap)
	locked := harness.InBackground(t, etcdlock.NewMutex(s2, name).Lock)
	got := w.adoptBeside(t, s2, name, 2)
	_, err := c.Delete(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	w.send()
	next := <-locked
	require.Equal(t, h.Key(), next.Key())
	select {
	case got := <-got:
		require.ErrorIs(t, got.err, etcdlock.ErrNotFound)
	case <-time.After(harness.Hang):
		t.Fatal("Adopt waits for a key that the Lock has")
	}
	require.NoError(t, next.Unlock(harness.Ctx(t)))
}

// A Multi is adopted whole, beside a Lock of one of its names that is under way, and by one of two calls for two names.
func TestAdopt_MultiBesideOthers(t *testing.T) {
	c, tap := cluster.Client(t), etcdtest.NewTap()
	name := harness.LockName(t)
	s := newSession(t, c)
	h, err := etcdlock.NewMulti(s, etcdlock.Write(name+".1"), etcdlock.Write(name+".2")).Lock(harness.Ctx(t))
	require.NoError(t, err)
	s2 := successor(t, s, cluster.Client(t, tap))
	w := holdWrites(t, tap)
	locked := harness.InBackground(t, etcdlock.NewMutex(s2, name+".2").Lock)
	one := w.adoptBeside(t, s2, name+".1", 4)
	two := w.adoptBeside(t, s2, name+".2", 4)
	w.send()
	got := []adopted{<-one, <-two}
	if got[0].err != nil {
		slices.Reverse(got)
	}
	require.ErrorIs(t, got[1].err, etcdlock.ErrNotFound)
	h2 := got[0].held(t)
	require.Equal(t, []any{h.Keys(), h.Token()}, []any{h2.Keys(), h2.Token()})
	require.NoError(t, h2.Check(harness.Ctx(t)))
	require.Empty(t, locked)
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
	next := <-locked
	require.NoError(t, next.Unlock(harness.Ctx(t)))
	harness.RequireGone(t, c, name+".1")
	harness.RequireGone(t, c, name+".2")
}
