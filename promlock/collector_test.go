package promlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

// hang bounds what could hang.
const hang = 30 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

func registry(t testing.TB, collectors ...prometheus.Collector) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		require.NoError(t, reg.Register(c))
	}
	return reg
}

// gather returns the value of each series, and the count of a histogram, by name and
// labels as in the text format.
func gather(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				series[name] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter() != nil:
				series[name] = m.GetCounter().GetValue()
			default:
				series[name] = m.GetGauge().GetValue()
			}
		}
	}
	return series
}

// gatherOnce waits until a series has a value, and returns all series. Hooks are called a moment after the event.
func gatherOnce(t testing.TB, reg prometheus.Gatherer, name string, value float64) (got map[string]float64) {
	t.Helper()
	require.Eventually(t, func() bool {
		got = gather(t, reg)
		return got[name] == value
	}, hang, time.Millisecond)
	return got
}

func requireLint(t testing.TB, reg prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func newSession(t testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(testCtx(t), c, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustLock(t testing.TB, lock func(context.Context) (*etcdlock.Held, error)) *etcdlock.Held {
	t.Helper()
	h, err := lock(testCtx(t))
	require.NoError(t, err)
	return h
}

// Each event of real locks changes the metrics once.
func TestCollector(t *testing.T) {
	cluster := etcdtest.Start(t)
	client, err := cluster.NewClient()
	require.NoError(t, err)
	defer client.Close()
	locks := promlock.New()
	reg := registry(t, locks)
	s := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Minute))
	got := gatherOnce(t, reg, "etcdlock_sessions", 1)
	left := got["etcdlock_session_ttl_left_seconds"]
	require.Greater(t, left, 0.0)
	require.LessOrEqual(t, left, 60.0)
	require.EqualValues(t, 1, got["etcdlock_sessions"])

	// Of a one acquisition is held, one waits, and one each was released, found the
	// lock taken, timed out and was cancelled.
	m, rw := etcdlock.NewMutex(s, "a"), etcdlock.NewRWMutex(s, "rw")
	require.NoError(t, mustLock(t, m.Lock).Unlock(testCtx(t)))
	h := mustLock(t, m.Lock)
	waiting, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = m.TryLock(testCtx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	ctx, cancel := context.WithTimeout(testCtx(t), time.Second) // time to enter the queue
	defer cancel()
	_, err = m.Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancelled, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, cancelled.Cancel(testCtx(t)))
	r1, r2 := mustLock(t, rw.RLock), mustLock(t, rw.RLock)
	require.NoError(t, r1.Unlock(testCtx(t)))
	w := mustLock(t, etcdlock.NewRWMutex(s, "w").Lock)
	require.NoError(t, w.Downgrade(testCtx(t)))
	require.NoError(t, s.Refresh(testCtx(t)))
	got = gatherOnce(t, reg, "etcdlock_session_renewal_seconds", 1) // the last event
	delete(got, "etcdlock_session_ttl_left_seconds")
	require.Contains(t, got, "etcdlock_session_renewal_failures_total")
	delete(got, "etcdlock_session_renewal_failures_total") // a machine that stalls may answer the first attempt late
	// Each counter of losses is there before the first loss, or its increase would
	// not be seen.
	for _, some := range []string{
		"lost_total{cause=session_expired,mode=exclusive,name=a}", "lost_total{cause=session_closed,mode=exclusive,name=a}", "lost_total{cause=removed,mode=exclusive,name=a}",
		"lost_total{cause=session_expired,mode=exclusive,name=w}", "lost_total{cause=session_closed,mode=exclusive,name=w}", "lost_total{cause=removed,mode=exclusive,name=w}",
		"lost_total{cause=session_expired,mode=shared,name=rw}", "lost_total{cause=session_closed,mode=shared,name=rw}", "lost_total{cause=removed,mode=shared,name=rw}",
		"sessions_ended_total{cause=session_expired}", "sessions_ended_total{cause=session_closed}",
	} {
		require.Contains(t, got, "etcdlock_"+some)
		require.Zero(t, got["etcdlock_"+some], some)
		delete(got, "etcdlock_"+some)
	}
	// The hold of a is older than the entry that waits behind it.
	require.Greater(t, got["etcdlock_oldest_hold_seconds{mode=exclusive,name=a}"], got["etcdlock_oldest_wait_seconds{mode=exclusive,name=a}"])
	for _, some := range []string{"wait_seconds{mode=exclusive,name=a}", "hold_seconds{mode=exclusive,name=a}",
		"hold_seconds{mode=exclusive,name=w}", "hold_seconds{mode=shared,name=rw}"} {
		require.Greater(t, got["etcdlock_oldest_"+some], 0.0, some)
		delete(got, "etcdlock_oldest_"+some)
	}
	require.Equal(t, map[string]float64{
		"etcdlock_oldest_wait_seconds{mode=exclusive,name=w}": 0,
		"etcdlock_oldest_wait_seconds{mode=shared,name=rw}":   0,
		"etcdlock_sessions":                                              1,
		"etcdlock_session_ttl_seconds":                                   60,
		"etcdlock_session_renewal_seconds":                               1,
		"etcdlock_held{mode=exclusive,name=a}":                           1,
		"etcdlock_held{mode=exclusive,name=w}":                           1,
		"etcdlock_held{mode=shared,name=rw}":                             1,
		"etcdlock_waiting{mode=exclusive,name=a}":                        1,
		"etcdlock_waiting{mode=exclusive,name=w}":                        0,
		"etcdlock_waiting{mode=shared,name=rw}":                          0,
		"etcdlock_hold_seconds{mode=exclusive,name=a}":                   1,
		"etcdlock_hold_seconds{mode=shared,name=rw}":                     1,
		"etcdlock_wait_seconds{mode=exclusive,name=a,outcome=granted}":   2,
		"etcdlock_wait_seconds{mode=exclusive,name=a,outcome=locked}":    1,
		"etcdlock_wait_seconds{mode=exclusive,name=a,outcome=timeout}":   1,
		"etcdlock_wait_seconds{mode=exclusive,name=a,outcome=cancelled}": 1,
		"etcdlock_wait_seconds{mode=exclusive,name=w,outcome=granted}":   1,
		"etcdlock_wait_seconds{mode=shared,name=rw,outcome=granted}":     2,
	}, got)
	require.NoError(t, w.Unlock(testCtx(t)))

	// All locks are lost, also those that nobody looks at.
	_, err = client.Delete(testCtx(t), r2.Key())
	require.NoError(t, err)
	require.ErrorIs(t, r2.Unlock(testCtx(t)), etcdlock.ErrLost)
	require.NoError(t, client.Close())
	_, err = waiting.Wait(testCtx(t))
	require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
	require.Error(t, s.Close(), "etcd cannot be asked to revoke the lease")
	require.Error(t, h.Unlock(testCtx(t)))
	got = gather(t, reg)
	for name, want := range map[string]float64{
		"etcdlock_sessions": 0,
		"etcdlock_sessions_ended_total{cause=session_expired}":                 1,
		"etcdlock_held{mode=exclusive,name=a}":                                 0,
		"etcdlock_held{mode=exclusive,name=w}":                                 0,
		"etcdlock_held{mode=shared,name=rw}":                                   0,
		"etcdlock_waiting{mode=exclusive,name=a}":                              0,
		"etcdlock_oldest_wait_seconds{mode=exclusive,name=a}":                  0,
		"etcdlock_oldest_hold_seconds{mode=exclusive,name=a}":                  0,
		"etcdlock_hold_seconds{mode=exclusive,name=a}":                         2,
		"etcdlock_hold_seconds{mode=exclusive,name=w}":                         1,
		"etcdlock_hold_seconds{mode=shared,name=rw}":                           2,
		"etcdlock_lost_total{cause=session_expired,mode=exclusive,name=a}":     1,
		"etcdlock_lost_total{cause=removed,mode=shared,name=rw}":               1,
		"etcdlock_wait_seconds{mode=exclusive,name=a,outcome=session_expired}": 1,
	} {
		assert.Equal(t, want, got[name], name)
	}
	require.NotContains(t, got, "etcdlock_session_ttl_left_seconds")
	require.NotContains(t, got, "etcdlock_session_ttl_seconds")
	requireLint(t, reg)
}

// An Elector whose rights were taken away is refused once, and its Run returns. Prometheus sees that: the series was there
// before.
func TestCollector_ElectorIsRefused(t *testing.T) {
	m := promlock.New()
	reg := registry(t, m)
	const series = "etcdlock_wait_seconds{mode=elector,name=a,outcome=error}"
	hooks := m.Hooks()
	term := etcdlock.Acquisition{Name: "a", Elector: true}
	hooks.Enqueued(testCtx(t), etcdlock.EnqueuedInfo{Acquisition: term})
	got := gather(t, reg)
	require.Contains(t, got, series)
	require.Zero(t, got[series])
	hooks.Abandoned(testCtx(t), etcdlock.AbandonedInfo{Acquisition: term, Err: errors.New("permission denied")})
	require.Equal(t, 1.0, gather(t, reg)[series])
	hooks.Enqueued(testCtx(t), etcdlock.EnqueuedInfo{Acquisition: etcdlock.Acquisition{Name: "b"}})
	require.NotContains(t, gather(t, reg), "etcdlock_wait_seconds{mode=exclusive,name=b,outcome=error}", "a Lock is called again")
}

// Of several sessions the earliest deadline counts.
// Calls that find no session, since etcd is away, are waits that ended: an alert on them sees a long outage.
func TestCollector_NoSession(t *testing.T) {
	t.Parallel()
	tap, metrics := etcdtest.NewTap(), promlock.New()
	tap.Every("LeaseGrant", func(context.Context, *etcdtest.Call) error { return etcdtest.ErrTransport })
	locks := etcdlock.New(etcdtest.Start(t).Client(t, tap), etcdlock.WithHooks(metrics.Hooks()))
	ctx, cancel := context.WithTimeout(testCtx(t), 50*time.Millisecond)
	defer cancel()
	_, err := locks.Mutex("away").Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	got := gatherOnce(t, registry(t, metrics), "etcdlock_wait_seconds{mode=exclusive,name=away,outcome=timeout}", 1)
	require.Zero(t, got["etcdlock_waiting{mode=exclusive,name=away}"])
	require.NoError(t, locks.Close())
}

func TestCollector_TTLLeft(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	locks := promlock.New()
	reg := registry(t, locks)
	long := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Hour))
	short := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Minute))
	got := gatherOnce(t, reg, "etcdlock_sessions", 2)
	require.LessOrEqual(t, got["etcdlock_session_ttl_left_seconds"], 60.0)
	require.EqualValues(t, 60, got["etcdlock_session_ttl_seconds"])
	require.NoError(t, short.Close())
	got = gather(t, reg)
	require.EqualValues(t, 1, got["etcdlock_sessions"])
	require.Greater(t, got["etcdlock_session_ttl_left_seconds"], 60.0)
	require.EqualValues(t, 3600, got["etcdlock_session_ttl_seconds"])
	require.NoError(t, long.Close())
	require.EqualValues(t, 2, gather(t, reg)["etcdlock_sessions_ended_total{cause=session_closed}"])
}

