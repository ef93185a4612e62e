package etcdtest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// proxied starts a cluster, a proxy, a client that is already connected through the
// proxy, and a client that is connected directly.
func proxied(t *testing.T) (p *etcdtest.Proxy, client, direct *clientv3.Client) {
	t.Helper()
	cluster := etcdtest.Start(t)
	p = cluster.Proxy(t)
	client, direct = cluster.Client(t, p), cluster.Client(t)
	_, err := client.Put(short(t, patience), "a", "0")
	require.NoError(t, err)
	require.Equal(t, 1, p.Connections())
	return p, client, direct
}

func value(t *testing.T, c *clientv3.Client) string {
	t.Helper()
	resp, err := c.Get(short(t, patience), "a")
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	return string(resp.Kvs[0].Value)
}

// long is a value that makes a request longer than anything that gRPC sends by itself,
// such as the ping with which it measures the connection.
var long = strings.Repeat("1", 4<<10)

// awaitHeld waits until p holds a request that writes the value long.
func awaitHeld(t *testing.T, p *etcdtest.Proxy) {
	t.Helper()
	eventually(t, func() bool { return p.Pending(etcdtest.ToServer) >= len(long) }, "the request must be held")
}

func TestProxyHoldsRequest(t *testing.T) {
	t.Parallel()
	p, client, direct := proxied(t)
	p.Hold(etcdtest.ToServer)
	put := result(func() error { _, err := client.Put(t.Context(), "a", long); return err })
	awaitHeld(t, p)
	assert.Equal(t, "0", value(t, direct))
	p.Release(etcdtest.ToClient) // the other direction
	assert.NotZero(t, p.Pending(etcdtest.Both))
	p.Release(etcdtest.ToServer)
	require.NoError(t, await(t, put))
	assert.Equal(t, long, value(t, direct))
	assert.Equal(t, 1, p.Connections(), "it must still be the same connection")
}

func TestProxyHoldsReply(t *testing.T) {
	t.Parallel()
	p, client, direct := proxied(t)
	p.Hold(etcdtest.ToClient)
	put := result(func() error { _, err := client.Put(t.Context(), "a", "1"); return err })
	eventually(t, func() bool { return value(t, direct) == "1" }, "the request must arrive")
	eventually(t, func() bool { return p.Pending(etcdtest.ToClient) > 0 }, "the reply must be held")
	assert.Empty(t, put)
	p.Heal()
	require.NoError(t, await(t, put))
}

func TestProxyBlackhole(t *testing.T) {
	t.Parallel()
	p, client, direct := proxied(t)
	p.Blackhole(etcdtest.Both)
	_, err := client.Put(short(t, 200*time.Millisecond), "a", "1")
	require.Error(t, err)
	assert.Equal(t, "0", value(t, direct), "a discarded request must not arrive")
	assert.Equal(t, 1, p.Connections(), "the connection must stay open")
	p.Heal()
	eventually(t, func() bool { // a Put that meets the reset fails
		_, err := client.Put(short(t, patience), "a", "2")
		return err == nil
	}, "the client must connect again")
	assert.Equal(t, "2", value(t, direct))
}

// Bytes that were held and then discarded are lost, even if Heal follows at once.
func TestProxyDiscardsWhatItHeld(t *testing.T) {
	t.Parallel()
	p, client, direct := proxied(t)
	p.Hold(etcdtest.ToServer)
	put := result(func() error { _, err := client.Put(t.Context(), "a", long); return err })
	awaitHeld(t, p)
	p.Blackhole(etcdtest.ToServer)
	assert.Zero(t, p.Pending(etcdtest.ToServer))
	p.Heal()
	require.Error(t, await(t, put), "its connection must be reset")
	assert.Equal(t, "0", value(t, direct))
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	p, client, _ := proxied(t)
	const delay = 150 * time.Millisecond
	p.Delay(etcdtest.ToServer, delay)
	began := time.Now()
	assert.Equal(t, "0", value(t, client))
	assert.GreaterOrEqual(t, time.Since(began), delay)
	p.Delay(etcdtest.Both, delay)
	began = time.Now()
	assert.Equal(t, "0", value(t, client))
	assert.GreaterOrEqual(t, time.Since(began), 2*delay)
	p.Delay(etcdtest.Both, 0)
	assert.Equal(t, "0", value(t, client))
}

