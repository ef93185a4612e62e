package promlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// Queues collects the lengths of some locks' queues as etcd has them, whoever made
// the entries:
//
//	etcdlock_queue_length{name,state}    entries in the queue; state is "holding" or "waiting"
//
// Each scrape asks etcd, with a watch and a read for each name, as etcdlock.Watch
// does for its first state, and takes two seconds at the most. The queue of
// a name that etcd has not answered for by then is missing from that scrape; nothing
// is made up. Each process that has Queues registered asks, so one is enough.
type Queues struct {
	client *clientv3.Client
	names  []string
	length *prometheus.Desc
}

// queuesTimeout is well below Prometheus's own, of 10 s by default.
const queuesTimeout = 2 * time.Second

// NewQueues makes Queues of the locks of these names, to be registered. It makes no
// request. The client needs read rights on each name + "/".
func NewQueues(client *clientv3.Client, names ...string) *Queues {
	return &Queues{client, slices.Compact(slices.Sorted(slices.Values(names))), prometheus.NewDesc("etcdlock_queue_length",
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
			for queue, err := range etcdlock.New(q.client).Watch(ctx, name) {
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
