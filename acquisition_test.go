package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
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
		require.Equal(t, "a/1-1", s.keys.Take("a", keyspace.Exclusive), "the lowest free one")
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
