package etcdlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

func TestSession_BadInput(t *testing.T) {
	c := cluster.Client(t)
	// Etcd grants a negative ID to whoever asks for it. Three such sessions held one mutex together.
	const negative = -5
	_, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(testCtx(t), &pb.LeaseGrantRequest{ID: negative, TTL: 60})
	require.NoError(t, err)
	before := leases(t, c)
	for text, f := range map[string]func() (*Session, error){
		"client is nil":  func() (*Session, error) { return NewSession(testCtx(t), nil) },
		"TTL 0s":         func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(0)) },
		"TTL 999ms":      func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(999*time.Millisecond)) },
		"TTL -1m0s":      func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(-time.Minute)) },
		"logger is nil":  func() (*Session, error) { return NewSession(testCtx(t), c, WithLogger(nil)) },
		"logger is nil:": func() (*Session, error) { return NewSession(testCtx(t), c, WithLogger(&slog.Logger{})) },
		"option is nil":  func() (*Session, error) { return NewSession(testCtx(t), c, nil) },
		"ID is negative": func() (*Session, error) { return NewSession(testCtx(t), c, WithLease(negative)) },
		"no KV, Lease":   func() (*Session, error) { return NewSession(testCtx(t), clientv3.NewCtxClient(testCtx(t))) },
		"too large":      func() (*Session, error) { return NewSession(testCtx(t), c, WithTTL(1<<63-1)) },
		"not found":      func() (*Session, error) { return NewSession(testCtx(t), c, WithLease(12345)) },
	} {
		s, err := f()
		require.Nil(t, s, text)
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "etcdlock: new session")
	}
	require.ErrorIs(t, second(NewSession(testCtx(t), c, WithLease(12345))), rpctypes.ErrLeaseNotFound)
	require.Empty(t, leases(t, c, before...))
	_, err = c.Revoke(testCtx(t), negative)
	require.NoError(t, err)
}

// That the etcd client is closed says nothing of the lease.
func TestSession_AdoptsWithAClosedClient(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	require.NoError(t, c.Close())
	_, err := NewSession(testCtx(t), c, WithLease(1))
	require.ErrorContains(t, err, "the etcd client is closed")
	require.NotErrorIs(t, err, rpctypes.ErrLeaseNotFound)
}

func TestSession_TTLIsRoundedUpAndGranted(t *testing.T) {
	s := newTestSession(t, cluster.Client(t), WithTTL(20100*time.Millisecond), WithOwner("me <\"ö\">\n"))
	require.Equal(t, 21*time.Second, s.TTL())
	left := time.Until(s.Deadline())
	require.Greater(t, left, time.Duration(0))
	require.Less(t, left, 21*time.Second)
	requireLease(t, s, func(r *clientv3.LeaseTimeToLiveResponse) bool { return r.GrantedTTL == 21 })

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

// A grant may take longer than its TTL, or its reply may be lost. NewSession then goes on until it has a live lease.
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
		"the reply is lost":                            func(tap *etcdtest.Tap) { tap.Next("LeaseGrant", etcdtest.DropReply) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tap := etcdtest.NewTap()
			c := cluster.Client(t, tap)
			steps(tap)
			s := newTestSession(t, c, WithTTL(5*time.Second))
			require.NoError(t, s.Err())
			h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, h.Check(testCtx(t)))
		})
	}
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
		s.lease.KeepAlive = func(context.Context) (int64, error) {
			<-time.After(3 * time.Second)
			return 10, nil
		}
		require.NoError(t, s.lease.Refresh(t.Context()))
		require.Equal(t, start.Add(9*time.Second), s.Deadline())
		require.True(t, s.lease.Valid())

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
		s.lease.NotFound()

		// A grant that arrives after the deadline does not count, even if no timer has fired
		// yet.
		s = f.session(6)
		f.Step = func(_ context.Context, what string) error {
			if what == "Txn." {
				f.Step = func(context.Context, string) error { return nil }
				s.lease.SetDeadline(time.Now())
			}
			return nil
		}
		_, err = NewMutex(s, "b").Lock(t.Context())
		require.ErrorIs(t, err, ErrSessionExpired)
		s.lease.NotFound()
	})
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
			s.lease.End(ErrSessionClosed, "test")
			return rpctypes.ErrGRPCLeaseNotFound
		}
		_, err := NewMutex(s, "a").Lock(t.Context())
		require.ErrorIs(t, err, ErrSessionClosed)
		require.NotErrorIs(t, err, ErrSessionExpired)
		s.lease.NotFound()
	})
}

