package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
)

// Rows F1 to F7: loss, and when the holder is told.

// runs is how often a row that depends on chance is tried: ETCDLOCK_RUNS times, by
// default 50.
func runs(t testing.TB) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("ETCDLOCK_RUNS"), "50"))
	require.NoError(t, err, "ETCDLOCK_RUNS")
	require.Positive(t, n, "ETCDLOCK_RUNS must be positive")
	return n
}

// runTTLs are the TTLs with which such rows are tried: the seconds in ETCDLOCK_TTLS, by
// default 2.
func runTTLs(t testing.TB) (ttls []time.Duration) {
	for s := range strings.SplitSeq(cmp.Or(os.Getenv("ETCDLOCK_TTLS"), "2"), ",") {
		n, err := strconv.Atoi(s)
		require.NoError(t, err, "ETCDLOCK_TTLS")
		ttls = append(ttls, time.Duration(n)*time.Second)
	}
	return ttls
}

// A holder is a held lock of any library.
type holder struct {
	done <-chan struct{} // closed when its owner is told of the loss
	key  string
	// check, if not nil, is called after the loss. answered is the time at which the
	// last grant or renewal was sent that etcd has answered.
	check func(answered time.Time) error
}

// A cutting is a way to lose the connection to etcd, and the times of the loss that
// followed.
type cutting struct {
	delay      time.Duration // of all that the client receives
	stuck      bool          // only renewals are blocked, from the first one on
	ttl        time.Duration
	told, gone time.Time // when the owner was told, and when etcd had removed the key
}

// latency is that of an ordinary network. Without it, etcd's own client may be told in time
// by chance, because it renews and checks the clock at even intervals.
const latency = 20 * time.Millisecond

