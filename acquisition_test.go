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
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
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

// endsLate is a ctx that ends as it is asked once more whether it has ended, after the session has.
type endsLate struct {
	context.Context
	s   *Session
	end context.CancelFunc
}

func (c *endsLate) Err() error {
	if err := c.Context.Err(); err != nil || c.s.lease.Ctx.Err() == nil {
		return err
	}
	defer c.end()
	return nil
}

// The ctx of an Unlock ends a moment after the session, when the request has ended with the session.
func TestUnlock_CtxEndsAfterTheSession(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		st.f.Step = func(context.Context, string) error { return errors.New("no leader") }
		ctx, cancel := context.WithCancel(st.Context())
		defer cancel()
		time.AfterFunc(450*time.Millisecond, func() { st.s.lease.End(ErrSessionExpired, "test") })
		err := h.Unlock(&endsLate{ctx, st.s, cancel})
		require.ErrorIs(st, err, ErrSessionExpired)
		require.ErrorIs(st, err, ErrLost)
	})
}

// A proxy passes a removal on, and answers Unavailable or Canceled. The session repeats the removal after the first, and knows that
// it did. After the second, clientv3 repeats the removal by itself, and the session can't know, so Unlock says that the hold was
// lost: to say nothing would hide the losses that are real.
func TestUnlock_ProxyAnswersInEtcdsPlace(t *testing.T) {
	for answer, want := range map[codes.Code]error{codes.Unavailable: nil, codes.Canceled: ErrLost, codes.DeadlineExceeded: ErrLost} {
		tap, name := etcdtest.NewTap(), lockName(t)
		c := cluster.Client(t, tap)
		s := newTestSession(t, c)
		s.etcd.NeverHedge() // a copy may be what removes the entry, and has an answer
		m := NewMutex(s, name)
		h := harness.Take(t, m.Lock)
		tap.Next("Txn", func(ctx context.Context, call *etcdtest.Call) error {
			if err := call.Send(ctx); err != nil {
				return err
			}
			return status.Error(answer, "the proxy goes away")
		})
		require.Equal(t, want, errors.Unwrap(h.Unlock(testCtx(t))), answer)
		requireGone(t, c, name)
		h = harness.Take(t, m.Lock)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
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

// The client has no rights on a name, and the first request of each Lock of it has no answer. Nothing of these Locks stays in
// memory, and nobody asks for them any more.
func TestLock_ForbiddenInDoubt(t *testing.T) {
	onStage(t, func(st *stage) {
		var requests atomic.Int64 // two at once may be of a Lock and of a search for what it may have left
		st.f.Step = func(_ context.Context, what string) error {
			switch what {
			case "Txn":
				if requests.Add(1)%2 == 1 {
					return errLostReply
				}
				return rpctypes.ErrGRPCPermissionDenied
			case "Range":
				requests.Add(2)
				return rpctypes.ErrGRPCPermissionDenied
			}
			return nil
		}
		for range 10 {
			_, err := st.mutex().Lock(st.Context())
			require.ErrorIs(st, err, rpctypes.ErrPermissionDenied)
		}
		<-time.After(time.Minute)
		require.False(st, st.s.keys.InUse())
		requests.Store(0)
		<-time.After(time.Hour)
		require.Zero(st, requests.Load())
	})
}