func TestSession_10000Locks(t *testing.T) {
	locks := sample.Rounds(t, 2000, 10_000)
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
	for i := range locks {
		names <- fmt.Sprintf("%s/%d", base, i)
	}
	close(names)
	wg.Wait()
	count := func() int64 {
		resp, err := c.Get(testCtx(t), base, clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return resp.Count
	}
	require.EqualValues(t, locks, count())
	require.NoError(t, s.Close())
	require.Zero(t, count())
}

// What hooks and log are told of renewals that are not answered.
func TestSession_RenewalsThatHang(t *testing.T) {
	const ttl = 9 * time.Second
	hangs := func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
	for name, tc := range map[string]struct {
		keepAlive func(ctx context.Context, n int) (int64, error)
		check     func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log)
	}{
		// An alert on failures must fire before the session is lost.
		"all": {func(ctx context.Context, _ int) (int64, error) { return hangs(ctx) }, func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log) {
			require.False(t, lives)
			require.GreaterOrEqual(t, late, 3)
			require.Equal(t, asked-1, late, "each must be told once: all but the last")
			require.Equal(t, []string{logtest.Outage, logtest.Lost}, log.Messages())
		}},
		// The others answer: metrics show it, and the log has no outage.
		"one member of two": {func(ctx context.Context, n int) (int64, error) {
			if n%2 == 1 {
				return hangs(ctx)
			}
			return int64(ttl / time.Second), nil
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log) {
			require.True(t, lives)
			require.Greater(t, late, 100)
			require.Equal(t, asked, late+renewed)
			require.Empty(t, log.Messages())
		}},
		// One that was told to be late is told again when it succeeds after all.
		"replies that are late": {func(context.Context, int) (int64, error) {
			<-time.After(ttl / 5)
			return int64(ttl / time.Second), nil
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log) {
			require.True(t, lives)
			require.Equal(t, 1, late, "later on one is answered before the next is due")
			require.InDelta(t, asked, renewed, 1, "but for the last, which is on its way")
			require.Empty(t, log.Messages())
		}},
		// A failure is told once.
		"every second fails": {func(_ context.Context, n int) (int64, error) {
			return int64(ttl / time.Second), failIf(n%2 == 1)
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log) {
			require.True(t, lives)
			require.Zero(t, late)
			require.Equal(t, asked, renewed)
		}},
		"the lease is gone": {func(context.Context, int) (int64, error) { return 0, nil }, func(t *testing.T, lives bool, asked, late, renewed int, log *logtest.Log) {
			require.False(t, lives)
			require.Zero(t, late+renewed)
			require.Equal(t, []string{logtest.Lost}, log.Messages())
			require.NotContains(t, log.Lines()[0], "error=")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logtest.Log
				r := &recorder{}
				s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: ttl, log: log.Logger(), hooks: []*Hooks{r.hooks()}})
				asked := make(chan int, 10_000)
				s.lease.KeepAlive = func(ctx context.Context) (int64, error) {
					asked <- 0
					return tc.keepAlive(ctx, len(asked))
				}
				s.lease.Record(time.Now(), int64(ttl/time.Second))
				s.lease.Run()
				<-time.After(10*time.Minute + time.Second/2)
				synctest.Wait()
				lives := s.Err() == nil
				s.lease.End(ErrSessionClosed, "test")
				s.lease.NotFound()
				s.lease.Wait()
				late, renewed := 0, 0
				for _, e := range r.all() {
					switch {
					case e.what == "renewed" && e.err != nil && strings.Contains(e.err.Error(), "no answer to the renewal"):
						require.GreaterOrEqual(t, e.took, ttl/48)
						late++
					case e.what == "renewed":
						require.NotErrorIs(t, e.err, context.DeadlineExceeded)
						renewed++
					}
				}
				tc.check(t, lives, len(asked), late, renewed, &log)
			})
		})
	}
}

