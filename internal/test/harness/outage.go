package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Broken is what an error says, as a regular expression, if there is no connection or it broke. How it broke depends on
// what was being done with it. An attempt to connect that is on its way, for more than some milliseconds, has no cause yet.
const Broken = "no connection to etcd: .*(refused|reset|broken pipe|EOF|closed|the endpoints do not answer)"

// Away cuts the proxy's client off, until it has found that it can't connect.
func Away(t testing.TB, p *etcdtest.Proxy, c *clientv3.Client) (back func()) {
	t.Helper()
	p.Refuse()
	p.Reset()
	require.Eventually(t, func() bool { return c.ActiveConnection().GetState().String() == "TRANSIENT_FAILURE" }, Hang, Tick)
	return p.Accept
}
