// Package promlock counts what becomes of etcdlock's locks, for Prometheus.
//
//	locks := promlock.New()
//	prometheus.MustRegister(locks)
//	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithHooks(locks.Hooks()))
//
// One [Collector] serves all sessions of a process. Its metrics are:
//
//	etcdlock_wait_seconds{name,mode,outcome}      histogram: how long calls waited, by how it ended
//	etcdlock_hold_seconds{name,mode}              histogram: how long locks were held
//	etcdlock_lost_total{name,mode,cause}          locks that were lost
//	etcdlock_waiting{name,mode}                   entries of this process that wait in a queue now
//	etcdlock_held{name,mode}                      locks that this process holds now
//	etcdlock_sessions                             sessions that live
//	etcdlock_session_ttl_left_seconds             time to the deadline of the session that has the least
//	etcdlock_sessions_ended_total{cause}          sessions that ended
//	etcdlock_session_renewal_seconds              histogram: round trips of renewals
//	etcdlock_session_renewal_failures_total       attempts to renew that failed
//
// mode is "exclusive" or "shared". outcome is "granted"; "locked" for a Try;
// "timeout" or "cancelled" for a ctx or Ticket; "session_expired",
// "session_closed" or "removed" (by somebody else) for an entry that was taken
// away; "error" for etcd's refusal. cause is one of the three for entries that
// were taken away.
//
// What to look at: etcdlock_session_ttl_left_seconds falls below half of the TTL
// only if renewals fail, and at zero all is lost. Any increase of
// etcdlock_lost_total with another cause than "session_closed" is a section that
// may have run beside another one.
//
// # The length of a queue
//
// etcdlock_waiting is what this process knows, for nothing, also while etcd is
// away: summed over the processes it is the queue that they make. Where that sum
// is above zero and that of etcdlock_held is zero, somebody holds the lock who is
// not scraped: a process that died less than a TTL ago, or another kind of
// client. [Queues] asks etcd for the whole queue, whoever is in it.
//
// # What labels cost
//
// Each name makes up to ten series or so and some kilobytes, for as long as the
// process lives, so the first 500 names get a label of their own and all later ones
// share name="other". Services that lock by names without number, such as one for
// each order, use [WithName] to say what those have in common.
//
// # Histograms
//
// The histograms are native ones: no buckets to choose, and quantiles with an
// error of about 5 %. Prometheus must be told to scrape them (scrape_native_histograms,
// or the feature flag of its 2nd version); one that is not gets counts
// and sums only, so there is [WithBuckets].
package promlock

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/outcome"
)

// A Collector collects the metrics of all sessions that its hooks are given to.
// It is safe for concurrent use, makes no requests and starts no goroutines.
type Collector struct {
	name func(lock string) string

	wait, hold            *prometheus.HistogramVec
	renewal               prometheus.Histogram
	lost, ended           *prometheus.CounterVec
	renewalFailures       prometheus.Counter
	waiting, held         *prometheus.GaugeVec
	sessionCount, ttlLeft *prometheus.Desc
	collectors            []prometheus.Collector // all of the above that are

	mu       sync.Mutex
	names    map[string]struct{} // values of the label
	sessions map[*etcdlock.Session]struct{}
}

// maxNames is how many values the label name gets; see the package's
// documentation.
const (
	maxNames = 500
	other    = "other"
)

// An Option changes what New makes.
type Option interface{ apply(*config) }

type config struct {
	name    func(lock string) string
	buckets []float64
}

type option func(*config)

func (f option) apply(c *config) { f(c) }

// WithName sets what the label name says of a lock; the default is the lock's
// name. For locks by names without number, let f return what they have in common;
// where it returns "" there is no such label. f is called for each acquisition,
// several times, and must always say the same of one lock. A nil f changes nothing.
func WithName(f func(lock string) string) Option {
	return option(func(c *config) {
		if f != nil {
			c.name = f
		}
	})
}

// WithBuckets gives the histograms buckets too, with these upper bounds in
// seconds, such as prometheus.DefBuckets: for a Prometheus that does not scrape
// native histograms. Each is one more series for each name.
func WithBuckets(buckets []float64) Option {
	return option(func(c *config) { c.buckets = buckets })
}

