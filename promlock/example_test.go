package promlock_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/promlock"
)

func Example() {
	dir, err := os.MkdirTemp("", "promlock-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cluster, err := etcdtest.New(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	client, err := cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
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
	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for lines := bufio.NewScanner(scrape.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, `etcdlock_lost_total{cause="removed"`) || strings.HasPrefix(line, "etcdlock_hold_seconds_count{") {
			fmt.Println(line)
		}
	}
	// Output:
	// etcdlock: unlock "jobs/report": lock lost
	// etcdlock_hold_seconds_count{mode="exclusive",name="jobs/report"} 1
	// etcdlock_lost_total{cause="removed",mode="exclusive",name="jobs/report"} 1
}
