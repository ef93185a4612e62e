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

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A TryLock that lists the keys that block it also ends with the session.
func TestTryLock_SessionEndsAsItLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		for i := range 9 {
			f.Write(fmt.Sprintf("a/0/nested/%d", i))
		}
		f.Step = func(ctx context.Context, what string) error {
			if what == "Range" {
				return etcd.Sleep(ctx, time.Hour)
			}
			return nil
		}
		const after = 450 * time.Millisecond
		defer time.AfterFunc(after, func() { s.lease.End(ErrSessionClosed, "the test is over") }).Stop()
		began := time.Now()
		_, err := NewMutex(s, "a").TryLock(context.Background())
		require.ErrorIs(t, err, ErrSessionClosed)
		require.Equal(t, after, time.Since(began))
		s.lease.NotFound()
	})
}

// The ctx of an Unlock ends at the same time as the session, while etcd has no leader: Unlock
// returns one of the two errors.
func TestUnlock_CtxAndSessionEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		h, err := NewMutex(s, "a").Lock(context.Background())
		require.NoError(t, err)
		f.Step = func(context.Context, string) error { return errors.New("no leader") }
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(450*time.Millisecond, func() {
			cancel()
			s.lease.End(ErrSessionClosed, "the test is over")
		})
		err = h.Unlock(ctx)
		require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, ErrLost), err)
		s.lease.NotFound()
	})
}

// A Lock that could not read the key that blocks it does not know whether the key is its own,
// because the client repeats some requests by itself. So the key must not be used again yet.
func TestLock_KeyInTheWayUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		f.Write("a/1")
		f.Step = func(ctx context.Context, what string) error {
			if what == "Range" {
				return etcd.Sleep(ctx, time.Hour)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 450*time.Millisecond)
		defer cancel()
		_, err := NewMutex(s, "a").Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, s.uses("a/1"))
		s.lease.End(ErrSessionClosed, "the test is over")
		s.lease.NotFound()
	})
}

// The reply to the first txn is lost, so a second txn finds the entry. Before the entry is
// read, another client removes it, and a third, late txn writes it again. The entry counts at
// its new revision.
func TestLock_FoundAndWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(1)
		var txns, ranges int
		f.Step = func(_ context.Context, what string) error {
			switch what {
			case "Txn.":
				if txns++; txns == 1 {
					return errors.New("the reply is lost")
				}
			case "Range":
				if ranges++; ranges == 1 {
					kv := f.Keys("a/1")[0]
					f.Remove("a/1")
					f.Do(fakeetcd.PutOp(string(kv.Key), string(kv.Value), kv.Lease))
				}
			}
			return nil
		}
		h, err := NewMutex(s, "a").Lock(context.Background())
		require.NoError(t, err)
		require.Equal(t, f.entries("a/"), []queue.Entry{{Key: h.Key(), Rev: h.Token()}})
		s.lease.End(ErrSessionClosed, "the test is over")
		s.lease.NotFound()
	})
}

func keysOf(queue []queue.Entry) (keys []string) {
	for _, q := range queue {
		keys = append(keys, q.Key)
	}
	return keys
}

// A request is executed minutes after it was given up, for example by a member that hung
// meanwhile. Its entry is still found and removed, and nothing else is.
func TestFault_A1_LateWriteAfterTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		s.lease.TTL = 10 * time.Second
		var txns atomic.Int32
		var before atomic.Pointer[func()] // the next read
		f.Step = func(_ context.Context, what string) error {
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
			f.Do(fakeetcd.PutOp(key, value, 5))
		}
		for _, key := range []string{"a/5", "a/r5", "a/5-1", "a/5-7ffffffffffffff"} {
			put(key, value)
		}
		put("a/r5-2", "a value of another process with the same lease")
		put("a/b/5/x", value)
		elapse(2 * s.lease.TTL)
		require.ElementsMatch(t, []string{"a/r5-2", "a/b/5/x", "a/5-7ffffffffffffff"}, keysOf(f.entries("a/")))
		require.Equal(t, []string{kept.Key()}, keysOf(f.entries("b/")))
		// Another client removes a late write, and its key is in use again when it is
		// read.
		f.Remove(keysOf(f.entries("a/"))...)
		put("a/5", value)
		granted := make(chan *Held, 1)
		lock := func() {
			f.Remove("a/5")
			if h, err := NewMutex(s, "a").Lock(context.Background()); err == nil {
				granted <- h
			}
		}
		before.Store(&lock)
		elapse(2 * s.lease.TTL)
		h = <-granted
		require.Equal(t, "a/5", h.Key())
		require.NoError(t, h.Unlock(context.Background()), "the new entry must not be taken for a late write")
		require.NoError(t, kept.Unlock(context.Background()))
		s.lease.End(ErrSessionClosed, "the test is over")
		s.lease.NotFound()
		elapse(2 * s.lease.TTL)
	})
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
			puts = append(puts, fakeetcd.PutOp(key, e.acquiring.value, 0))
		}
		f.Do(puts...)
		some = append(some, unsettled{&e.entry, time.Now()})
	}
	var reads atomic.Int32
	f.Step = func(_ context.Context, what string) error {
		if n := reads.Add(1); what == "Range" && (n == 1 || n == 2) { // the request for all five, and for the first two
			return rpctypes.ErrGRPCPermissionDenied
		}
		return nil
	}
	// Another user of the same lease has the key of the next entry.
	other := NewMutex(s, "e").l.entry(t.Context(), s, mutexMode)
	other.reserveKeys()
	f.Write(other.key)
	some = append(some, unsettled{&other.entry, time.Now()})
	require.NoError(t, s.removeLateWrites(t.Context(), some))
	for _, name := range []string{"a", "b", "c", "d"} {
		require.Empty(t, f.entries(name+"/"))
	}
	require.Equal(t, []string{other.key}, keysOf(f.entries("e/")))
	f.Step = func(context.Context, string) error { return rpctypes.ErrGRPCPermissionDenied }
	require.ErrorIs(t, s.removeLateWrites(t.Context(), some), rpctypes.ErrPermissionDenied)
	s.lease.End(ErrSessionClosed, "the test is over")
	s.lease.NotFound()
}