// New makes a Collector, to be registered once and to give its Hooks to sessions.
func New(opts ...Option) *Collector {
	cfg := config{name: func(lock string) string { return lock }}
	for _, o := range opts {
		o.apply(&cfg)
	}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: cfg.buckets,
			// At most 10 % from one bucket to the next. Beyond 160 buckets it gets
			// coarser, at most once an hour.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"name", "mode"})
	}
	c := &Collector{
		name:     cfg.name,
		names:    make(map[string]struct{}),
		sessions: make(map[*etcdlock.Session]struct{}),

		wait: prometheus.NewHistogramVec(histogram("etcdlock_wait_seconds",
			"How long calls that asked for a lock waited, by how that ended."), []string{"name", "mode", "outcome"}),
		hold: prometheus.NewHistogramVec(histogram("etcdlock_hold_seconds",
			"How long locks were held, until they were unlocked or lost."), []string{"name", "mode"}),
		lost:    counter("etcdlock_lost_total", "Locks that were lost, by cause.", "name", "mode", "cause"),
		waiting: gauge("etcdlock_waiting", "Entries of this process that wait in the queue of a lock."),
		held:    gauge("etcdlock_held", "Locks that this process holds."),
		ended:   counter("etcdlock_sessions_ended_total", "Sessions that ended, by cause.", "cause"),
		renewal: prometheus.NewHistogram(histogram("etcdlock_session_renewal_seconds",
			"Round trips of the renewals of leases.")),
		renewalFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "etcdlock_session_renewal_failures_total",
			Help: "Attempts to renew a lease that failed."}),
		sessionCount: prometheus.NewDesc("etcdlock_sessions", "Sessions that live.", nil, nil),
		ttlLeft: prometheus.NewDesc("etcdlock_session_ttl_left_seconds",
			"Time to the deadline of the session that has the least: until then its locks can be vouched for.", nil, nil),
	}
	c.collectors = []prometheus.Collector{c.wait, c.hold, c.lost, c.waiting, c.held, c.ended, c.renewal, c.renewalFailures}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.collectors {
		m.Describe(ch)
	}
	ch <- c.sessionCount
	ch <- c.ttlLeft
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.collectors {
		m.Collect(ch)
	}
	var first time.Time
	c.mu.Lock()
	count := len(c.sessions)
	for s := range c.sessions {
		if d := s.Deadline(); first.IsZero() || d.Before(first) {
			first = d
		}
	}
	c.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(c.sessionCount, prometheus.GaugeValue, float64(count))
	if count > 0 {
		ch <- prometheus.MustNewConstMetric(c.ttlLeft, prometheus.GaugeValue, max(0, time.Until(first).Seconds()))
	}
}

// Hooks are for etcdlock.WithHooks, of any number of sessions.
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
			c.waiting.WithLabelValues(c.labels(i.Acquisition)...).Inc()
		},
		Granted: func(_ context.Context, i etcdlock.GrantedInfo) {
			labels := c.labels(i.Acquisition)
			c.waiting.WithLabelValues(labels...).Dec()
			c.held.WithLabelValues(labels...).Inc()
			c.wait.WithLabelValues(append(labels, outcome.Granted)...).Observe(i.Wait.Seconds())
		},
		Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
			labels := c.labels(i.Acquisition)
			if !i.Enqueued.IsZero() {
				c.waiting.WithLabelValues(labels...).Dec()
			}
			c.wait.WithLabelValues(append(labels, outcome.Of(i.Err))...).Observe(i.Wait.Seconds())
		},
		Released: func(_ context.Context, i etcdlock.ReleasedInfo) { c.over(i.Acquisition, i.Held) },
		Lost: func(_ context.Context, i etcdlock.LostInfo) {
			c.over(i.Acquisition, i.Held)
			c.lost.WithLabelValues(append(c.labels(i.Acquisition), outcome.Of(i.Cause))...).Inc()
		},
	}
}

func (c *Collector) over(a etcdlock.Acquisition, held time.Duration) {
	labels := c.labels(a)
	c.held.WithLabelValues(labels...).Dec()
	c.hold.WithLabelValues(labels...).Observe(held.Seconds())
}

// labels are the values of name and mode. What they are once they stay, so that
// the gauges come down where they went up.
func (c *Collector) labels(a etcdlock.Acquisition) []string {
	name := c.name(a.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.names[name]; !known {
		if len(c.names) >= maxNames {
			name = other
		} else {
			c.names[name] = struct{}{}
		}
	}
	return []string{name, outcome.Mode(a)}
}
