package etcdtest_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// startTLS starts a cluster with a self-signed certificate. The option makes a client
// trust it.
func startTLS(t *testing.T) (*etcdtest.Cluster, etcdtest.ClientOption) {
	t.Helper()
	cluster, err := etcdtest.New("", etcdtest.WithConfig(func(c *embed.Config) { c.ClientAutoTLS = true }))
	require.NoError(t, err)
	return cluster, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.TLS = &tls.Config{InsecureSkipVerify: true} })
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cluster, trusting := startTLS(t)
	defer cluster.Close()
	require.True(t, strings.HasPrefix(cluster.Endpoints()[0], "https://"))
	client := cluster.Client(t, cluster.Proxy(t), trusting)
	_, err := client.Put(short(t, patience), "a", "1")
	require.NoError(t, err)
	watching(t, client)
	took := harness.Stopwatch()
	cluster.Close()
	assert.Less(t, took(), 4*time.Second, "an open watch must not hold it up")
}

// Over TLS, gRPC closes streams but not connections. A client may open its watch again on
// the same connection while the server waits for the other streams to end.
func TestTLS_WatchesThatComeAgain(t *testing.T) {
	t.Parallel()
	for range 5 { // the outcome depends on timing
		cluster, trusting := startTLS(t)
		for range 20 {
			watching(t, cluster.Client(t, trusting))
		}
		closed := make(chan struct{})
		go func() { cluster.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatal("Close must not wait for a watch that was opened again")
		}
	}
}
