package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// StartWithAuth starts a cluster that requires passwords. Its tokens expire after two seconds
// without use. It has three users: root; worker, which may only read and write below a/; and
// reader, which may only read there. The options come after what this says.
func StartWithAuth(t testing.TB, opts ...etcdtest.Option) (own *etcdtest.Cluster, as func(user string, opts ...etcdtest.ClientOption) *clientv3.Client) {
	t.Helper()
	auth := etcdtest.WithConfig(func(c *embed.Config) { c.AuthTokenTTL, c.BcryptCost = 2, 4 })
	own = etcdtest.Start(t, append([]etcdtest.Option{auth}, opts...)...)
	c := own.Client(t)
	for user, perm := range map[string]clientv3.PermissionType{"root": 0, "worker": clientv3.PermissionType(clientv3.PermReadWrite), "reader": clientv3.PermissionType(clientv3.PermRead)} {
		_, err := c.RoleAdd(Ctx(t), user)
		require.NoError(t, err)
		_, err = c.UserAdd(Ctx(t), user, "secret")
		require.NoError(t, err)
		_, err = c.UserGrantRole(Ctx(t), user, user)
		require.NoError(t, err)
		if user != "root" {
			_, err = c.RoleGrantPermission(Ctx(t), user, "a/", clientv3.GetPrefixRangeEnd("a/"), perm)
			require.NoError(t, err)
		}
	}
	_, err := c.AuthEnable(Ctx(t))
	require.NoError(t, err)
	return own, func(user string, opts ...etcdtest.ClientOption) *clientv3.Client {
		return own.Client(t, append(opts, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Username, c.Password = user, "secret" }))...)
	}
}