// succeed orphans a session and returns one that has adopted its lease.
func succeed(t *testing.T, s *Session, c *clientv3.Client, opts ...Option) *Session {
	t.Helper()
	s.Orphan()
	return newTestSession(t, c, append(opts, WithLease(s.Lease()))...)
}

func TestSession_AdoptsHolds(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	rw := func(s *Session) *RWMutex { return NewRWMutex(s, name) }
	multi := func(s *Session) *Multi { return NewMulti(s, Write(name+".1"), Read(name+".2"), Write(name)) }
	downgraded := func(s *Session) func(context.Context) (*Held, error) {
		return func(ctx context.Context) (*Held, error) {
			h, err := rw(s).Lock(ctx)
			require.NoError(t, err)
			return h, h.Downgrade(ctx)
		}
	}
	for what, lock := range map[string]func(*Session) func(context.Context) (*Held, error){
		"mutex":      func(s *Session) func(context.Context) (*Held, error) { return NewMutex(s, name).Lock },
		"raw":        func(s *Session) func(context.Context) (*Held, error) { return NewMutex(s, name).Raw("v").Lock },
		"write":      func(s *Session) func(context.Context) (*Held, error) { return rw(s).Lock },
		"read":       func(s *Session) func(context.Context) (*Held, error) { return rw(s).RLock },
		"multi":      func(s *Session) func(context.Context) (*Held, error) { return multi(s).Lock },
		"downgraded": downgraded,
	} {
		t.Run(what, func(t *testing.T) {
			s := newTestSession(t, c)
			h, err := lock(s)(testCtx(t))
			require.NoError(t, err)
			waiter := newTestSession(t, c)
			tk, err := NewMutex(waiter, name).Enqueue(testCtx(t))
			require.NoError(t, err)
			s2 := succeed(t, s, c)
			h2, err := s2.Adopt(testCtx(t), name)
			require.NoError(t, err)
			require.Equal(t, []any{h.Keys(), h.Token()}, []any{h2.Keys(), h2.Token()})
			require.True(t, h2.Valid())
			require.NoError(t, h2.Check(testCtx(t)))
			_, err = h2.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", what)).Commit()
			require.NoError(t, err)
			notGranted(t, tk, 1)
			_, err = s2.Adopt(testCtx(t), name)
			require.ErrorIs(t, err, ErrNotFound, "it is the session's by now")
			require.NoError(t, h2.SetValue(testCtx(t), "adopted"))
			_, err = s2.Adopt(testCtx(t), name)
			require.ErrorIs(t, err, ErrNotFound, "also with another value")
			require.NoError(t, s2.checkEntries(testCtx(t)), "its keys must be known as used")
			require.NoError(t, h2.Check(testCtx(t)))
			if text, ok := map[string]string{"mutex": "a Mutex has no read holds", "multi": "a Multi keeps what it has"}[what]; ok {
				require.ErrorContains(t, h2.Downgrade(testCtx(t)), text)
			}
			if what == "write" {
				require.NoError(t, h2.Downgrade(testCtx(t)))
				reader, err := rw(s2).TryRLock(testCtx(t))
				require.ErrorIs(t, err, ErrLocked, "a writer waits")
				require.Nil(t, reader)
			}
			require.NoError(t, h2.Unlock(testCtx(t)))
			next, err := tk.Wait(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, next.Unlock(testCtx(t)))
			queueIs(t, c, name, 0)
			again, err := lock(s2)(testCtx(t))
			require.NoError(t, err, "the session must be able to use the name")
			require.NotEqual(t, h2.Key(), again.Key(), "the keys are not settled yet")
			require.NoError(t, again.Unlock(testCtx(t)))
		})
	}
}