// The histograms are native, and have classic buckets unless none are wanted.
func TestCollector_Histograms(t *testing.T) {
	for buckets, opts := range map[int][]promlock.Option{
		12: nil,
		3:  {promlock.WithBuckets(1, 2, 5)},
		0:  {promlock.WithBuckets()},
	} {
		c := promlock.New(opts...)
		h, a := c.Hooks(), etcdlock.Acquisition{Name: "a"}
		h.Granted(t.Context(), etcdlock.GrantedInfo{Acquisition: a, Wait: time.Second})
		h.Released(t.Context(), etcdlock.ReleasedInfo{Acquisition: a, Held: 2 * time.Second})
		h.Renewed(etcdlock.RenewedInfo{RoundTrip: 3 * time.Second})
		h.Renewed(etcdlock.RenewedInfo{RoundTrip: 10 * time.Second, Err: errors.New("away")})
		reg := registry(t, c)
		require.EqualValues(t, 1, gather(t, reg)["etcdlock_session_renewal_failures_total"])
		families, err := reg.Gather()
		require.NoError(t, err)
		sums := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if h := m.GetHistogram(); h != nil {
					require.NotNil(t, h.Schema, "%s is not native", f.GetName())
					require.Len(t, h.GetBucket(), buckets, f.GetName())
					sums[f.GetName()] = h.GetSampleSum()
				}
			}
		}
		require.Equal(t, map[string]float64{"etcdlock_wait_seconds": 1, "etcdlock_hold_seconds": 2, "etcdlock_session_renewal_seconds": 3}, sums)
		requireLint(t, reg)
	}
}

