package operations

import (
	"context"
	"crypto/rand"
	"flag"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

var (
	outage  = flag.Duration("outage", time.Second, "how long etcd is away in TestOutage")
	ttl     = flag.Duration("ttl", 5*time.Second, "the TTL of TestTakeover")
	silence = flag.Duration("silence", 0, "how long TestHungMember listens to a watch of a default client")
	samples = flag.Int("samples", 10, "how many clients, or holders, there are of each kind")
)

// tuned are the settings that docs/operations.md advises.
var tuned = etcdtest.WithClientConfig(func(c *clientv3.Config) {
	c.DialKeepAliveTime, c.DialKeepAliveTimeout = 10*time.Second, 3*time.Second
	c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
		MinConnectTimeout: 3 * time.Second,
	}))
})

// pass waits for a time that is what is measured, not for something to happen.
func pass(d time.Duration) { <-time.After(d) }

// times collects durations.
type times struct {
	mu  sync.Mutex
	all []time.Duration
}

func (s *times) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, max(0, d))
}

// log prints least, median and greatest.
func (s *times) log(t *testing.T, what string) {
	t.Helper()
	require.Len(t, s.all, *samples, what)
	slices.Sort(s.all)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	t.Logf("%-32s min %-8v p50 %-8v max %v", what, round(s.all[0]), round(s.all[len(s.all)/2]), round(s.all[len(s.all)-1]))
}

// Etcd is away for a while: it refuses connections, or nothing answers at its address.
// How long after that do clients have their answer that asked meanwhile, and a Lock
// that did?
func TestOutage(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		away(t, (*etcdtest.Proxy).Refuse, (*etcdtest.Proxy).Accept)
	})
	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		var gone atomic.Bool
		dial := func(ctx context.Context, addr string) (net.Conn, error) {
			if gone.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
		away(t, func(*etcdtest.Proxy) { gone.Store(true) }, func(*etcdtest.Proxy) { gone.Store(false) },
			etcdtest.WithClientConfig(func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(dial)) }))
	})
}

func away(t *testing.T, leave, comeBack func(*etcdtest.Proxy), network ...etcdtest.ClientOption) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	opts := slices.Concat(network, []etcdtest.ClientOption{proxy})
	ctx := bounded(t)
	var wg sync.WaitGroup
	left, back := make(chan struct{}), make(chan time.Time, 3**samples)
	asks := func(took *times, ask func() error) {
		wg.Go(func() {
			<-left
			if err := ask(); err != nil {
				t.Error(err)
			}
			answered := time.Now()
			took.add(answered.Sub(<-back))
		})
	}
	untuned, capped, locks := &times{}, &times{}, &times{}
	get := func(client *clientv3.Client) func() error {
		return func() error {
			_, err := client.Get(ctx, "x")
			return err
		}
	}
	for range *samples {
		for took, client := range map[*times]*clientv3.Client{untuned: cluster.Client(t, opts...), capped: cluster.Client(t, slices.Concat(opts, []etcdtest.ClientOption{tuned})...)} {
			require.NoError(t, get(client)())
			asks(took, get(client))
		}
		client := etcdlock.New(cluster.Client(t, opts...))
		t.Cleanup(func() { _ = client.Close() })
		lock := func() error { return lockAndUnlock(ctx, client.Mutex(rand.Text()).Lock, 1) }
		require.NoError(t, lock())
		asks(locks, lock)
	}
	leave(proxy)
	proxy.Reset()
	close(left)
	pass(*outage)
	comeBack(proxy)
	now := time.Now()
	for range cap(back) {
		back <- now
	}
	wg.Wait()
	untuned.log(t, "default client, Get")
	capped.log(t, "tuned client, Get")
	locks.log(t, "default client, Lock")
}

// A member hangs that a watch is on. How long until the watch goes on elsewhere, and
// until a lock that waits is granted?
func TestHungMember(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	ctx := bounded(t)
	admin := cluster.Client(t)
	hung, others := cluster.Proxy(t, 0), cluster.Proxy(t, 1, 2)
	watches, waits := &times{}, &times{}
	var told atomic.Int32
	others.Refuse() // so that all that is opened now is on the one that will hang
	var began time.Time
	hangs := make(chan struct{})
	var wg sync.WaitGroup
	holder, err := etcdlock.NewSession(ctx, admin)
	require.NoError(t, err)
	for i := range *samples {
		key := "key" + string(rune('a'+i))
		client := cluster.Client(t, hung, others, tuned)
		watch := client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithCreatedNotify())
		<-watch
		wg.Go(func() {
			<-hangs
			for resp := range watch {
				if len(resp.Events) > 0 {
					watches.add(time.Since(began))
					return
				}
			}
			t.Error("the watch has ended")
		})
		silent := cluster.Client(t, hung, others).Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithCreatedNotify())
		<-silent
		go func() { // until the client is closed
			for resp := range silent {
				if len(resp.Events) > 0 {
					told.Add(1)
				}
			}
		}()
		held, err := etcdlock.NewMutex(holder, key).Lock(ctx)
		require.NoError(t, err)
		s, err := etcdlock.NewSession(ctx, cluster.Client(t, hung, others))
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		ticket, err := etcdlock.NewMutex(s, key).Enqueue(ctx)
		require.NoError(t, err)
		wg.Go(func() {
			<-hangs
			if err := held.Unlock(ctx); err != nil {
				t.Error(err)
			}
			if _, err := ticket.Wait(ctx); err != nil {
				t.Error(err)
			}
			waits.add(time.Since(began))
		})
	}
	others.Accept()
	require.Eventually(t, func() bool { return others.Connections() >= 3**samples }, hang, 10*time.Millisecond)
	hung.Blackhole(etcdtest.Both)
	began = time.Now()
	close(hangs)
	for i := range *samples {
		_, err := admin.Put(ctx, "key"+string(rune('a'+i)), "1")
		require.NoError(t, err)
	}
	wg.Wait()
	watches.log(t, "tuned client, its own watch")
	waits.log(t, "default client, a lock's waiter")
	if left := *silence - time.Since(began); left > 0 {
		pass(left)
		t.Logf("default client, its own watch: %d of %d told after %v", told.Load(), *samples, *silence)
	}
}

// A holder dies, at any moment between two renewals. When is its lock free?
func TestTakeover(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	ctx := bounded(t)
	observer, err := etcdlock.NewSession(ctx, cluster.Client(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = observer.Close() })
	var wg sync.WaitGroup
	taken := &times{}
	for i := range *samples {
		wg.Go(func() {
			name := "jobs/" + string(rune('a'+i))
			proxy := cluster.Proxy(t)
			s, err := etcdlock.NewSession(ctx, cluster.Client(t, proxy), etcdlock.WithTTL(*ttl))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := etcdlock.NewMutex(s, name).Lock(ctx); err != nil {
				t.Error(err)
				return
			}
			pass(mathrand.N(*ttl)) // a renewal or two, or three
			proxy.Blackhole(etcdtest.Both)
			began := time.Now()
			h, err := etcdlock.NewMutex(observer, name).Lock(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			taken.add(time.Since(began))
			_ = h.Unlock(ctx)
		})
	}
	wg.Wait()
	taken.log(t, "taken over, TTL "+ttl.String())
}