func TestProxyReset(t *testing.T) {
	t.Parallel()
	p, client, _ := proxied(t)
	conn, err := net.Dial("tcp", mustHost(t, p.Endpoints()[0]))
	require.NoError(t, err)
	defer conn.Close()
	eventually(t, func() bool { return p.Connections() == 2 }, "the second client must connect")
	p.Refuse() // or the client has connected again before the connections are counted
	p.Reset()
	assert.Zero(t, p.Connections())
	p.Accept()
	_, err = io.ReadAll(conn)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, "0", value(t, client), "the client must connect again")
}

func TestProxyRefuse(t *testing.T) {
	t.Parallel()
	p, client, _ := proxied(t)
	p.Refuse()
	assert.Equal(t, "0", value(t, client), "the existing connection must go on")
	p.Reset()
	_, err := client.Get(short(t, 200*time.Millisecond), "a")
	require.Error(t, err)
	requireReset(t, p)
	p.Accept()
	assert.Equal(t, "0", value(t, client))
}

func TestProxyPassesTheEndOn(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	p := cluster.Proxy(t)
	conn, err := net.Dial("tcp", mustHost(t, p.Endpoints()[0]))
	require.NoError(t, err)
	eventually(t, func() bool { return p.Connections() == 1 }, "the client must connect")
	require.NoError(t, conn.Close())
	eventually(t, func() bool { return p.Connections() == 0 }, "the client's close must end the link")

	// When the server is stopped, a client sees a reset and not a silent connection.
	cluster.Member(0).Kill()
	requireReset(t, p)
}

func requireReset(t *testing.T, p *etcdtest.Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", mustHost(t, p.Endpoints()[0]))
	if err == nil { // the reset may even arrive before Dial returns
		_, err = io.ReadAll(conn)
		_ = conn.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// With one proxy for each member, one member hangs and the client goes on with the others.
func TestProxyPerMember(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxies := []*etcdtest.Proxy{cluster.Proxy(t, 0), cluster.Proxy(t, 1), cluster.Proxy(t, 2)}
	served := map[string]int{} // number of calls by proxy
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		var by peer.Peer
		err := invoker(ctx, method, req, reply, cc, append(opts, grpc.Peer(&by))...)
		if err == nil {
			served[by.Addr.String()]++
		}
		return err
	}
	client := cluster.Client(t, proxies[0], proxies[1], proxies[2], etcdtest.WithClientConfig(func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(count))
	}))
	require.Len(t, client.Endpoints(), 3)
	eventually(t, func() bool {
		_, err := client.Put(short(t, patience), "a", "0")
		return err == nil && len(served) == 3
	}, "the client must use every proxy")
	proxies[1].Blackhole(etcdtest.Both)
	hanging := mustHost(t, proxies[1].Endpoints()[0])
	before, failed := served[hanging], 0
	clear(served)
	// The balancer uses the members in turn, but not equally often.
	eventually(t, func() bool {
		if _, err := client.Get(short(t, 300*time.Millisecond), "a"); err != nil {
			failed++
		}
		return failed >= 2 && len(served) == 2
	}, "calls to the hanging member must fail, and the others must succeed")
	require.NotZero(t, before)
	require.Zero(t, served[hanging])

	both := cluster.Proxy(t, 2, 0)
	require.Len(t, both.Endpoints(), 2)
	assert.True(t, strings.HasPrefix(both.Endpoints()[0], "http://127.0.0.1:"))
}

// Close does not wait for a server that never answers, such as one behind a firewall.
func TestProxyCloseBesideADial(t *testing.T) {
	t.Parallel()
	asked := hangNameServers(t)
	p, err := etcdtest.Attach("http://silent.invalid:2379").NewProxy()
	require.NoError(t, err)
	conn, err := net.Dial("tcp", mustHost(t, p.Endpoints()[0]))
	require.NoError(t, err)
	defer conn.Close()
	awaitClosed(t, asked) // the proxy dials
	require.NoError(t, await(t, result(func() error { p.Close(); return nil })))
	_, err = io.ReadAll(conn)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestProxyClose(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	p, err := cluster.NewProxy()
	require.NoError(t, err)
	client := cluster.Client(t, p)
	_, err = client.Put(short(t, patience), "a", "1")
	require.NoError(t, err)
	p.Close()
	p.Close()
	_, err = net.DialTimeout("tcp", mustHost(t, p.Endpoints()[0]), time.Second)
	var op *net.OpError
	require.True(t, errors.As(err, &op), "nothing may listen after Close")
}
