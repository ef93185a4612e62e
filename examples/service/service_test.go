package main

import (
	"context"
	"io"
	"log/slog"
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

// replica is a service that runs until stop is called, which returns what run did.
func replica(t *testing.T, cluster *etcdtest.Cluster, name string, opts ...etcdtest.ClientOption) (s *service, url string, stop func() error) {
	t.Helper()
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	s = newService(cluster.Client(t, opts...), name, slog.New(slog.DiscardHandler), etcdlock.WithTTL(6*time.Second))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, addrs[0]) }()
	t.Cleanup(cancel)
	return s, "http://" + addrs[0], func() error { cancel(); return <-done }
}

func status(t *testing.T, method, url string) (code int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error() // it does not listen yet
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func requireStatus(t *testing.T, want int, method, url string) (text string) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		var code int
		code, text = status(t, method, url)
		return code == want
	}, hang, tick, "%s %s: no %d", method, url, want)
	return text
}

// A replica that is cut off from etcd says so and writes nothing. The other one leads and serves, and when the cut
// is healed, both do. When they end, nothing of them is left.
func TestService_Partition(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	first, url1, stop1 := replica(t, cluster, "first", proxy)
	require.Eventually(t, first.elector.IsLeader, hang, tick)
	second, url2, stop2 := replica(t, cluster, "second")
	for _, url := range []string{url1, url2} {
		requireStatus(t, http.StatusOK, "GET", url+"/readyz")
		requireStatus(t, http.StatusOK, "GET", url+"/healthz")
		requireStatus(t, http.StatusOK, "POST", url+"/accounts/ann/deposits?amount=10")
	}

	proxy.Blackhole(etcdtest.Both)
	code, text := status(t, "POST", url1+"/accounts/ann/deposits?amount=10")
	require.Equal(t, http.StatusServiceUnavailable, code, text)
	require.Contains(t, requireStatus(t, http.StatusServiceUnavailable, "GET", url1+"/readyz"), "the last session is lost")
	requireStatus(t, http.StatusOK, "GET", url1+"/healthz") // a restart would not help
	require.False(t, first.elector.IsLeader())
	require.Eventually(t, second.elector.IsLeader, hang, tick)
	require.Contains(t, requireStatus(t, http.StatusOK, "POST", url2+"/accounts/ann/deposits?amount=10"), `"balance":30`)

	proxy.Heal()
	requireStatus(t, http.StatusOK, "GET", url1+"/readyz")
	text = requireStatus(t, http.StatusOK, "POST", url1+"/accounts/ann/deposits?amount=10")
	require.Contains(t, text, `"balance":40`, "what failed was not made")
	text = requireStatus(t, http.StatusOK, "GET", url1+"/metrics")
	require.Contains(t, text, "accounts/*")
	require.NotContains(t, text, "accounts/ann")

	require.NoError(t, stop2())
	require.Eventually(t, first.elector.IsLeader, hang, tick)
	require.NoError(t, stop1())
	left, err := cluster.Client(t).Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Leases)
}

// Etcd is stopped for longer than the TTL, and started again. Meanwhile nobody writes and the replicas say that
// they are not ready; afterwards both serve, one leads, and nothing has to be restarted.
func TestService_EtcdStopped(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	first, url1, stop1 := replica(t, cluster, "first")
	second, url2, stop2 := replica(t, cluster, "second")
	urls := []string{url1, url2}
	for _, url := range urls {
		requireStatus(t, http.StatusOK, "GET", url+"/readyz")
		requireStatus(t, http.StatusOK, "POST", url+"/accounts/ann/deposits?amount=10")
	}
	leads := func() bool { return first.elector.IsLeader() != second.elector.IsLeader() }
	require.Eventually(t, leads, hang, tick)

	cluster.Member(0).Stop()
	for _, url := range urls {
		requireStatus(t, http.StatusServiceUnavailable, "GET", url+"/readyz")
		requireStatus(t, http.StatusOK, "GET", url+"/healthz")
		code, text := status(t, "POST", url+"/accounts/ann/deposits?amount=10")
		require.Equal(t, http.StatusServiceUnavailable, code, text)
	}
	require.False(t, first.elector.IsLeader() || second.elector.IsLeader())

	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	require.NoError(t, cluster.Member(0).Restart(ctx))
	for _, url := range urls {
		requireStatus(t, http.StatusOK, "GET", url+"/readyz")
		requireStatus(t, http.StatusOK, "POST", url+"/accounts/ann/deposits?amount=10")
	}
	require.Contains(t, requireStatus(t, http.StatusOK, "POST", url1+"/accounts/ann/deposits?amount=10"), `"balance":50`, "what failed was not made")
	require.Eventually(t, leads, hang, tick)
	require.NoError(t, stop1())
	require.NoError(t, stop2())
}

// besideAHolder is a replica that is ready, and the hold that somebody, who has other, has of ann's account.
func besideAHolder(t *testing.T) (url string, stop func() error, other *etcdlock.Client, h *etcdlock.Held) {
	t.Helper()
	cluster := etcdtest.Start(t)
	_, url, stop = replica(t, cluster, "first")
	other = etcdlock.New(cluster.Client(t), etcdlock.WithOwner("somebody"))
	h, err := other.Mutex("service/accounts/ann").Lock(t.Context())
	require.NoError(t, err)
	requireStatus(t, http.StatusOK, "GET", url+"/readyz")
	return url, stop, other, h
}

// A request that waits for its account when the service is asked to end gets its own answer, and the service ends well.
func TestService_RequestUnderWayAtTheEnd(t *testing.T) {
	t.Parallel()
	url, stop, other, h := besideAHolder(t)
	answer := make(chan string, 1)
	go func() {
		_, text := status(t, "POST", url+"/accounts/ann/deposits?amount=1")
		answer <- text
	}()
	require.Eventually(t, func() bool {
		q, err := other.Inspect(t.Context(), "service/accounts/ann")
		return err == nil && len(q.Entries) == 2
	}, hang, tick)
	require.NoError(t, stop())
	require.Contains(t, <-answer, "1 ahead, held by somebody")
	require.NoError(t, h.Unlock(t.Context()))
	require.NoError(t, other.Close())
}

// A request that waits for too long is told whom it waited for; a bad one, what is wrong with it.
func TestService_Errors(t *testing.T) {
	t.Parallel()
	url, stop, other, h := besideAHolder(t)
	require.Contains(t, requireStatus(t, http.StatusServiceUnavailable, "POST", url+"/accounts/ann/deposits?amount=1"), "1 ahead, held by somebody")
	require.NoError(t, h.Unlock(t.Context()))
	requireStatus(t, http.StatusBadRequest, "POST", url+"/accounts/ann/deposits?amount=x")
	text := requireStatus(t, http.StatusBadRequest, "POST", url+"/accounts/%0a/deposits?amount=1")
	require.True(t, strings.HasPrefix(text, "etcdlock: "), text)
	require.NoError(t, other.Close())
	require.NoError(t, stop())
}