// A place in the queue is adopted too: Adopt waits in it.
func TestSession_AdoptsAPlace(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	first, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
	require.NoError(t, err)
	// A process that has died: its session ends and nothing of it is removed.
	s := newTestSession(t, c)
	put := func(n string) int64 {
		resp, err := c.Put(testCtx(t), exclusiveBase(name, s.Lease())+n, "", clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		return resp.Header.Revision
	}
	one, two := put(""), put("-3")
	s2 := succeed(t, s, c)
	adopted := inBackground(t, func(ctx context.Context) (*Held, error) { return s2.Adopt(ctx, name) })
	require.Eventually(t, func() bool { return len(inQueue(s2.parts())) == 1 }, hang, tick)
	ctx, cancel := context.WithCancel(testCtx(t))
	other := async(func() error { _, err := s2.Adopt(ctx, name); return err })
	require.Eventually(t, func() bool { return len(inQueue(s2.parts())) == 2 }, hang, tick)
	_, err = s2.Adopt(testCtx(t), name)
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, first.Unlock(testCtx(t)))
	h := <-adopted
	require.Equal(t, one, h.Token())
	queueIs(t, c, name, 2)
	cancel()
	require.ErrorIs(t, result(t, other), context.Canceled)
	require.Equal(t, []string{h.Key()}, queueIs(t, c, name, 1), "the place is given up with ctx")
	require.Greater(t, two, one)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// Two calls at once don't adopt the same entry, and an error leaves it as it was.
func TestSession_AdoptsEachOnce(t *testing.T) {
	tap := etcdtest.NewTap()
	c := cluster.Client(t, tap)
	name := lockName(t)
	s := newTestSession(t, c)
	for range 2 {
		_, err := NewRWMutex(s, name).RLock(testCtx(t))
		require.NoError(t, err)
	}
	_, err := s.Adopt(testCtx(t), name)
	require.ErrorIs(t, err, ErrNotFound, "these are its own")
	s2 := succeed(t, s, c)
	_, err = s2.Adopt(testCtx(t), name+"x")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = s2.Adopt(testCtx(t), name+"/")
	require.ErrorIs(t, err, ErrInvalidName)
	ctx, cancel := context.WithCancel(testCtx(t))
	tap.Next("Txn", etcdtest.After(cancel)) // the keys were read before
	_, err = s2.Adopt(ctx, name)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, entries(t, c, name), 2)
	adopt := func(ctx context.Context) (*Held, error) { return s2.Adopt(ctx, name) }
	one, two := inBackground(t, adopt), inBackground(t, adopt)
	a, b := <-one, <-two
	require.NotEqual(t, a.Key(), b.Key())
	_, err = s2.Adopt(testCtx(t), name)
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, a.Unlock(testCtx(t)))
	require.NoError(t, b.Check(testCtx(t)))
	require.NoError(t, s2.Close())
	_, err = s2.Adopt(testCtx(t), name)
	require.ErrorIs(t, err, ErrSessionClosed)
}

// A waiter of the same session is let in behind an adopted hold, once etcd has confirmed its release.
func TestSession_AdoptsBesideAWaiter(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c)
	_, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	s2 := succeed(t, s, c)
	tk, err := NewMutex(s2, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, tk, 1)
	h, err := s2.Adopt(testCtx(t), name)
	require.NoError(t, err)
	notGranted(t, tk, 1)
	require.NoError(t, h.Unlock(testCtx(t)))
	next, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, []string{next.Key()}, entries(t, c, name))
}

