package etcdlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

func TestSession_BadInput(t *testing.T) {
	c := cluster.Client(t)
	before := leases(t, c)
	for text, f := range map[string]func() (*Session, error){
		"client is nil": func() (*Session, error) { return NewSession(testCtx(t), nil) },
		"TTL 0s":        func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(0)) },
		"TTL 999ms":     func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(999*time.Millisecond)) },
		"TTL -1m0s":     func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(-time.Minute)) },
		"logger is nil": func() (*Session, error) { return NewSession(testCtx(t), c, WithLogger(nil)) },
		"too large":     func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(1<<63-1)) },
		"not found":     func() (*Session, error) { return NewSession(testCtx(t), c, WithLease(12345)) },
	} {
		s, err := f()
		require.Nil(t, s, text)
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "etcdlock: new session")
	}
	require.Empty(t, leases(t, c, before...))
}

func TestSession_TTLIsRoundedUpAndGranted(t *testing.T) {
	s := newTestSession(t, cluster.Client(t), WithTTL(2100*time.Millisecond), WithOwner("me <\"ö\">\n"))
	require.Equal(t, 3*time.Second, s.TTL())
	left := time.Until(s.Deadline())
	require.Greater(t, left, time.Duration(0))
	require.Less(t, left, 3*time.Second)
	requireLease(t, s, func(r *clientv3.LeaseTimeToLiveResponse) bool { return r.GrantedTTL == 3 })

	h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	kv, err := s.Client().Get(testCtx(t), h.Key())
	require.NoError(t, err)
	var value struct {
		Owner, Nonce string
		Queued       time.Time
	}
	require.NoError(t, json.Unmarshal(kv.Kvs[0].Value, &value))
	require.Equal(t, "me <\"ö\">\n", value.Owner)
	require.NotEmpty(t, value.Nonce)
	require.WithinDuration(t, time.Now(), value.Queued, time.Minute)
	require.EqualValues(t, s.Lease(), kv.Kvs[0].Lease)
	require.False(t, h.Deadline().Before(s.Deadline().Add(-time.Second)))
	require.NoError(t, h.Unlock(testCtx(t)))
}

func TestSession_Refresh(t *testing.T) {
	s := newTestSession(t, cluster.Client(t), WithTTL(time.Minute))
	was := s.Deadline()
	require.NoError(t, s.Refresh(testCtx(t)))
	require.True(t, s.Deadline().After(was))
	_, err := s.Client().Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionExpired)
	<-s.Done()
	require.ErrorIs(t, context.Cause(s.Context()), ErrSessionExpired)
}

// A grant may take longer than its TTL, or its lease may have expired when the client finds
// it again. NewSession then goes on until it has a live lease.
func TestSession_SlowGrant(t *testing.T) {
	t.Parallel()
	other := cluster.Client(t)
	// gone delivers the reply only when the lease has expired.
	gone := func(ctx context.Context, c *etcdtest.Call) error {
		if err := c.Send(ctx); err != nil {
			return err
		}
		for {
			resp, err := other.TimeToLive(ctx, clientv3.LeaseID(c.Request.(*pb.LeaseGrantRequest).ID))
			if err != nil || resp.TTL < 0 {
				return err
			}
		}
	}
	for name, steps := range map[string]func(tap *etcdtest.Tap){
		"the reply arrives when the lease has expired": func(tap *etcdtest.Tap) { tap.Next("LeaseGrant", gone) },
		"the reply is lost, and the lease revoked before it is renewed": func(tap *etcdtest.Tap) {
			tap.Next("LeaseGrant", etcdtest.DropReply)
			tap.OnKeepAliveRequest(func(ctx context.Context, m *pb.LeaseKeepAliveRequest) error {
				tap.OnKeepAliveRequest(nil)
				_, err := other.Revoke(ctx, clientv3.LeaseID(m.ID))
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tap := etcdtest.NewTap()
			c := cluster.Client(t, tap)
			steps(tap)
			s := newTestSession(t, c, WithTTL(3*time.Second))
			require.NoError(t, s.Err())
			h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, h.Check(testCtx(t)))
		})
	}
}

// The first renewal is due a third of the TTL after the grant was sent, and not after its
// reply arrived.
func TestSession_RenewsSoonAfterASlowGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: 9 * time.Second, log: discard})
		s.keepAlive = func(context.Context) (int64, error) {
			<-time.After(time.Second)
			return 9, nil
		}
		s.record(time.Now().Add(-7*time.Second), 9)
		s.wg.Add(1)
		go s.run()
		<-time.After(time.Minute)
		require.NoError(t, s.Err())
		s.terminate(ErrSessionClosed, "test")
		s.endLease()
		s.wg.Wait()
	})
}