// cut makes n holders lose their connections to etcd, each with a network of its own: at
// the moment of an answered renewal, or some time after it.
func cut(t *testing.T, n int, how cutting, lock func(ctx context.Context, c *clientv3.Client, name string) (holder, error)) []cutting {
	t.Helper()
	observer, prefix := cluster.Client(t), lockName(t)
	var mu sync.Mutex
	gone := map[string]time.Time{}
	watching, cancel := context.WithCancel(context.Background())
	defer cancel()
	deletions := observer.Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-deletions
	go func() {
		for wr := range deletions {
			at := time.Now()
			for _, ev := range wr.Events {
				mu.Lock()
				gone[string(ev.Kv.Key)] = at
				mu.Unlock()
			}
		}
	}()
	cuts := make([]cutting, n)
	turns := make(chan struct{}, 17) // limits how many run at once, so that the machine is not too slow
	var wg sync.WaitGroup
	for i := range cuts {
		wg.Go(func() {
			c := how
			var h holder
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := c.run(prefix, i, &h, lock); err != nil {
				t.Error(err)
				return
			}
			ctx := testCtx(t)
			for c.gone.IsZero() {
				mu.Lock()
				c.gone = gone[h.key]
				mu.Unlock()
				if err := etcd.Sleep(ctx, tick); err != nil {
					t.Error("etcd has not removed the key")
					return
				}
			}
			cuts[i] = c
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	return cuts
}

func (c *cutting) run(prefix string, i int, h *holder, lock func(ctx context.Context, c *clientv3.Client, name string) (holder, error)) error {
	proxy, err := cluster.NewProxy()
	if err != nil {
		return err
	}
	defer proxy.Close()
	tap := etcdtest.NewTap()
	var mu sync.Mutex
	sent := map[context.Context]time.Time{}
	var answered time.Time
	held, cut := false, false
	tap.Every("LeaseGrant", func(ctx context.Context, c *etcdtest.Call) error {
		at := time.Now()
		err := c.Send(ctx)
		if err == nil {
			answered = at
		}
		return err
	})
	tap.OnKeepAliveRequest(func(ctx context.Context, _ *pb.LeaseKeepAliveRequest) error {
		mu.Lock()
		defer mu.Unlock()
		sent[ctx] = time.Now()
		return nil
	})
	tap.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
		mu.Lock()
		defer mu.Unlock()
		if sent[ctx].After(answered) {
			answered = sent[ctx]
		}
		switch {
		case !held || cut:
			return nil
		case i%2 == 0:
			proxy.Blackhole(etcdtest.Both)
		default:
			time.AfterFunc(rand.N(c.ttl/3), func() { proxy.Blackhole(etcdtest.Both) })
		}
		cut = true
		return nil
	})
	if c.stuck {
		tap.OnStream(func(ctx context.Context, method string) error {
			if method != "LeaseKeepAlive" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}
	client, err := cluster.NewClient(tap, proxy, etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.DialTimeout = 2 * time.Second }))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hang+c.ttl)
	defer cancel()
	if _, err := client.Get(ctx, "connected"); err != nil {
		return err
	}
	proxy.Delay(etcdtest.ToClient, c.delay)
	_ = etcd.Sleep(ctx, rand.N(500*time.Millisecond)) // etcd checks for expired leases twice a second
	if *h, err = lock(ctx, client, fmt.Sprintf("%s/%d", prefix, i)); err != nil {
		return err
	}
	mu.Lock()
	held = true
	mu.Unlock()
	select {
	case <-h.done:
		c.told = time.Now()
	case <-ctx.Done():
		return errors.New("the owner is never told of the loss")
	}
	if h.check == nil {
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	return h.check(answered)
}

// cutTold requires that all owners are told in time.
//
// If a process does not run for longer than the deadline's margin, it is a paused process,
// and its timers fire late. So the test measures how late its own timers are; on such a busy
// machine the owner may be told that much later.
func cutTold(t *testing.T, how cutting) {
	t.Helper()
	for _, how.ttl = range runTTLs(t) {
		lateness := measureLateness(t)
		cuts := cut(t, runs(t), how, func(ctx context.Context, c *clientv3.Client, name string) (holder, error) {
			s, err := NewSession(ctx, c, WithTTL(how.ttl))
			if err != nil {
				return holder{}, err
			}
			h, err := NewMutex(s, name).Lock(ctx)
			if err != nil {
				return holder{}, err
			}
			return holder{h.Done(), h.Key(), func(answered time.Time) error {
				switch {
				case h.Valid(), s.Err() == nil:
					return errors.New("the owner was told, but the hold or the session is still valid")
				case !errors.Is(h.Err(), ErrLost), !errors.Is(h.Err(), ErrSessionExpired):
					return h.Err()
				case !s.Deadline().Before(answered.Add(how.ttl)):
					return fmt.Errorf("the deadline is %v after the renewal was sent: it is not counted from the sending", s.Deadline().Sub(answered))
				}
				return nil
			}}, nil
		})
		earliest, late := time.Hour, lateness()
		if late < how.ttl/10 {
			late = 0
		}
		for _, c := range cuts {
			earliest = min(earliest, c.gone.Sub(c.told))
			require.Truef(t, c.told.Before(c.gone.Add(late)), "TTL %v: the owner was told %v after another session could have the lock", c.ttl, c.told.Sub(c.gone))
		}
		t.Logf("shown: TTL %v, %s%d runs: told at least %v before the entry was removed", how.ttl, map[bool]string{true: "replies late, "}[how.delay > latency], len(cuts), earliest.Round(time.Millisecond))
	}
}

// measureLateness returns a function that ends the measurement and returns the largest
// lateness of a timer of this process.
func measureLateness(t *testing.T) func() time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	most := make(chan time.Duration, 1)
	go func() {
		var late time.Duration
		for ctx.Err() == nil {
			due := time.Now().Add(tick)
			_ = etcd.Sleep(ctx, tick)
			late = max(late, time.Since(due))
		}
		most <- late
	}()
	return func() time.Duration { cancel(); return <-most }
}

func TestFault_F1_DeadlineCountedFromSend(t *testing.T) {
	for name, how := range map[string]cutting{"blackholed": {delay: latency}, "replies delayed": {delay: 500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // only with each other
			cutTold(t, how)
		})
	}
}

func TestFault_F2_FirstKeepAliveStuck(t *testing.T) {
	t.Run("told in time", func(t *testing.T) { cutTold(t, cutting{stuck: true, delay: 500 * time.Millisecond}) })
	// The session must not give up early: etcd's own client gives up a lease of a minute
	// after 5 s.
	t.Run("not given up", func(t *testing.T) {
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
	})
}

