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
)

func TestTLS(t *testing.T) {
	cluster, err := etcdtest.New("", etcdtest.WithConfig(func(c *embed.Config) { c.ClientAutoTLS = true }))
	require.NoError(t, err)
	defer cluster.Close()
	require.True(t, strings.HasPrefix(cluster.Endpoints()[0], "https://"))
	client := cluster.Client(t, cluster.Proxy(t), etcdtest.WithClientConfig(func(c *clientv3.Config) {
		c.TLS = &tls.Config{InsecureSkipVerify: true}
	}))
	_, err = client.Put(short(t, patience), "a", "1")
	require.NoError(t, err)
	watching(t, client)
	began := time.Now()
	cluster.Close()
	assert.Less(t, time.Since(began), 4*time.Second, "an open watch must not hold it up")
}