// A service with very many names makes a bounded number of series, and each
// acquisition leaves the gauge that it entered.
func TestCollector_Names(t *testing.T) {
	locks := promlock.New()
	h := locks.Hooks()
	for _, name := range []string{"b", "early"} {
		h.Granted(t.Context(), etcdlock.GrantedInfo{Acquisition: etcdlock.Acquisition{Name: name}})
	}
	for i := range 2000 {
		h.Granted(t.Context(), etcdlock.GrantedInfo{Acquisition: etcdlock.Acquisition{Name: fmt.Sprint("orders/", i)}})
	}
	got := gather(t, registry(t, locks))
	held := 0
	for name := range got {
		if strings.HasPrefix(name, "etcdlock_held") {
			held++
		}
	}
	require.Equal(t, 101, held)
	require.EqualValues(t, 1902, got["etcdlock_held{mode=exclusive,name=other}"])
	for i := range 2000 {
		h.Released(t.Context(), etcdlock.ReleasedInfo{Acquisition: etcdlock.Acquisition{Name: fmt.Sprint("orders/", i)}})
	}
	h.Released(t.Context(), etcdlock.ReleasedInfo{Acquisition: etcdlock.Acquisition{Name: "early"}})
	got = gather(t, registry(t, locks))
	for name, v := range got {
		if strings.HasPrefix(name, "etcdlock_held") && name != "etcdlock_held{mode=exclusive,name=b}" {
			require.Zero(t, v, name)
		}
	}
	require.EqualValues(t, 1, got["etcdlock_held{mode=exclusive,name=b}"])

	locks = promlock.New(promlock.WithName(nil), promlock.WithName(func(lock string) string { class, _, _ := strings.Cut(lock, "/"); return class }))
	for i := range 2000 {
		locks.Hooks().Granted(t.Context(), etcdlock.GrantedInfo{Acquisition: etcdlock.Acquisition{Name: fmt.Sprint("orders/", i), Read: true}})
	}
	require.EqualValues(t, 2000, gather(t, registry(t, locks))["etcdlock_held{mode=shared,name=orders}"])
}