// lossIsTold takes locks of all kinds with a TTL of a minute, has each one removed by take,
// and requires that its holder is told. check then checks the errors.
func lossIsTold(t *testing.T, take func(h *Held), check func(t *testing.T, h *Held)) {
	t.Helper()
	c := cluster.Client(t)
	slowest := time.Duration(0)
	for i := range runs(t) {
		kind := []string{"Mutex", "RWMutex", "RWMutex read", "Try read"}[i%4]
		name := lockName(t)
		client, w := wiredClient(t, cluster)
		s := newTestSession(t, client, WithTTL(time.Minute))
		locked := make(chan *Held, 1)
		lock := func() {
			h, err := lockFuncs(s, name)[kind](testCtx(t))
			if err != nil {
				t.Error(err)
			}
			locked <- h
		}
		if i/4%3 == 0 && kind != "Try read" { // a hold that had to wait keeps its watch
			before, err := NewMutex(newTestSession(t, c), name).Lock(testCtx(t))
			require.NoError(t, err)
			w.Reset()
			go lock()
			w.WaitFor(t, 0, 1)
			require.NoError(t, before.Unlock(testCtx(t)))
		} else {
			lock()
		}
		h := <-locked
		require.NotNil(t, h)
		done := h.Done()
		if i/4%3 == 1 {
			w.WaitFor(t, 0, 1) // otherwise the watch may open after the loss
		}
		take(h)
		began := time.Now()
		select {
		case <-done:
		case <-time.After(hang):
			t.Fatal("the holder is not told of the loss")
		}
		slowest = max(slowest, time.Since(began))
		require.Less(t, time.Since(began), told, kind)
		require.False(t, h.Valid())
		require.ErrorIs(t, h.Err(), ErrLost)
		check(t, h)
		require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
		requireGone(t, c, name)
	}
	t.Logf("shown: %d runs: told within %v", runs(t), slowest.Round(time.Microsecond))
}

func TestFault_F3_RevokedByAnother(t *testing.T) {
	c := cluster.Client(t)
	lossIsTold(t, func(h *Held) {
		_, err := c.Revoke(testCtx(t), h.s.Lease())
		require.NoError(t, err)
	}, func(t *testing.T, h *Held) {
		require.ErrorIs(t, h.Err(), ErrSessionExpired, "the cause must be the lease")
		select {
		case <-h.s.Done():
		case <-time.After(told):
			t.Fatal("the session does not end")
		}
	})
}

func TestFault_F5_KeyDeleted(t *testing.T) {
	c := cluster.Client(t)
	lossIsTold(t, func(h *Held) {
		_, err := c.Delete(testCtx(t), h.Key())
		require.NoError(t, err)
	}, func(t *testing.T, h *Held) {
		require.NotErrorIs(t, h.Err(), ErrSessionExpired, "the cause must not be the lease")
		require.NoError(t, h.s.Err())
		again, err := NewMutex(h.s, h.name).Lock(testCtx(t))
		require.NoError(t, err, "the session must go on")
		require.Greater(t, again.Token(), h.Token())
		require.NoError(t, again.Unlock(testCtx(t)))
	})
}

// Many holds of one session are lost together: the session asks only a few times whether
// the lease is the cause, and not once for each hold.
func TestFault_F5_ManyKeysDeleted(t *testing.T) {
	tap, base := etcdtest.NewTap(), lockName(t)
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(time.Minute))
	holds := make([]*Held, 100)
	for i := range holds {
		h, err := NewMutex(s, fmt.Sprint(base, "/", i)).Lock(testCtx(t))
		require.NoError(t, err)
		h.Done()
		holds[i] = h
	}
	all := func() bool { return !slices.ContainsFunc(holds, (*Held).Valid) }
	tap.Next("LeaseTimeToLive", func(ctx context.Context, c *etcdtest.Call) error {
		for !all() && ctx.Err() == nil {
			_ = etcd.Sleep(ctx, tick)
		}
		return c.Send(ctx)
	})
	_, err := cluster.Client(t).Delete(testCtx(t), base, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, h := range holds {
		<-h.Done()
		require.NotErrorIs(t, h.Err(), ErrSessionExpired)
	}
	require.Less(t, tap.Calls("LeaseTimeToLive"), len(holds)/2)
	require.NoError(t, s.Err())
}