// What a Multi has lost before is no hold, and jams nothing.
func TestSession_AdoptsNoPartOfAMulti(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c)
	h, err := NewMulti(s, Write(name+".1"), Write(name+".2")).Lock(testCtx(t))
	require.NoError(t, err)
	s2 := succeed(t, s, c)
	_, err = c.Delete(testCtx(t), h.Keys()[1])
	require.NoError(t, err)
	_, err = s2.Adopt(testCtx(t), name+".1")
	require.ErrorIs(t, err, ErrNotFound)
	requireGone(t, c, name+".1")
}

// A write of the process before that comes after the hold is found and removed.
func TestSession_AdoptsAndSettles(t *testing.T) {
	tap := etcdtest.NewTap()
	c := cluster.Client(t, tap)
	name := lockName(t)
	s := newTestSession(t, c)
	late := tap.Postpone("Txn", 1) // which is sent again beside it
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	<-late.Caught()
	s2 := succeed(t, s, cluster.Client(t))
	h2, err := s2.Adopt(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), h2.Token())
	require.NoError(t, h2.Unlock(testCtx(t)))
	require.NoError(t, late.Send(testCtx(t)))
	requireGone(t, c, name)
}

// A late write of a raw value is found by the session that wrote it, which knows no nonce of it. One that is orphaned
// leaves such keys to its successor, which may write the same under the same key.
func TestSession_SweepsRawValues(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c, WithTTL(time.Minute)) // it looks when it is told to
	s.etcd.NeverHedge()
	h, err := NewMutex(s, name).Raw("10.0.0.1").Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	write := func(value string) {
		_, err := c.Put(testCtx(t), h.Key(), value, clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
	}
	write("10.0.0.1")
	require.NoError(t, s.checkEntries(testCtx(t)))
	require.Empty(t, entries(t, c, name))
	write("10.0.0.1")
	h, err = NewMutex(s, name).Raw("10.0.0.1").Lock(testCtx(t))
	require.NoError(t, err, "one that comes between two looks is in nobody's way")
	require.NoError(t, h.Unlock(testCtx(t)))
	write("another's")
	require.NoError(t, s.checkEntries(testCtx(t)))
	require.Len(t, entries(t, c, name), 1)
	write("10.0.0.1")
	s.Orphan()
	require.Error(t, s.checkEntries(testCtx(t)), "an orphaned session looks no more")
	require.Len(t, entries(t, c, name), 1, "it may be the successor's")
}

// adoptAhead enqueues in the session that has adopted the lease of h, with its raw value. The entry must stand behind that of h,
// and leave it there until it is adopted.
func adoptAhead(t *testing.T, s *Session, c *clientv3.Client, h *Held, raw string) (behind *Ticket, adopted *Held) {
	t.Helper()
	name := h.label()
	behind, err := NewMutex(s, name).Raw(raw).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, behind, 1)
	require.NoError(t, s.checkEntries(testCtx(t)))
	queueIs(t, c, name, 2)
	adopted, err = s.Adopt(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), adopted.Token())
	return behind, adopted
}

// A raw value has no nonce. Even so a Lock waits behind the entry of the process before, and leaves it there, until the
// entry is adopted.
func TestSession_LeavesARawEntryToAdopt(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c)
	h, err := NewMutex(s, name).Raw("10.0.0.1").Lock(testCtx(t))
	require.NoError(t, err)
	s2 := succeed(t, s, c)
	tk, h2 := adoptAhead(t, s2, c, h, "10.0.0.1")
	require.NoError(t, h2.Unlock(testCtx(t)))
	next, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, []string{next.Key()}, entries(t, c, name))
}

