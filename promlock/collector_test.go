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

// hang is a generous bound on what must not hang.
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

// gather are all series by name and labels, as in the text format: the value, or the
// count of a histogram.
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

// Every event of real locks shows in the metrics, once.
func TestCollector(t *testing.T) {
	cluster := etcdtest.Start(t)
	client, err := cluster.NewClient()
	require.NoError(t, err)
	defer client.Close()
	locks := promlock.New()
	reg := registry(t, locks)
	s := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Minute))
	got := gather(t, reg)
	left := got["etcdlock_session_ttl_left_seconds"]
	require.Greater(t, left, 0.0)
	require.LessOrEqual(t, left, 60.0)
	require.EqualValues(t, 1, got["etcdlock_sessions"])

	// One is held, one waits, and one each: released, found locked, out of time, cancelled.
	m, rw := etcdlock.NewMutex(s, "a"), etcdlock.NewRWMutex(s, "rw")
	require.NoError(t, mustLock(t, m.Lock).Unlock(testCtx(t)))
	h := mustLock(t, m.Lock)
	waiting, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	_, err = m.TryLock(testCtx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	ctx, cancel := context.WithTimeout(testCtx(t), 20*time.Millisecond)
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
	got = gather(t, reg)
	delete(got, "etcdlock_session_ttl_left_seconds")
	require.Equal(t, map[string]float64{
		"etcdlock_sessions":                                              1,
		"etcdlock_session_renewal_seconds":                               1,
		"etcdlock_session_renewal_failures_total":                        0,
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

	// All is lost, also what nobody looks at.
	_, err = client.Delete(testCtx(t), r2.Key())
	require.NoError(t, err)
	require.ErrorIs(t, r2.Unlock(testCtx(t)), etcdlock.ErrLost)
	require.NoError(t, client.Close())
	_, err = waiting.Wait(testCtx(t))
	require.ErrorIs(t, err, etcdlock.ErrSessionExpired)
	require.Error(t, s.Close(), "its lease is left to expire")
	require.Error(t, h.Unlock(testCtx(t)))
	got = gather(t, reg)
	for name, want := range map[string]float64{
		"etcdlock_sessions": 0,
		"etcdlock_sessions_ended_total{cause=session_expired}":                 1,
		"etcdlock_held{mode=exclusive,name=a}":                                 0,
		"etcdlock_held{mode=exclusive,name=w}":                                 0,
		"etcdlock_held{mode=shared,name=rw}":                                   0,
		"etcdlock_waiting{mode=exclusive,name=a}":                              0,
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
	requireLint(t, reg)
}

// The least of several sessions counts.
func TestCollector_TTLLeft(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	locks := promlock.New()
	reg := registry(t, locks)
	long := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Hour))
	short := newSession(t, client, etcdlock.WithHooks(locks.Hooks()), etcdlock.WithTTL(time.Minute))
	got := gather(t, reg)
	require.EqualValues(t, 2, got["etcdlock_sessions"])
	require.LessOrEqual(t, got["etcdlock_session_ttl_left_seconds"], 60.0)
	require.NoError(t, short.Close())
	got = gather(t, reg)
	require.EqualValues(t, 1, got["etcdlock_sessions"])
	require.Greater(t, got["etcdlock_session_ttl_left_seconds"], 60.0)
	require.NoError(t, long.Close())
	require.EqualValues(t, 2, gather(t, reg)["etcdlock_sessions_ended_total{cause=session_closed}"])
}

// The histograms are native, and have buckets only where they are asked for.
func TestCollector_NativeHistograms(t *testing.T) {
	play := func(c *promlock.Collector) {
		h, a := c.Hooks(), etcdlock.Acquisition{Name: "a"}
		h.Granted(t.Context(), etcdlock.GrantedInfo{Acquisition: a, Wait: time.Second})
		h.Released(t.Context(), etcdlock.ReleasedInfo{Acquisition: a, Held: 2 * time.Second})
		h.Renewed(etcdlock.RenewedInfo{RoundTrip: 3 * time.Second})
		h.Renewed(etcdlock.RenewedInfo{RoundTrip: 10 * time.Second, Err: errors.New("away")})
	}
	for _, buckets := range [][]float64{nil, {1, 2, 5}} {
		var opts []promlock.Option
		if buckets != nil {
			opts = append(opts, promlock.WithBuckets(buckets))
		}
		c := promlock.New(opts...)
		play(c)
		reg := registry(t, c)
		require.EqualValues(t, 1, gather(t, reg)["etcdlock_session_renewal_failures_total"])
		families, err := reg.Gather()
		require.NoError(t, err)
		sums := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if h := m.GetHistogram(); h != nil {
					require.NotNil(t, h.Schema, "%s is not native", f.GetName())
					require.Len(t, h.GetBucket(), len(buckets), f.GetName())
					sums[f.GetName()] = h.GetSampleSum()
				}
			}
		}
		require.Equal(t, map[string]float64{"etcdlock_wait_seconds": 1, "etcdlock_hold_seconds": 2, "etcdlock_session_renewal_seconds": 3}, sums)
		requireLint(t, reg)
	}
}

// Names without number make no series without number, and every gauge comes down
// where it went up.
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
	require.Equal(t, 501, held)
	require.EqualValues(t, 1502, got["etcdlock_held{mode=exclusive,name=other}"])
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

// Queues shows what is in etcd, whoever put it there, and nothing where etcd does
// not answer.
func TestQueues(t *testing.T) {
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := newSession(t, client)
	_, err := client.Put(testCtx(t), "a/1234", "", clientv3.WithLease(s.Lease())) // by etcdctl lock, say
	require.NoError(t, err)
	_, err = etcdlock.NewMutex(s, "a").Enqueue(testCtx(t))
	require.NoError(t, err)
	for range 2 {
		mustLock(t, etcdlock.NewRWMutex(s, "r").RLock)
	}
	reg := registry(t, promlock.NewQueues(client, "a", "r", "free", "a"))
	require.Equal(t, map[string]float64{
		"etcdlock_queue_length{name=a,state=holding}": 1, "etcdlock_queue_length{name=a,state=waiting}": 1,
		"etcdlock_queue_length{name=r,state=holding}": 2, "etcdlock_queue_length{name=r,state=waiting}": 0,
		"etcdlock_queue_length{name=free,state=holding}": 0, "etcdlock_queue_length{name=free,state=waiting}": 0,
	}, gather(t, reg))
	requireLint(t, reg)
}

func TestQueues_EtcdAway(t *testing.T) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	locks := promlock.New()
	reg := registry(t, promlock.NewQueues(cluster.Client(t, proxy), "a"), locks)
	require.Contains(t, gather(t, reg), "etcdlock_queue_length{name=a,state=holding}")
	proxy.Blackhole(etcdtest.Both)
	start := time.Now()
	got := gather(t, reg)
	require.Less(t, time.Since(start), hang)
	require.NotContains(t, got, "etcdlock_queue_length{name=a,state=holding}")
	require.Contains(t, got, "etcdlock_sessions", "the rest is scraped")
}