// An old leader revokes a live lease (etcd-io/etcd#15247): the client still renews, but
// loses its lock. The lock of the next holder is not affected.
func TestFault_F6_LiveLeaseRevoked(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	s := newTestSession(t, cluster.Client(t), WithTTL(time.Minute))
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	next, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Enqueue(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, s.Refresh(testCtx(t)))
	_, err = c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	h2, err := next.Wait(testCtx(t))
	require.NoError(t, err)
	select {
	case <-done:
	case <-time.After(told):
		t.Fatal("the old holder is not told of the loss")
	}
	_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", "stale")).Commit()
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
	require.NoError(t, h2.Check(testCtx(t)), "the next holder must keep its lock")
	require.Greater(t, h2.Token(), h.Token())
	require.NoError(t, h2.Unlock(testCtx(t)))
}

// A leader renews a lease that has been revoked, because it is the last member to apply the
// revocation. The missing entry shows that the lease has to be checked in another way.
func TestFault_F7_RenewedByALeaderThatLags(t *testing.T) {
	tap := etcdtest.NewTap()
	tap.OnKeepAliveResponse(func(_ context.Context, m *pb.LeaseKeepAliveResponse) error {
		m.TTL = 60
		return nil
	})
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(time.Minute))
	h, err := NewMutex(s, lockName(t)).Lock(testCtx(t))
	require.NoError(t, err)
	done := h.Done()
	_, err = cluster.Client(t).Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	began := time.Now()
	<-done
	require.Less(t, time.Since(began), told)
	require.ErrorIs(t, h.Err(), ErrSessionExpired, "the cause must be the lease")
	require.ErrorIs(t, s.Err(), ErrSessionExpired)
}

// Renewals and TimeToLive are answered as if a revoked lease were alive
// (etcd-io/etcd#14758): no such answer proves that a lock is held.
func TestFault_F7_RenewalConfirmedAfterRevoke(t *testing.T) {
	c := cluster.Client(t)
	name := lockName(t)
	tap := etcdtest.NewTap()
	tap.OnKeepAliveResponse(func(_ context.Context, m *pb.LeaseKeepAliveResponse) error {
		m.TTL = 60
		return nil
	})
	tap.Every("LeaseTimeToLive", func(ctx context.Context, c *etcdtest.Call) error {
		err := c.Send(ctx)
		c.Reply.(*pb.LeaseTimeToLiveResponse).GrantedTTL = 60
		return err
	})
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(time.Minute))
	lock := func(name string) *Held {
		h, err := NewMutex(s, name).Lock(testCtx(t))
		require.NoError(t, err)
		return h
	}
	watched, checked, guarded, unlocked := lock(name+"1"), lock(name+"2"), lock(name+"3"), lock(name+"4")
	done := watched.Done()
	blocking, err := NewMutex(newTestSession(t, c), name+"5").Lock(testCtx(t))
	require.NoError(t, err)
	waiting, err := NewMutex(s, name+"5").Enqueue(testCtx(t))
	require.NoError(t, err)

	_, err = c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	began := time.Now()
	<-done
	require.Less(t, time.Since(began), told)
	require.NoError(t, s.Refresh(testCtx(t)), "the tap must make the renewal succeed")
	require.ErrorIs(t, watched.Err(), ErrLost)
	require.ErrorIs(t, checked.Check(testCtx(t)), ErrLost)
	_, err = guarded.Txn(testCtx(t)).Then(clientv3.OpPut(name+".x", "stale")).Commit()
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, unlocked.Unlock(testCtx(t)), ErrLost)
	_, err = waiting.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrLost)
	// A refusal can be trusted.
	_, err = NewMutex(s, name+"6").Lock(testCtx(t))
	require.ErrorIs(t, err, ErrSessionExpired)
	require.ErrorIs(t, s.Err(), ErrSessionExpired)
	require.NoError(t, blocking.Unlock(testCtx(t)))
}