// A Try takes no entry that waits for its own, not even if it can't tell the two apart.
func TestSession_RawTryPassesNobody_I1(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct{ ambiguous, late bool }{
		"first attempt": {}, "repeated": {ambiguous: true},
		"late, first attempt": {late: true}, "late, repeated": {ambiguous: true, late: true},
	} {
		t.Run(what, func(t *testing.T) {
			tap := etcdtest.NewTap()
			c := cluster.Client(t)
			name := lockName(t)
			holder, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
			require.NoError(t, err)
			s := newTestSession(t, c)
			// A process that has died while it waited: nothing of it is removed. Its request may come late.
			wait := func() {
				_, err := c.Put(testCtx(t), exclusiveBase(name, s.Lease()), "v", clientv3.WithLease(s.Lease()))
				require.NoError(t, err)
			}
			if !tc.late {
				wait()
			}
			s2 := succeed(t, s, cluster.Client(t, tap))
			if tc.late {
				wait()
			}
			before := queueIs(t, c, name, 2)
			if tc.ambiguous {
				tap.Postpone("Txn", 1)
			}
			m := NewMutex(s2, name).Raw("v")
			if !tc.ambiguous {
				s2.etcd.NeverHedge() // the machine may stall, and then it is
			}
			for range 2 {
				_, err = m.TryLock(testCtx(t))
				require.ErrorIs(t, err, ErrLocked)
			}
			if !tc.ambiguous || !tc.late { // else nobody can tell whose it is
				require.Equal(t, before, queueIs(t, c, name, 2))
			}
			require.NoError(t, holder.Check(testCtx(t)))
		})
	}
}

// The reply to a Lock is lost beside the entry of the process before, with the same raw value. That is older than the
// request, so it is not the session's own.
func TestSession_RawLockWithALostReplyBesideAnother(t *testing.T) {
	c, w := wiredClient(t, cluster)
	name := lockName(t)
	s := newTestSession(t, c)
	h, err := NewMutex(s, name).Raw("v").Lock(testCtx(t))
	require.NoError(t, err)
	w.OnRecv(func(_ string, m any) (bool, error) { // the member that renews the lease lags
		if r, ok := m.(*pb.LeaseKeepAliveResponse); ok {
			r.Header.Revision = 1
		}
		return true, nil
	})
	s2 := succeed(t, s, c)
	w.LoseReply("Txn")
	adoptAhead(t, s2, c, h, "v")
}

// A raw entry whose reply was lost is the session's own.
func TestSession_RawLockWithALostReply(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := newTestSession(t, c)
	name := lockName(t)
	w.LoseReply("Txn")
	h, err := NewMutex(s, name).Raw("v").Lock(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, []string{h.Key()}, queueIs(t, c, name, 1))
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A request of the process before comes late, when the session that has adopted the lease has used the same key. What it
// writes is another entry, by its create revision: no guard of the one holds for the other. It is left to Adopt.
func TestSession_LateWriteOfTheProcessBefore_I5(t *testing.T) {
	name := lockName(t)
	c := cluster.Client(t)
	s := newTestSession(t, c)
	// A process that has died while its request was on its way: what this does comes late, and nobody settles it.
	late := func() {
		key := exclusiveBase(name, s.Lease())
		resp, err := c.Txn(testCtx(t)).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, s.keys.Value(time.Now(), nil, ""), clientv3.WithLease(s.Lease()))).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)
	}
	s2 := succeed(t, s, c)
	h, err := NewMutex(s2, name).Lock(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, exclusiveBase(name, s.Lease()), h.Key())
	guard := h.IsOwner()
	require.NoError(t, h.Unlock(testCtx(t)))
	late()
	require.Equal(t, []string{h.Key()}, queueIs(t, c, name, 1))
	resp, err := c.Txn(testCtx(t)).If(guard).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)

	tk, err := NewMutex(s2, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	notGranted(t, tk, 1)
	require.NoError(t, s2.checkEntries(testCtx(t)))
	h2, err := s2.Adopt(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, h.Key(), h2.Key())
	require.Greater(t, h2.Token(), h.Token())
	require.NoError(t, h2.Unlock(testCtx(t)))
	next, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, next.Check(testCtx(t)))
}

// A ctx that ends when the hold is the session's by now does not give it up.
func TestSession_AdoptsPastItsCtx(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, c)
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	s2 := succeed(t, s, c)
	h2, err := s2.Adopt(endsWhenClaimed{testCtx(t), s2}, name)
	require.NoError(t, err)
	require.Equal(t, h.Token(), h2.Token())
	require.NoError(t, h2.Check(testCtx(t)))
}

