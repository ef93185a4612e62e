package promlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
)

// Queues collects the lengths of some locks' queues from etcd, whoever made the
// entries:
//
//	etcdlock_queue_length{name,state}    entries in the queue; state is "holding" or "waiting"
//
// Each scrape asks etcd, with one watch and one read for each name, and takes two
// seconds at most. A queue for which etcd has not answered by then is missing from
// that scrape. Each process that registers Queues asks, so register it in one.
type Queues struct {
	locks  *etcdlock.Client
	names  []string
	length *prometheus.Desc
}

// queuesTimeout is well below the time that Prometheus waits for a scrape, 10 s by
// default.
const queuesTimeout = 2 * time.Second

// NewQueues makes Queues for the locks of these names. It makes no request, and its
// scrapes need no session. The client needs read rights on each name + "/".
func NewQueues(locks *etcdlock.Client, names ...string) *Queues {
	return &Queues{locks, slices.Compact(slices.Sorted(slices.Values(names))), prometheus.NewDesc("etcdlock_queue_length",
		"Entries in the queue of a lock in etcd.", []string{"name", "state"}, nil)}
}

// Describe implements prometheus.Collector.
func (q *Queues) Describe(ch chan<- *prometheus.Desc) { ch <- q.length }

// Collect implements prometheus.Collector. It asks etcd.
func (q *Queues) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), queuesTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, name := range q.names {
		wg.Go(func() {
			for queue, err := range q.locks.Watch(ctx, name) {
				if err == nil {
					ch <- prometheus.MustNewConstMetric(q.length, prometheus.GaugeValue, float64(len(queue.Holders())), name, "holding")
					ch <- prometheus.MustNewConstMetric(q.length, prometheus.GaugeValue, float64(len(queue.Waiters())), name, "waiting")
				}
				return // the first state is the present one
			}
		})
	}
	wg.Wait()
}
