package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows F1 and F2: etcd can't be reached, and the holder is told in time by its own clock.

// runTTLs are the TTLs with which such rows are tried: the seconds in ETCDLOCK_TTLS, by default 3: where replies take half
// a second, the lock must be there before the TTL is over, on a machine that stalls too.
func runTTLs(t testing.TB) (ttls []time.Duration) {
	for s := range strings.SplitSeq(cmp.Or(os.Getenv("ETCDLOCK_TTLS"), "3"), ",") {
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
	observer, prefix := cluster.Client(t), harness.LockName(t)
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
	turns := make(chan struct{}, 12) // limits how many run at once, so that the machine is not too slow
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
			ctx := harness.Ctx(t)
			for c.gone.IsZero() {
				mu.Lock()
				c.gone = gone[h.key]
				mu.Unlock()
				if err := etcd.Sleep(ctx, harness.Tick); err != nil {
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
		mu.Lock() // a grant that is slow is asked for twice
		defer mu.Unlock()
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
	ctx, cancel := context.WithTimeout(context.Background(), harness.Hang+c.ttl)
	defer cancel()
	if _, err := client.Get(ctx, "connected"); err != nil {
		return err
	}
	proxy.Delay(etcdtest.ToClient, c.delay)
	_ = etcd.Sleep(ctx, rand.N(500*time.Millisecond)) // etcd checks for expired leases twice a second
	// A machine that stalls may cost a session before it has its lock.
	for n := 0; ; n++ {
		began := time.Now()
		if *h, err = lock(ctx, client, fmt.Sprintf("%s/%d-%d", prefix, i, n)); err == nil {
			break
		}
		if ctx.Err() != nil || time.Since(began) < c.ttl/2 {
			return err
		}
	}
	mu.Lock()
	held = true
	mu.Unlock()
	select {
	case <-h.done:
		c.told = time.Now()
	case <-time.After(harness.Hang + c.ttl): // not what is left of ctx
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
		cuts := cut(t, harness.Runs(t), how, func(ctx context.Context, c *clientv3.Client, name string) (holder, error) {
			s, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(how.ttl))
			if err != nil {
				return holder{}, err
			}
			h, err := etcdlock.NewMutex(s, name).Lock(ctx)
			if err != nil {
				return holder{}, err
			}
			return holder{h.Done(), h.Key(), func(answered time.Time) error {
				inTime := time.Since(answered) < how.ttl // else it may have heard that etcd has removed the entry
				switch {
				case h.Valid(), s.Err() == nil && inTime:
					return errors.New("the owner was told, but the hold or the session is still valid")
				case !errors.Is(h.Err(), etcdlock.ErrLost), !errors.Is(h.Err(), etcdlock.ErrSessionExpired) && inTime:
					return h.Err()
				case !s.Deadline().Before(answered.Add(how.ttl)):
					return fmt.Errorf("the deadline is %v after the renewal was sent: it is not counted from the sending", s.Deadline().Sub(answered))
				}
				return nil
			}}, nil
		})
		earliest, late := time.Hour, beyondTheMargin(lateness(), how.ttl)
		for _, c := range cuts {
			earliest = min(earliest, c.gone.Sub(c.told))
			require.Truef(t, c.told.Before(c.gone.Add(late)), "TTL %v: the owner was told %v after another session could have the lock", c.ttl, c.told.Sub(c.gone))
		}
		what := ""
		switch {
		case how.stuck:
			what = "no renewal answered, "
		case how.delay > latency:
			what = "replies late, "
		}
		t.Logf("shown: TTL %v, %s%d runs: told at least %v before the entry was removed", how.ttl, what, len(cuts), earliest.Round(time.Millisecond))
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
		for last := time.Now(); ctx.Err() == nil; {
			_ = etcd.Sleep(ctx, harness.Tick)
			now := time.Now()
			late = max(late, now.Sub(last)-harness.Tick)
			last = now
		}
		most <- late
	}()
	return func() time.Duration { cancel(); return <-most }
}

// beyondTheMargin is how much later than in time the owner may be told if a timer is that late: not at all within the
// deadline's margin. Between the deadline and the owner are a timer and three goroutines, and each may be as late.
func beyondTheMargin(late, ttl time.Duration) time.Duration {
	if late *= 4; late < ttl/10 {
		return 0
	}
	return late
}

func TestFault_F1_F2_DeadlineCountedFromSend(t *testing.T) {
	for name, how := range map[string]cutting{
		"blackholed":          {delay: latency},
		"replies delayed":     {delay: 500 * time.Millisecond},
		"first renewal stuck": {stuck: true, delay: 500 * time.Millisecond}, // it is never answered; see also TestFault_F2_NotGivenUp
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // only with each other
			cutTold(t, how)
		})
	}
}
