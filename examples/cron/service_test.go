package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

const (
	hang = 30 * time.Second
	tick = 20 * time.Millisecond
)

// A replica that has not reached etcd is alive and not ready. It becomes ready, shows
// its metrics, gets unready when its session is lost, and leaves nothing behind.
func TestServe(t *testing.T) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	proxy.Refuse()
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	t.Setenv("ETCDCTL_ENDPOINTS", proxy.Endpoints()[0])
	t.Setenv("LISTEN", addrs[0])
	t.Setenv("POD_NAME", "cron-0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()

	get := func(path string) (status int, body string) {
		resp, err := http.Get("http://" + addrs[0] + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b)
	}
	becomes := func(path string, want int) {
		t.Helper()
		require.Eventually(t, func() bool { status, _ := get(path); return status == want }, hang, tick, path)
	}
	becomes("/healthz", http.StatusOK)
	status, says := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, says, "not ready")

	proxy.Heal()
	becomes("/readyz", http.StatusOK)
	require.Eventually(t, func() bool {
		_, metrics := get("/metrics")
		return strings.Contains(metrics, `etcdlock_held{mode="elector",name="cron/nightly"} 1`)
	}, hang, tick)

	proxy.Blackhole(etcdtest.Both)
	becomes("/readyz", http.StatusServiceUnavailable) // after the TTL
	status, _ = get("/healthz")
	require.Equal(t, http.StatusOK, status, "a restart would not help")

	proxy.Heal()
	becomes("/readyz", http.StatusOK)
	stop()
	require.NoError(t, <-ended)
	q, err := etcdlock.New(cluster.Client(t)).Inspect(context.WithoutCancel(ctx), "cron/nightly")
	require.NoError(t, err)
	require.Empty(t, q.Entries)
}

// A replica that cannot serve its health checks ends.
func TestServe_AddressTaken(t *testing.T) {
	t.Setenv("ETCDCTL_ENDPOINTS", etcdtest.Start(t).Endpoints()[0])
	t.Setenv("LISTEN", "127.0.0.1:-1")
	require.ErrorContains(t, serve(t.Context()), "invalid port")
}

// The demonstration ends when its ctx does, as Ctrl-C makes it.
func TestDemonstrate_Interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- demonstrate(ctx) }()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(hang):
		t.Fatal("it goes on")
	}
}
