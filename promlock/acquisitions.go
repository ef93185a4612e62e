package promlock

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/outcome"
)

// maxNames bounds the values of the label name; see the package's documentation.
const (
	maxNames = 100
	other    = "other"
)

// acquisitions are what waits, what is held and what was lost in this process, by
// label. Counts and ages come from the same sets, so they cannot disagree.
type acquisitions struct {
	name func(lock string) string

	waiting, held, oldestWait, oldestHold, lost *prometheus.Desc

	mu      sync.Mutex
	names   map[string]struct{} // values of the label name
	current map[labels]*sets
}

type labels struct{ name, mode string }

// sets hold the acquisitions of one pair of labels, each with the time at which it
// entered the queue or was granted, and count the losses by cause.
type sets struct {
	waiting, held map[id]time.Time
	lost          map[string]float64
}

// id identifies an acquisition. Its key would not: Downgrade changes it. Its token
// alone would not either: a session of another cluster may have the same.
type id struct {
	session *etcdlock.Session
	name    string
	token   int64
}

func newAcquisitions(name func(lock string) string) *acquisitions {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"name", "mode"}, labels...), nil)
	}
	return &acquisitions{
		name:       name,
		names:      make(map[string]struct{}),
		current:    make(map[labels]*sets),
		waiting:    desc("etcdlock_waiting", "Entries of this process that wait in the queue of a lock."),
		held:       desc("etcdlock_held", "Locks that this process holds."),
		oldestWait: desc("etcdlock_oldest_wait_seconds", "How long the oldest waiting entry of this process has been in the queue."),
		oldestHold: desc("etcdlock_oldest_hold_seconds", "How long the oldest lock of this process has been held."),
		lost:       desc("etcdlock_lost_total", "Locks that were lost while they were held, by cause.", "cause"),
	}
}

// Describe implements prometheus.Collector.
func (a *acquisitions) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.waiting, a.held, a.oldestWait, a.oldestHold, a.lost} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It sends only after it has let go of
// a.mu: a slow scrape must not delay a hook, and all hooks behind it.
func (a *acquisitions) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	var metrics []prometheus.Metric
	a.mu.Lock()
	for l, s := range a.current {
		for d, v := range map[*prometheus.Desc]float64{
			a.waiting: float64(len(s.waiting)), a.oldestWait: oldest(s.waiting, now),
			a.held: float64(len(s.held)), a.oldestHold: oldest(s.held, now),
		} {
			metrics = append(metrics, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l.name, l.mode))
		}
		for cause, n := range s.lost {
			metrics = append(metrics, prometheus.MustNewConstMetric(a.lost, prometheus.CounterValue, n, l.name, l.mode, cause))
		}
	}
	a.mu.Unlock()
	for _, m := range metrics {
		ch <- m
	}
}

// oldest is the age of the oldest member of a set, in seconds, and 0 if it is empty.
func oldest(set map[id]time.Time, now time.Time) (age float64) {
	for _, since := range set {
		age = max(age, now.Sub(since).Seconds())
	}
	return age
}

func (a *acquisitions) enqueued(q etcdlock.Acquisition) labels {
	return a.update(q, func(s *sets, i id) { s.waiting[i] = q.Enqueued })
}

func (a *acquisitions) granted(q etcdlock.Acquisition) labels {
	return a.update(q, func(s *sets, i id) {
		delete(s.waiting, i)
		s.held[i] = q.Granted
	})
}

// over is called for each acquisition that ends, also for one that never was in a
// queue.
func (a *acquisitions) over(q etcdlock.Acquisition) labels {
	return a.update(q, func(s *sets, i id) {
		delete(s.waiting, i)
		delete(s.held, i)
	})
}

func (a *acquisitions) lostTo(q etcdlock.Acquisition, cause string) labels {
	return a.update(q, func(s *sets, i id) {
		delete(s.held, i)
		s.lost[cause]++
	})
}

// update changes the sets that an acquisition belongs to, and returns their labels.
func (a *acquisitions) update(q etcdlock.Acquisition, change func(*sets, id)) labels {
	l := labels{strings.ToValidUTF8(a.name(q.Name), "\uFFFD"), outcome.Mode(q)} // WithName's function is called without a.mu
	a.mu.Lock()
	defer a.mu.Unlock()
	// A name keeps the label that it got first, so that an acquisition is removed
	// from the set that it was added to.
	if _, known := a.names[l.name]; !known {
		if len(a.names) >= maxNames {
			l.name = other
		} else {
			a.names[l.name] = struct{}{}
		}
	}
	s := a.current[l]
	if s == nil {
		s = &sets{
			waiting: make(map[id]time.Time),
			held:    make(map[id]time.Time),
			// Each cause has a series from the start: Prometheus does not see the
			// increase of a counter that first appears with the value 1.
			lost: map[string]float64{outcome.SessionExpired: 0, outcome.SessionClosed: 0, outcome.Removed: 0},
		}
		a.current[l] = s
	}
	change(s, id{q.Session, q.Name, q.Token})
	return l
}