// endsWhenClaimed is a ctx that has ended as soon as the session uses a key.
type endsWhenClaimed struct {
	context.Context
	s *Session
}

func (c endsWhenClaimed) Err() error {
	if c.s.keys.InUse() {
		return context.Canceled
	}
	return c.Context.Err()
}

// After Close nothing of a session is left on a client that goes on, though a wait was given up while its watch was being
// opened. A user's goleak would see the stream. The client has one connection, which is up before the session is: the
// goroutines of another one would look like the session's.
func TestSession_CloseLeavesNoStream(t *testing.T) {
	name, tap := lockName(t), etcdtest.NewTap()
	c := cluster.Client(t, tap, etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = cluster.Endpoints()[:1] }))
	_, err := c.Put(testCtx(t), name+"/1f", "")
	require.NoError(t, err)
	before := goleak.IgnoreCurrent()
	s := newTestSession(t, c)
	opens, goesOn := make(chan struct{}, 100), make(chan struct{})
	tap.OnStream(func(ctx context.Context, method string) error {
		if method == "Watch" {
			opens <- struct{}{}
			<-goesOn
		}
		return nil
	})
	ctx, giveUp := context.WithCancel(testCtx(t))
	done := harness.Async(func() error { _, err := NewMutex(s, name).Lock(ctx); return err })
	<-opens
	giveUp()
	require.ErrorIs(t, harness.Result(t, done), context.Canceled)
	close(goesOn)
	require.NoError(t, s.Close())
	require.NoError(t, leaks.Find(hang, before))
}

// The holders are told of the session's end before anybody else can have their locks by it: a successor when Orphan has returned, and
// others when Close has revoked the lease. However many holders there are, telling them takes its time.
func TestSession_TellsItsHoldersFirst(t *testing.T) {
	tap := etcdtest.NewTap()
	c := cluster.Client(t, tap)
	for what, end := range map[string]func(s *Session) error{
		"Orphan": func(s *Session) error { s.Orphan(); return nil },
		"Close":  (*Session).Close,
	} {
		s, name := newTestSession(t, c), lockName(t)
		var ctxs []context.Context
		for i := range 200 {
			ctxs = append(ctxs, mustLock(t, s, fmt.Sprintf("%s/%d", name, i)).Context())
		}
		lent := make(chan context.Context)
		for i := range 200 {
			go func() {
				_ = NewMutex(s, fmt.Sprintf("%s/do/%d", name, i)).Do(testCtx(t), func(ctx context.Context, _ *Held) error {
					lent <- ctx
					<-ctx.Done()
					return nil
				})
			}()
		}
		for range 200 {
			ctxs = append(ctxs, <-lent)
		}
		untold := func() bool {
			return slices.ContainsFunc(ctxs, func(ctx context.Context) bool { return ctx.Err() == nil })
		}
		early := false
		tap.Next("LeaseRevoke", func(ctx context.Context, call *etcdtest.Call) error {
			early = untold()
			return call.Send(ctx)
		})
		require.NoError(t, end(s), what)
		require.False(t, untold(), what)
		require.NoError(t, s.Close())
		require.False(t, early, what)
	}
}

// Something in etcd's place answers Unavailable. The client's own request after a lease would be repeated 40 times a second.
func TestSession_AsksAfterItsLeaseWithPauses(t *testing.T) {
	tap := etcdtest.NewTap()
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(2*time.Second))
	mustLock(t, s, lockName(t))
	tap.Every("LeaseTimeToLive", func(context.Context, *etcdtest.Call) error { return etcdtest.ErrTransport })
	require.Eventually(t, func() bool { return tap.Calls("LeaseTimeToLive") > 0 }, hang, tick)
	<-time.After(2 * time.Second)
	require.Less(t, tap.Calls("LeaseTimeToLive"), 30)
}
