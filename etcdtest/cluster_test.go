package etcdtest_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// The leak check ignores the peer connections of clusters with several members; see
// the package documentation.
func TestMain(m *testing.M) {
	net.DefaultResolver = resolver
	if err := harness.Parallel(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := leaks.FindBesidePeers(patience); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestStart(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		t.Run(map[int]string{1: "one member", 3: "three members"}[members], func(t *testing.T) {
			began := time.Now()
			cluster := etcdtest.Start(t, etcdtest.WithMembers(members))
			t.Logf("started in %v", time.Since(began))
			require.Len(t, cluster.Endpoints(), members)

			client := cluster.Client(t)
			assert.Equal(t, cluster.Endpoints(), client.Endpoints())
			_, err := client.Put(t.Context(), "a", "1")
			require.NoError(t, err)
			t.Logf("first put after %v", time.Since(began))

			for _, ep := range cluster.Endpoints() {
				one := cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) {
					c.Endpoints = []string{ep}
				}))
				resp, err := one.Get(t.Context(), "a")
				require.NoError(t, err)
				require.Len(t, resp.Kvs, 1)
			}

			grant, err := client.Grant(t.Context(), 1)
			require.NoError(t, err)
			assert.EqualValues(t, 1, grant.TTL, "a TTL of 1 s must be granted as such")

			list, err := client.MemberList(t.Context())
			require.NoError(t, err)
			var urls []string
			for _, m := range list.Members {
				urls = append(urls, m.ClientURLs...)
			}
			assert.ElementsMatch(t, cluster.Endpoints(), urls, "Sync must find the members")
		})
	}
}

// While streams are open, etcd's own Close waits for seconds.
func TestCloseWithOpenWatch(t *testing.T) {
	cluster, err := etcdtest.New("")
	require.NoError(t, err)
	client := cluster.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	created := <-client.Watch(ctx, "a", clientv3.WithCreatedNotify())
	require.True(t, created.Created)

	took := harness.Stopwatch()
	cluster.Close()
	cluster.Close()
	assert.Less(t, took(), 4*time.Second)
	_, err = net.DialTimeout("tcp", mustHost(t, cluster.Endpoints()[0]), time.Second)
	assert.Error(t, err, "nothing may listen after Close")
}

func TestNewRemovesItsTemporaryDirectory(t *testing.T) {
	var dir string
	cluster, err := etcdtest.New("", etcdtest.WithConfig(func(c *embed.Config) { dir = c.Dir }))
	require.NoError(t, err)
	require.DirExists(t, dir)
	cluster.Close()
	assert.NoDirExists(t, dir)
}

func TestNewRefusesDataOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cluster, err := etcdtest.New(dir)
	require.NoError(t, err)
	defer cluster.Close()
	_, err = etcdtest.New(dir)
	require.ErrorIs(t, err, os.ErrExist)
	_, err = cluster.Client(t).Put(t.Context(), "a", "1")
	require.NoError(t, err, "the first cluster must not notice")
}

func TestNewRetriesTakenPorts(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer taken.Close()
		tries := 0
		etcdtest.Start(t, etcdtest.WithMembers(members), etcdtest.WithConfig(func(c *embed.Config) {
			if tries++; tries <= 2*members {
				u := url.URL{Scheme: "http", Host: taken.Addr().String()}
				c.ListenClientUrls = []url.URL{u}
			}
		}))
		assert.Equal(t, 3*members, tries)
	}
}

func TestNewReportsBadConfig(t *testing.T) {
	_, err := etcdtest.New("", etcdtest.WithConfig(func(c *embed.Config) { c.ElectionMs = 1 }))
	require.Error(t, err)
	_, err = etcdtest.New("", etcdtest.WithMembers(0))
	require.Error(t, err)
}

func TestFsyncOption(t *testing.T) {
	t.Parallel()
	var noFsync []bool
	record := etcdtest.WithConfig(func(c *embed.Config) { noFsync = append(noFsync, c.UnsafeNoFsync) })
	etcdtest.Start(t, record)
	etcdtest.Start(t, record, etcdtest.WithFsync())
	assert.Equal(t, []bool{true, false}, noFsync)
}

func mustHost(t *testing.T, endpoint string) string {
	t.Helper()
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	return u.Host
}