// Two acquisitions are two, though they have the same token: in sessions of two
// clusters, or in two queues that one transaction entered, here under one label.
func TestCollector_SameToken(t *testing.T) {
	locks := promlock.New(promlock.WithName(func(string) string { return "all" }))
	h := locks.Hooks()
	s1, s2 := new(etcdlock.Session), new(etcdlock.Session)
	for _, a := range []etcdlock.Acquisition{{Session: s1, Name: "a", Token: 7}, {Session: s2, Name: "a", Token: 7}, {Session: s1, Name: "b", Token: 7}} {
		h.Enqueued(t.Context(), etcdlock.EnqueuedInfo{Acquisition: a})
	}
	require.EqualValues(t, 3, gather(t, registry(t, locks))["etcdlock_waiting{mode=exclusive,name=all}"])
}

// A scrape that is slow delays no hook, and with it no lock.
func TestCollector_SlowScrape(t *testing.T) {
	locks := promlock.New()
	h, a := locks.Hooks(), etcdlock.Acquisition{Name: "a"}
	h.Enqueued(t.Context(), etcdlock.EnqueuedInfo{Acquisition: a})
	scrape := make(chan prometheus.Metric)
	go func() { locks.Collect(scrape); close(scrape) }()
	<-scrape // and Collect is about to send the next one
	told := make(chan struct{})
	go func() { h.Enqueued(t.Context(), etcdlock.EnqueuedInfo{Acquisition: a}); close(told) }()
	select {
	case <-told:
	case <-testCtx(t).Done():
		require.Fail(t, "the hook waits for the scrape")
	}
	for range scrape { // until Collect returns
	}
}

// Renewals that nobody answers count as failures long before the session is lost: an alert has to fire then.
func TestCollector_RenewalsHang(t *testing.T) {
	cluster := etcdtest.Start(t)
	p := cluster.Proxy(t)
	metrics := promlock.New()
	reg := registry(t, metrics)
	failures := func() float64 { return gather(t, reg)["etcdlock_session_renewal_failures_total"] }
	newSession(t, cluster.Client(t, p), etcdlock.WithHooks(metrics.Hooks()), etcdlock.WithTTL(12*time.Second))
	require.Zero(t, failures())
	p.Hold(etcdtest.Both)
	// None is counted after the end of the session.
	require.Eventually(t, func() bool { return failures() >= 3 }, hang, 10*time.Millisecond)
	p.Release(etcdtest.Both)
}
