package deploy

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/deploy/internal/etcdctl"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// A grant is a right that a role has.
type grant struct {
	role       string
	kind       clientv3.PermissionType
	key, until string
}

// grants are the rights that etcd/role.sh gives: one role and one user for each workload.
func grants(t *testing.T) (all []grant) {
	t.Helper()
	script, err := os.ReadFile("etcd/role.sh")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^workload (\S+) (\S+)$`).FindAllSubmatch(script, -1) {
		prefix := string(m[2])
		all = append(all, grant{string(m[1]), clientv3.PermissionType(clientv3.PermReadWrite), prefix, clientv3.GetPrefixRangeEnd(prefix)})
	}
	require.Len(t, all, len(pods(t, complete)))
	for i, pod := range pods(t, complete) {
		require.Equal(t, pod.Labels["app.kubernetes.io/name"], all[i].role)
	}
	return all
}

// The script makes the role and the user, and can be run again.
func TestRole_Script(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.BcryptCost = 4 }))
	admin, ctx := cluster.Client(t), bounded(t)
	path, said := etcdctl.Path(t), ""
	run := func(user string) error {
		cmd := exec.CommandContext(ctx, "sh", "etcd/role.sh")
		cmd.Env = append(os.Environ(), "PATH="+path, "ETCDCTL_ENDPOINTS="+cluster.Endpoints()[0], "ETCDCTL_USER="+user)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		said = string(out)
		return err
	}
	require.NoError(t, run(""))
	require.Contains(t, said, "authentication is off: these roles do nothing yet")
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "root")), second(admin.UserGrantRole(ctx, "root", "root")), second(admin.AuthEnable(ctx)),
	} {
		require.NoError(t, err)
	}
	root := cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Username, c.Password = "root", "root" }))
	for range 2 {
		require.NoError(t, run("root:root"))
		require.NotContains(t, said, "authentication is off")
		var got []grant
		for _, g := range grants(t) {
			role, err := root.RoleGet(ctx, g.role)
			require.NoError(t, err)
			for _, p := range role.Perm {
				got = append(got, grant{g.role, clientv3.PermissionType(p.PermType), string(p.Key), string(p.RangeEnd)})
			}
			user, err := root.UserGet(ctx, g.role)
			require.NoError(t, err)
			require.Equal(t, []string{g.role}, user.Roles)
		}
		require.ElementsMatch(t, grants(t), got)
	}
	require.Error(t, run("root:wrong"), "it must not end well where it did nothing")
}

func second[T any](_ T, err error) error { return err }

// withRole returns a client of an etcd with authentication on, as a user whose role has
// these rights.
func withRole(t *testing.T, role []grant) *clientv3.Client {
	t.Helper()
	cluster := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.BcryptCost = 4 }))
	admin, ctx := cluster.Client(t), bounded(t)
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.UserAdd(ctx, "cron", "secret")), second(admin.RoleAdd(ctx, "locks")), second(admin.UserGrantRole(ctx, "cron", "locks")),
	} {
		require.NoError(t, err)
	}
	for _, g := range role {
		require.NoError(t, second(admin.RoleGrantPermission(ctx, "locks", g.key, g.until, g.kind)))
	}
	require.NoError(t, second(admin.AuthEnable(ctx)))
	return cluster.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Username, c.Password = "cron", "secret" }))
}

// use does with a lock all that there is to do with one.
func use(t *testing.T, client *clientv3.Client, name string) error {
	t.Helper()
	ctx := bounded(t)
	s, err := etcdlock.NewSession(ctx, client)
	if err != nil {
		return err
	}
	defer s.Close()
	locks := etcdlock.New(client)
	defer locks.Close()
	err = etcdlock.NewMutex(s, name).Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
		if _, err := etcdlock.NewRWMutex(s, name).REnqueue(context.WithoutCancel(ctx)); !errors.Is(err, etcdlock.ErrWouldDeadlock) {
			return errors.Join(err, errors.New("no deadlock seen"))
		}
		waiting, err := etcdlock.NewRWMutex(s, name).REnqueue(bounded(t))
		if err != nil {
			return err
		}
		if _, err := waiting.Ahead(ctx); err != nil {
			return err
		}
		if _, err := h.Txn(ctx).Then(clientv3.OpPut(name+"/data/x", "1")).Commit(); err != nil {
			return err
		}
		q, err := locks.Inspect(ctx, name)
		if err != nil {
			return err
		}
		if err := locks.Break(ctx, q.Waiters()[0]); err != nil {
			return err
		}
		return h.Check(ctx)
	})
	if err != nil {
		return err
	}
	w, err := etcdlock.NewRWMutex(s, name).Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(w.Downgrade(ctx), w.Unlock(ctx)); err != nil {
		return err
	}
	for _, err := range locks.ListNames(ctx, name[:strings.IndexByte(name, '/')+1]) {
		if err != nil {
			return err
		}
	}
	return locks.Elector(name).Run(ctx, func(context.Context, *etcdlock.Held) error { return nil })
}

// The role suffices for all that there is to do with locks below its prefixes.
func TestRole(t *testing.T) {
	t.Parallel()
	for i, g := range grants(t) {
		client := withRole(t, []grant{g})
		require.NoError(t, use(t, client, g.key+"x"))
		other := grants(t)[1-i]
		require.ErrorIs(t, use(t, client, other.key+"x"), rpctypes.ErrPermissionDenied)
	}
	job := find[*batchv1.CronJob](t, complete)
	require.Contains(t, job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args, "jobs/report")
}

// Fewer rights do not suffice.
func TestRole_Less(t *testing.T) {
	t.Parallel()
	read, write := clientv3.PermissionType(clientv3.PermRead), clientv3.PermissionType(clientv3.PermWrite)
	both := clientv3.PermissionType(clientv3.PermReadWrite)
	end := clientv3.GetPrefixRangeEnd
	for what, role := range map[string][]grant{
		"read only":              {{"locks", read, "jobs/", end("jobs/")}},
		"write only":             {{"locks", write, "jobs/", end("jobs/")}},
		"the name without its /": {{"locks", both, "jobs/x", ""}},
		"one kind of entry":      {{"locks", both, "jobs/x/0", "jobs/x/g"}},
		"another prefix":         {{"locks", both, "cron/", end("cron/")}},
		"nothing":                nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, use(t, withRole(t, role), "jobs/x"), rpctypes.ErrPermissionDenied)
		})
	}
}

// Who only looks needs no right to write.
func TestRole_ReadOnly(t *testing.T) {
	t.Parallel()
	client := withRole(t, []grant{{"locks", clientv3.PermissionType(clientv3.PermRead), "jobs/", clientv3.GetPrefixRangeEnd("jobs/")}})
	ctx := bounded(t)
	_, err := etcdlock.New(client).Inspect(ctx, "jobs/x")
	require.NoError(t, err)
	for _, err := range etcdlock.New(client).ListNames(ctx, "jobs/") {
		require.NoError(t, err)
	}
	for _, err := range etcdlock.New(client).Watch(ctx, "jobs/x") {
		require.NoError(t, err)
		break
	}
}