func TestSession_Close(t *testing.T) {
	own := cluster.Client(t)
	s, err := NewSession(testCtx(t), own)
	require.NoError(t, err)
	h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-done
	require.NoError(t, s.Close(), "further calls return the same")
	require.ErrorIs(t, context.Cause(s.Context()), ErrSessionClosed)
	require.ErrorIs(t, h.Err(), context.Cause(h.Context()))
	require.ErrorIs(t, h.Err(), ErrLost)
	require.ErrorIs(t, h.Err(), ErrSessionClosed)
	require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	require.ErrorIs(t, s.Refresh(testCtx(t)), ErrSessionClosed)
	requireLease(t, s, func(r *clientv3.LeaseTimeToLiveResponse) bool { return r.TTL == -1 })
}

// requireLease asks the leader for the session's lease until is reports true. The leader may
// know of a change a moment later than the member that has confirmed it.
func requireLease(t *testing.T, s *Session, is func(*clientv3.LeaseTimeToLiveResponse) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, err := s.Client().TimeToLive(testCtx(t), s.Lease())
		return err == nil && is(got)
	}, hang, tick)
}

// A reply that arrives when the lease may have expired does not start a session.
func TestSession_AdoptedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeEtcd().session(5)
		s = makeSession(s.etcd.Client, config{lease: 5, log: discard})
		s.keepAlive = func(context.Context) (int64, error) {
			<-time.After(4 * time.Second)
			return 4, nil
		}
		require.ErrorIs(t, s.adoptLease(t.Context()), errTooLate)
		require.ErrorIs(t, s.Err(), ErrSessionExpired)
	})
}

func TestSession_OrphanAndAdopt(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s, err := NewSession(testCtx(t), c)
	require.NoError(t, err)
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	s.Orphan()
	<-s.Done()
	require.ErrorIs(t, s.Err(), ErrSessionClosed)
	require.ErrorIs(t, h.Err(), ErrSessionClosed)
	require.Len(t, entries(t, c, name), 1, "the entry must stay")

	s2, err := NewSession(testCtx(t), c, WithLease(s.Lease()))
	require.NoError(t, err)
	require.Equal(t, s.Lease(), s2.Lease())
	require.Equal(t, s.TTL(), s2.TTL())
	_, err = NewMutex(s2, name).TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked, "the entry of another owner must block")
	tk, err := NewMutex(s2, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, tk, 1)
	_, err = c.Delete(testCtx(t), exclusiveBase(name, s.Lease()))
	require.NoError(t, err)
	h2, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, exclusiveBase(name, s.Lease())+"-1", h2.Key())
	require.NoError(t, s.Close(), "Close after Orphan must revoke the lease")
	_, err = NewMutex(s2, name).Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.NoError(t, s2.Close())
}

func TestSession_LogsItsLoss(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	s := newTestSession(t, cluster.Client(t), WithTTL(time.Minute), WithLogger(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}), nil))))
	name := lockName(t)
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	_, err = cluster.Client(t).Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	<-done
	<-s.Done()
	require.NoError(t, s.Close())
	mu.Lock()
	defer mu.Unlock()
	for _, line := range []string{"session up", "session lost", "locks=1", name} {
		require.Contains(t, buf.String(), line)
	}
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }

// The deadline counts from before the request was sent, even if the reply takes long. No lock
// is granted after the deadline.
func TestInvariant_I4_Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: 10 * time.Second, log: discard})
		s.etcd.KV = clientv3.NewKVFromKVClient(f, s.etcd.Client)
		s.etcd.UseWatcher(f)
		start := time.Now()
		s.keepAlive = func(context.Context) (int64, error) {
			<-time.After(3 * time.Second)
			return 10, nil
		}
		require.NoError(t, s.renew(t.Context()))
		require.Equal(t, start.Add(9*time.Second), s.Deadline())
		require.True(t, s.valid())

		<-time.After(6*time.Second - time.Nanosecond)
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		require.True(t, h.Valid())
		<-time.After(time.Nanosecond)
		require.False(t, h.Valid(), "Valid must use the clock and not a timer")
		require.ErrorIs(t, h.Err(), ErrLost)
		require.ErrorIs(t, s.Err(), ErrSessionExpired)
		_, err = NewMutex(s, "a").Lock(t.Context())
		require.ErrorIs(t, err, ErrSessionExpired)
		s.endLease()

		// A grant that arrives after the deadline does not count, even if no timer has fired
		// yet.
		s = f.session(6)
		f.Step = func(_ context.Context, what string) error {
			if what == "Txn." {
				f.Step = func(context.Context, string) error { return nil }
				s.mu.Lock()
				s.deadline = time.Now()
				s.mu.Unlock()
			}
			return nil
		}
		_, err = NewMutex(s, "b").Lock(t.Context())
		require.ErrorIs(t, err, ErrSessionExpired)
		s.endLease()
	})
}

