//go:build unix

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func TestList(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	status, out, says := ask(t, cluster, "ls")
	require.Zero(t, status)
	require.Empty(t, out)
	require.Equal(t, "nobody holds or waits for a lock"+unlisted+"\n", says)

	enqueued(t, client, "ann", "jobs/a")
	enqueued(t, client, "bob\x1b[31m\n", "jobs/a")
	s := enqueued(t, client, "cyd", "other")
	_, err := etcdlock.NewRWMutex(s, "jobs/r").RLock(bounded(t))
	require.NoError(t, err)
	_, err = etcdlock.NewRWMutex(s, "jobs/r").RLock(bounded(t))
	require.NoError(t, err)
	status, out, says = ask(t, cluster, "ls")
	require.Zero(t, status, says)
	require.Regexp(t, `^NAME +HELD BY +QUEUED +WAITING
jobs/a +ann +\d+s +1
jobs/r +cyd and 1 more +\d+s +0
other +cyd +\d+s +0$`, out)
	_, out, _ = ask(t, cluster, "ls", "-q", "jobs")
	require.Equal(t, "jobs/a\njobs/r", out)
	_, out, _ = ask(t, cluster, "ls", "-o", "json", "jobs/a")
	var q etcdlock.Queue
	require.NoError(t, json.Unmarshal([]byte(out), &q))
	require.Equal(t, "bob\x1b[31m\n", q.Entries[1].Owner, "JSON has it unchanged")
	_, _, says = ask(t, cluster, "ls", "none")
	require.Equal(t, "nobody holds or waits for a lock whose name starts with \"none\""+unlisted+"\n", says)
	status, _, says = ask(t, cluster, "ls", "-o", "xml")
	require.Equal(t, 1, status)
	require.Regexp(t, `^etcdlock: invalid argument "xml" for "-o, --output" flag: use table or json; etcdlock ls --help lists the flags\n$`, says)
	status, out, says = ask(t, cluster, "ls", "-q", "-o", "json")
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Equal(t, "etcdlock: -q or -0 and -o json exclude each other: choose one\n", says)
}

// A lock is left out if its last entry goes between the two reads.
func TestList_Emptied(t *testing.T) {
	t.Parallel()
	type lock struct{ listed, emptied chan struct{} }
	locks := make(map[string]lock) // one for each output: a repeated request of the last one may still be on its way
	for _, output := range []string{"table", "json"} {
		locks[output] = lock{make(chan struct{}), make(chan struct{})}
	}
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		r := harness.RangesOf(req)
		if len(r) == 0 {
			return
		}
		if l, ok := locks[strings.TrimSuffix(string(r[0].Key), "/")]; ok {
			select {
			case l.listed <- struct{}{}:
				<-l.emptied
			case <-l.emptied:
			case <-ctx.Done():
			}
		}
	}))
	client := cluster.Client(t)
	for output, says := range map[string]string{"table": "nobody holds or waits for a lock" + unlisted + "\n", "json": ""} {
		_, err := client.Put(bounded(t), output+"/abc", "")
		require.NoError(t, err)
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "ls", "-o", output)
		<-locks[output].listed
		_, err = client.Delete(bounded(t), output+"/abc")
		require.NoError(t, err)
		close(locks[output].emptied)
		require.Zero(t, r.wait(t))
		require.Empty(t, r.output())
		require.Equal(t, says, r.stderr.String())
	}
}

// Other programs have keys that end in hex, and so look like entries. Without a lease
// they are left out, unless somebody waits for them.
func TestList_NoLease(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, key := range []string{"registry/pods/cafe", "registry/pods/beef", "registry/nodes/12", "jobs/stuck/1"} {
		_, err := client.Put(bounded(t), key, "")
		require.NoError(t, err)
	}
	const left = "left out 2 names without a lease on any key, most likely not locks; --all lists them\n"
	enqueued(t, client, "ann", "jobs/stuck")
	for _, c := range []struct {
		args      []string
		out, says string
	}{
		{[]string{"ls"}, `^NAME +HELD BY +QUEUED +WAITING\njobs/stuck +what looks like data: "" \(no lease\) +\? +1$`, left},
		{[]string{"ls", "-q"}, `^jobs/stuck$`, left},
		{[]string{"ls", "-o", "json"}, `^\{"name":"jobs/stuck",.*\}$`, left},
		{[]string{"ls", "-q", "--all"}, "^jobs/stuck\nregistry/nodes\nregistry/pods$", ""},
		{[]string{"ls", "registry", "--all"}, `\nregistry/nodes +what looks like data: "" \(no lease\) +\? +0\nregistry/pods +what looks like data: "" \(no lease\) +\? +1$`, ""},
		{[]string{"ls", "registry"}, "^$", "nobody holds or waits for a lock whose name starts with \"registry\"" + unlisted + "\n" + left},
		{[]string{"ls", "registry/pods"}, "^$", "nobody holds or waits for a lock whose name starts with \"registry/pods\"" + unlisted + "\n" +
			"left out 1 name without a lease on any key, most likely not locks; --all lists them\n"},
	} {
		status, out, says := ask(t, cluster, c.args...)
		require.Zero(t, status, c.args)
		require.Regexp(t, c.out, out, c.args)
		require.Equal(t, c.says, says, c.args)
	}
}

// A user whose role covers a part of the keys is told which part to list.
func TestList_NarrowRole(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.BcryptCost = 4 }))
	admin := cluster.Client(t)
	ctx := bounded(t)
	grant := func(role, prefix string, kind clientv3.PermissionType) error {
		return second(admin.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), kind))
	}
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.RoleAdd(ctx, "some")),
		grant("some", "jobs/nightly/", clientv3.PermissionType(clientv3.PermReadWrite)),
		grant("some", "jobs/hourly/", clientv3.PermissionType(clientv3.PermRead)),
		grant("some", "log/", clientv3.PermissionType(clientv3.PermWrite)),
		second(admin.UserAdd(ctx, "ann", "secret")), second(admin.UserGrantRole(ctx, "ann", "some")),
		second(admin.UserAdd(ctx, "bob", "secret")),
		second(admin.AuthEnable(ctx)),
	} {
		require.NoError(t, err)
	}
	for _, c := range []struct{ user, prefix, says string }{
		{"ann", "", "user ann may not read all keys; its role allows: etcdlock ls jobs/hourly/, etcdlock ls jobs/nightly/"},
		{"ann", "jobs/n", `user ann may not read all keys that start with "jobs/n"; its role allows: etcdlock ls jobs/nightly/`},
		{"ann", "log/", `user ann may not read all keys that start with "log/"; its role allows: etcdlock ls jobs/hourly/, etcdlock ls jobs/nightly/`},
		{"bob", "", "user bob may not read all keys: give a prefix that its role covers, such as: etcdlock ls jobs/"},
	} {
		status, out, says := ask(t, cluster, "ls", "--user="+c.user+":secret", c.prefix)
		require.Equal(t, 1, status)
		require.Empty(t, out)
		require.Equal(t, "etcdlock: "+c.says+"\n", says)
	}
	status, _, says := ask(t, cluster, "ls", "--user=ann:secret", "jobs/nightly/")
	require.Zero(t, status, says)
}
