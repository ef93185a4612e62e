//go:build unix

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcds "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// The drop-in and etcd's own package lock names that end in "/". Each command that looks at locks finds such a lock by its name.
func TestTrailingSlash(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s, err := concurrency.NewSession(client)
	require.NoError(t, err)
	m := concurrency.NewMutex(s, "jobs/")
	require.NoError(t, m.Lock(bounded(t)))
	other, err := etcds.NewSession(client)
	require.NoError(t, err)
	locked := make(chan error, 1)
	go func() { locked <- etcds.NewMutex(other, "jobs/").Lock(bounded(t)) }()
	keys := waiters(t, client, "jobs/", 2)
	require.Equal(t, m.Key(), keys[0])
	enqueued(t, client, "ann", "jobs") // the lock of the other name does not hide it

	status, out, says := ask(t, cluster, "show", "jobs/")
	require.Zero(t, status, says)
	require.Regexp(t, `^jobs/: held, 1 waiting\n(.*\n){2}holds .* jobs//[0-9a-f]+@\d+\nplace 1 .* jobs//[0-9a-f]+@\d+$`, out)
	status, out, says = ask(t, cluster, "doctor", "jobs/", "-o", "json")
	require.Zero(t, status, says)
	require.Contains(t, out, `{"name":"jobs/",`)
	_, out, _ = ask(t, cluster, "doctor", "jobs/")
	require.Regexp(t, `^jobs/: held, 1 waiting; first is `, out)
	_, out, _ = ask(t, cluster, "doctor", "jobs")
	require.Regexp(t, `^jobs: held, nobody waits; first is ann `, out)
	require.Contains(t, out, `note       jobs/, with a "/" at its end, is another lock, and held, 1 waiting: etcdlock doctor jobs/`+"\n")

	_, out, says = ask(t, cluster, "ls", "jobs/")
	require.Empty(t, out)
	require.Equal(t, "nobody holds or waits for a lock whose name starts with \"jobs/\""+unlisted+"\nleft out jobs/ itself, because the name ends in \"/\": held, 1 waiting; etcdlock show jobs/\n", says)
	status, _, says = ask(t, cluster, "ls", "/")
	require.Zero(t, status)
	require.Equal(t, "nobody holds or waits for a lock whose name starts with \"/\""+unlisted+"\n", says)

	watched := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "show", "--watch", "jobs/")
	watched.until(t, `^jobs/: held, 1 waiting$`)
	entry := fmt.Sprintf("%s@%d", keys[0], revision(t, client, keys[0]))
	status, out, says = ask(t, cluster, "break", "--yes", "jobs/", entry)
	require.Zero(t, status, says)
	require.Equal(t, "jobs/: "+entry+" is out of the queue", out)
	require.NoError(t, <-locked)
	watched.until(t, `^jobs/: held, nobody waits$`)
	require.NoError(t, watched.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, watched.wait(t))
	require.NoError(t, other.Close())
	require.NoError(t, s.Close())
}

// A name that nobody uses as typed is meant without its "/", as ls and the shell write it, if somebody uses that.
func TestTrailingSlash_NobodyUsesIt(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	_, out, _ := ask(t, cluster, "show", "jobs/")
	require.Equal(t, "jobs/: free", out)
	watched := start(t, env, "show", "--watch", "jobs/")
	watched.until(t, `^jobs/: free$`)
	enqueued(t, client, "ann", "jobs/", etcdlock.WithTrailingSlash())
	watched.until(t, `^holds .* ann `)
	require.NoError(t, watched.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, watched.wait(t))

	_, _, listed := ask(t, cluster, "ls")
	require.Equal(t, "nobody holds or waits for a lock; names that end in \"/\" are not listed\n", listed, "ann has one")

	enqueued(t, client, "bob", "x")
	_, out, _ = ask(t, cluster, "show", "x/")
	require.Regexp(t, `^x: held, nobody waits\n(.*\n)*holds .* bob `, out)
	_, out, _ = ask(t, cluster, "doctor", "x/")
	require.Regexp(t, `^x: held, nobody waits; first is bob `, out)
	watched = start(t, env, "show", "--watch", "x/")
	watched.until(t, `^x: held, nobody waits$`)
	require.NoError(t, watched.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, watched.wait(t))
	key := waiters(t, client, "x", 1)[0]
	status, out, says := ask(t, cluster, "break", "--yes", "x/", fmt.Sprintf("%s@%d", key, revision(t, client, key)))
	require.Zero(t, status, says)
	require.Regexp(t, `^x: x/.* is out of the queue$`, out)

	status, _, says = ask(t, cluster, "show", "//")
	require.Equal(t, 1, status)
	require.Contains(t, says, "it is empty")

	multi(t, client, "eva", 10e9, "y", "z")
	_, out, _ = ask(t, cluster, "doctor", "y, z/")
	require.Regexp(t, `^y: held, nobody waits; first is eva .*\nz: held, nobody waits; first is eva `, out)
}

// The role of a user has the prefix of such a lock and no more.
func TestTrailingSlash_OtherRights(t *testing.T) {
	t.Parallel()
	own, as := harness.StartWithAuth(t)
	_, err := as("root").RoleGrantPermission(bounded(t), "worker", "b//", clientv3.GetPrefixRangeEnd("b//"), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	for _, command := range []string{"show", "doctor"} {
		status, out, says := ask(t, own, command, "--user=worker:secret", "b/")
		require.Zero(t, status, out+says)
		require.Regexp(t, `^b/: free\n`, out+"\n")
	}
}