// The session renews every third of the TTL, and hedges a renewal without a reply. A member
// that hangs does not harm the session. An outage that lasts too long ends it at its deadline.
func TestSession_Renewals(t *testing.T) {
	play := func(t *testing.T, keepAlive func(ctx context.Context, n int) (int64, error)) (*Session, *int) {
		n := new(int)
		var mu sync.Mutex
		s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: 9 * time.Second, log: discard})
		s.keepAlive = func(ctx context.Context) (int64, error) {
			mu.Lock()
			*n++
			i := *n
			mu.Unlock()
			return keepAlive(ctx, i)
		}
		s.record(time.Now(), 9)
		s.wg.Add(1)
		go s.run()
		return s, n
	}
	hang := func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
	for name, tc := range map[string]struct {
		keepAlive func(ctx context.Context, n int) (int64, error)
		lives     bool
		requests  int // in a minute
	}{
		"all well": {func(context.Context, int) (int64, error) { return 9, nil }, true, 20},
		"every second hangs": {func(ctx context.Context, n int) (int64, error) {
			return map[bool]int64{true: 9}[true], hangIf(ctx, n%2 == 1)
		}, true, 26},
		"slow replies":        {func(ctx context.Context, n int) (int64, error) { <-time.After(4 * time.Second); return 9, nil }, true, 0},
		"fails fast for 5 s":  {func(ctx context.Context, n int) (int64, error) { return 9, failIf(n > 1 && n < 11) }, true, 0},
		"all hang":            {func(ctx context.Context, _ int) (int64, error) { return hang(ctx) }, false, 17},
		"lease gone":          {func(ctx context.Context, n int) (int64, error) { return int64(9 - 9*(n/3)), nil }, false, 3},
		"refused to the last": {func(ctx context.Context, n int) (int64, error) { return 0, errors.New("x") }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, n := play(t, tc.keepAlive)
				<-time.After(time.Minute)
				synctest.Wait()
				require.Equal(t, tc.lives, s.Err() == nil)
				if tc.requests > 0 {
					require.InDelta(t, tc.requests, *n, 1)
				}
				s.terminate(ErrSessionClosed, "test")
				s.endLease()
				s.wg.Wait()
			})
		})
	}
}

func hangIf(ctx context.Context, hangs bool) error {
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func failIf(fails bool) error {
	if fails {
		return errors.New("away")
	}
	return nil
}

// If Close has revoked the lease before the request arrived, the call fails because of Close.
func TestSession_ClosedBeforeTheRequestCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		f.Step = func(_ context.Context, what string) error {
			if what != "Txn" {
				return nil
			}
			s.terminate(ErrSessionClosed, "test")
			return rpctypes.ErrGRPCLeaseNotFound
		}
		_, err := NewMutex(s, "a").Lock(t.Context())
		require.ErrorIs(t, err, ErrSessionClosed)
		require.NotErrorIs(t, err, ErrSessionExpired)
		s.endLease()
	})
}

// Renewals get no answer at all. The session must not give up early: etcd's own client gives up a lease
// of a minute after 5 s.
func TestFault_F2_NotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: time.Minute, log: discard})
		s.keepAlive = func(ctx context.Context) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		s.record(time.Now(), 60)
		s.wg.Add(1)
		go s.run()
		<-time.After(58 * time.Second)
		require.NoError(t, s.Err())
		<-time.After(2 * time.Second)
		require.ErrorIs(t, s.Err(), ErrSessionExpired)
		s.endLease()
		s.wg.Wait()
	})
}

// A member hangs with its connections open. The client is busy, so its balancer spreads the
// requests over all members, and a renewal may meet the hanging member several times in a
// row. An earlier version made only 4 attempts; one hanging member of three then ended a
// busy client's session within minutes.
func TestFault_F12_RenewalsMeetTheMemberThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientv3.NewCtxClient(context.Background())
		s := makeSession(client, config{lease: 1, ttl: 10 * time.Second, log: discard})
		var attempts, answered atomic.Int32
		s.keepAlive = func(ctx context.Context) (int64, error) {
			if attempts.Add(1)%12 == 0 {
				answered.Add(1)
				return 10, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		s.record(time.Now(), 10)
		s.wg.Add(1)
		go s.run()
		elapse(1000 * time.Second)
		require.NoError(t, s.Err())
		require.Greater(t, answered.Load(), int32(100))
		s.terminate(ErrSessionClosed, "the test is over")
		s.endLease()
		s.wg.Wait()
	})
}

func TestSession_10000Locks(t *testing.T) {
	c := cluster.Client(t)
	s := newTestSession(t, c, WithTTL(time.Minute))
	base := lockName(t)
	names := make(chan string)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for name := range names {
				if _, err := NewMutex(s, name).Lock(testCtx(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 10_000 {
		names <- fmt.Sprintf("%s/%d", base, i)
	}
	close(names)
	wg.Wait()
	count := func() int64 {
		resp, err := c.Get(testCtx(t), base, clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return resp.Count
	}
	require.EqualValues(t, 10_000, count())
	require.NoError(t, s.Close())
	require.Zero(t, count())
}
