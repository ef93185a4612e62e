package promlock

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/outcome"
)

// A Collector collects the metrics of all sessions that get its Hooks. It is safe
// for concurrent use, makes no requests and starts no goroutines.
type Collector struct {
	acquisitions    *acquisitions
	wait, hold      *prometheus.HistogramVec
	renewal         prometheus.Histogram
	ended           *prometheus.CounterVec
	renewalFailures prometheus.Counter
	sessionCount    *prometheus.Desc
	ttl, ttlLeft    *prometheus.Desc
	collectors      []prometheus.Collector // those of the above that are collectors

	mu       sync.Mutex
	sessions map[*etcdlock.Session]struct{}
}

// New makes a Collector. Register it once, and give its Hooks to sessions.
func New(opts ...Option) *Collector {
	cfg := config{name: func(lock string) string { return lock }, buckets: defaultBuckets}
	for _, o := range opts {
		if o != nil {
			o.apply(&cfg)
		}
	}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: cfg.buckets,
			// Each native bucket is at most 10 % wider than the one before. A histogram
			// with more than 160 gets coarser, at most once an hour.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	c := &Collector{
		acquisitions: newAcquisitions(cfg.name),
		sessions:     make(map[*etcdlock.Session]struct{}),

		wait: prometheus.NewHistogramVec(histogram("etcdlock_wait_seconds",
			"How long calls that asked for a lock waited, by how the wait ended."), []string{"name", "mode", "outcome"}),
		hold: prometheus.NewHistogramVec(histogram("etcdlock_hold_seconds",
			"How long locks were held, until they were unlocked or lost."), []string{"name", "mode"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "etcdlock_sessions_ended_total",
			Help: "Sessions that ended, by cause."}, []string{"cause"}),
		renewal: prometheus.NewHistogram(histogram("etcdlock_session_renewal_seconds",
			"Round trips of lease renewals.")),
		renewalFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "etcdlock_session_renewal_failures_total",
			Help: "Attempts to renew a lease that failed or were not answered in time."}),
		sessionCount: prometheus.NewDesc("etcdlock_sessions", "Sessions that are alive.", nil, nil),
		ttlLeft: prometheus.NewDesc("etcdlock_session_ttl_left_seconds",
			"Time until the earliest deadline of the sessions: the locks are safe until then without hearing from etcd.", nil, nil),
		ttl: prometheus.NewDesc("etcdlock_session_ttl_seconds", "TTL of the session with the earliest deadline.", nil, nil),
	}
	c.collectors = []prometheus.Collector{c.acquisitions, c.wait, c.hold, c.ended, c.renewal, c.renewalFailures}
	for _, cause := range []string{outcome.SessionExpired, outcome.SessionClosed} {
		c.ended.WithLabelValues(cause) // a series from the start, as for lost locks
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.collectors {
		m.Describe(ch)
	}
	ch <- c.sessionCount
	ch <- c.ttlLeft
	ch <- c.ttl
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.collectors {
		m.Collect(ch)
	}
	var first time.Time // deadline
	var ttl time.Duration
	c.mu.Lock()
	count := len(c.sessions)
	for s := range c.sessions {
		if d := s.Deadline(); first.IsZero() || d.Before(first) {
			first, ttl = d, s.TTL()
		}
	}
	c.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(c.sessionCount, prometheus.GaugeValue, float64(count))
	if count > 0 {
		ch <- prometheus.MustNewConstMetric(c.ttlLeft, prometheus.GaugeValue, max(0, time.Until(first).Seconds()))
		ch <- prometheus.MustNewConstMetric(c.ttl, prometheus.GaugeValue, ttl.Seconds())
	}
}

// Hooks returns the hooks to pass to etcdlock.WithHooks. Any number of sessions
// may share them.
func (c *Collector) Hooks() *etcdlock.Hooks {
	return &etcdlock.Hooks{
		SessionUp: func(i etcdlock.SessionUpInfo) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.sessions[i.Session] = struct{}{}
		},
		Renewed: func(i etcdlock.RenewedInfo) {
			if i.Err != nil {
				c.renewalFailures.Inc()
				return
			}
			c.renewal.Observe(i.RoundTrip.Seconds())
		},
		SessionEnded: func(i etcdlock.SessionEndedInfo) {
			c.ended.WithLabelValues(outcome.Of(i.Cause)).Inc()
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.sessions, i.Session)
		},
		Enqueued: func(_ context.Context, i etcdlock.EnqueuedInfo) {
			l := c.acquisitions.enqueued(i.Acquisition)
			if i.Acquisition.Elector {
				// A series from the start, as for lost locks: an Elector that etcd refuses for its rights does not ask again.
				c.wait.WithLabelValues(l.name, l.mode, outcome.Error)
			}
		},
		Granted: func(_ context.Context, i etcdlock.GrantedInfo) {
			c.observeWait(c.acquisitions.granted(i.Acquisition), outcome.Granted, i.Wait)
		},
		Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
			c.observeWait(c.acquisitions.over(i.Acquisition), outcome.Of(i.Err), i.Wait)
		},
		NoSession: func(_ context.Context, i etcdlock.NoSessionInfo) {
			c.observeWait(c.acquisitions.over(i.Acquisition), outcome.Of(i.Err), i.Wait)
		},
		Released: func(_ context.Context, i etcdlock.ReleasedInfo) {
			c.observeHold(c.acquisitions.over(i.Acquisition), i.Held)
		},
		Lost: func(_ context.Context, i etcdlock.LostInfo) {
			c.observeHold(c.acquisitions.lostTo(i.Acquisition, outcome.Of(i.Cause)), i.Held)
		},
	}
}

func (c *Collector) observeWait(l labels, outcome string, waited time.Duration) {
	c.wait.WithLabelValues(l.name, l.mode, outcome).Observe(waited.Seconds())
}

func (c *Collector) observeHold(l labels, held time.Duration) {
	c.hold.WithLabelValues(l.name, l.mode).Observe(held.Seconds())
}
