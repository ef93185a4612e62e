package etcdtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Clients of an attached cluster reach its servers, also through proxies and taps. The
// cluster does not touch the servers themselves.
func TestAttach(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	attached := etcdtest.Attach(cluster.Endpoints()...)
	require.Equal(t, cluster.Endpoints(), attached.Endpoints())
	tap, proxy := etcdtest.NewTap(), attached.Proxy(t, 0)
	client := attached.Client(t, tap, proxy)
	_, err := client.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	require.Equal(t, 1, tap.Calls("Put"))
	require.Equal(t, 1, proxy.Connections())

	m := attached.Member(0)
	assert.Nil(t, m.Etcd())
	for name, f := range map[string]func(){"Stop": m.Stop, "Kill": m.Kill, "Isolate": m.Isolate, "Heal": m.Heal} {
		assert.Panics(t, f, name)
	}
	ctx := short(t, patience)
	_, err = attached.Leader(ctx)
	require.ErrorContains(t, err, "attached")
	_, err = attached.Compact(ctx)
	require.ErrorContains(t, err, "attached")
	require.ErrorContains(t, attached.MoveLeader(ctx, 0), "attached")
	require.ErrorContains(t, m.Restart(ctx), "attached")
	require.NoError(t, ctx.Err(), "the errors must be returned at once")
	attached.Close()
	_, err = cluster.Client(t).Get(short(t, patience), "a")
	require.NoError(t, err, "Close must not stop the servers")
}
