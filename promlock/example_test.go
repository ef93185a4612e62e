package promlock_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

// exampleClient is a client of an etcd started for one example.
func exampleClient() (client *clientv3.Client, stop func()) {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	client, err = cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		client.Close()
		cluster.Close()
	}
}

// show prints what Prometheus scrapes, of the series that start so.
func show(registry *prometheus.Registry, series ...string) {
	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for lines := bufio.NewScanner(scrape.Body); lines.Scan(); {
		if slices.ContainsFunc(series, func(s string) bool { return strings.HasPrefix(lines.Text(), s) }) {
			fmt.Println(lines.Text())
		}
	}
}

func Example() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	locks := promlock.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(locks)

	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithHooks(locks.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	report := etcdlock.NewMutex(session, "jobs/report")
	h, err := report.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Delete(ctx, h.Key()); err != nil { // somebody breaks the lock
		log.Fatal(err)
	}
	fmt.Println(h.Unlock(ctx))
	if err := session.Close(); err != nil { // waits until the hooks were called
		log.Fatal(err)
	}

	// What Prometheus scrapes about the lock that was lost.
	show(registry, `etcdlock_lost_total{cause="removed"`, "etcdlock_hold_seconds_count{")
	// Output:
	// etcdlock: unlock "jobs/report": lock lost
	// etcdlock_hold_seconds_count{mode="exclusive",name="jobs/report"} 1
	// etcdlock_lost_total{cause="removed",mode="exclusive",name="jobs/report"} 1
}

// A lock for each order would make series without end.
func ExampleWithName() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	metrics := promlock.New(promlock.WithName(func(lock string) string {
		kind, _, _ := strings.Cut(lock, "/")
		return kind
	}))
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	locks := etcdlock.New(client, etcdlock.WithHooks(metrics.Hooks()))
	for _, order := range []string{"orders/a7", "orders/b9"} {
		if _, err := locks.Mutex(order).Lock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := locks.Close(); err != nil { // waits until the hooks were called
		log.Fatal(err)
	}
	show(registry, "etcdlock_hold_seconds_count")
	// Output: etcdlock_hold_seconds_count{mode="exclusive",name="orders"} 2
}

// The whole queue of some locks, whoever is in it. One process of a service registers this.
func ExampleQueues() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locks := etcdlock.New(client)
	defer locks.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(promlock.NewQueues(locks, "jobs/report"))

	report := locks.Mutex("jobs/report")
	if _, err := report.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := report.Enqueue(ctx); err != nil {
		log.Fatal(err)
	}
	show(registry, "etcdlock_queue_length")
	// Output:
	// etcdlock_queue_length{name="jobs/report",state="holding"} 1
	// etcdlock_queue_length{name="jobs/report",state="waiting"} 1
}
