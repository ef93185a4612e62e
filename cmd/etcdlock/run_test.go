//go:build unix

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	script := `echo $ETCDLOCK_NAME $ETCDLOCK_KEY $ETCDLOCK_TOKEN "$0" "$1"; read line; echo $line; exit 7`
	r, end := begin(t, cluster.Endpoints(), "jobs/report", "--owner", "the report", "--", "sh", "-c", script, "a b", "--try")
	m := r.until(t, `^jobs/report (jobs/report/[0-9a-f]+) (\d+) a b --try$`)
	got, err := client.Get(bounded(t), m[1])
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.Equal(t, mustInt(m[2]), got.Kvs[0].CreateRevision)
	require.Contains(t, string(got.Kvs[0].Value), `"owner":"the report"`)
	end()
	require.Equal(t, 7, r.wait(t), "the command's own")
	require.Empty(t, r.stderr.String(), "nothing to say")
	noKeys(t, client)

	for _, c := range []struct {
		status int
		script string
	}{{0, "true"}, {75, "exit 75"}, {255, "exit 255"}, {137, "kill -9 $$"}, {143, "kill $$"}} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--", "sh", "-c", c.script)
		require.Equal(t, c.status, r.wait(t), c.script)
		require.Empty(t, r.stderr.String())
	}
	noKeys(t, client)
}

// Under another run the command gets the variables of its own lock, and each of them
// once: some programs take the first of two.
func TestRun_Nested(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "outer", "--", binary, "run", "inner", "--", "env")
	require.Zero(t, r.wait(t), r.stderr.String())
	var ours []string
	for _, l := range r.lines {
		if strings.HasPrefix(l, "ETCDLOCK_") && !strings.HasPrefix(l, "ETCDLOCK_FULL=") {
			ours = append(ours, l)
		}
	}
	slices.Sort(ours)
	require.Regexp(t, `^ETCDLOCK_KEY=inner/[0-9a-f]+
ETCDLOCK_NAME=inner
ETCDLOCK_TOKEN=\d+$`, strings.Join(ours, "\n"))
}

func TestRun_NotStarted(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("#!/nonexistent\n"), 0o755))
	for _, c := range []struct {
		status int
		says   string
		args   []string
	}{
		{127, "no-such: command not found", []string{"x", "--", "no-such"}},
		{127, "/no/such: command not found", []string{"x", "--", "/no/such"}},
		{126, "/etc/passwd can't be executed: .*permission denied", []string{"x", "--", "/etc/passwd"}},
		{126, broken + " can't be executed: .*no such file", []string{"x", "--", broken}},
		{125, "invalid lock name", []string{"x/", "--", "true"}},
		{125, "the name of a lock is missing; usage: etcdlock run NAME", nil},
		{125, "the name of a lock is missing", []string{"--", "true"}},
		{125, `a "--" is missing between NAME and CMD; usage: etcdlock run NAME`, []string{"x", "true"}},
		{125, `a "--" is missing between NAME and CMD; usage: etcdlock run NAME`, []string{"x", "y", "--", "true"}},
		{125, "CMD is missing after --; usage: etcdlock run NAME", []string{"x", "--"}},
		{125, "--grace 4s is too long for --ttl 10s: .*--ttl 12s or more, or --grace 3.333s or less", []string{"x", "--grace", "4s", "--", "true"}},
		{125, "--grace -1s: it can't be negative", []string{"x", "--grace=-1s", "--", "true"}},
		{125, "--ttl 10ms: .*at least 1s", []string{"x", "--ttl", "10ms", "--", "true"}},
		{125, "--try and --wait", []string{"x", "--wait", "1s", "--try", "--", "true"}},
		{125, "--hold-for -1s: it can't be negative", []string{"x", "--hold-for=-1", "--", "true"}},
		{125, "--wait 0s", []string{"x", "--wait", "0", "--", "true"}},
		{125, "unknown flag: --patience; etcdlock run --help lists the flags", []string{"x", "--patience", "--", "true"}},
		{125, "no etcd answers at 127.0.0.1:1 within 100ms .*connection refused", []string{"x", "--endpoints=127.0.0.1:1", "--dial-timeout=100ms", "--", "true"}},
	} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, append([]string{"run"}, c.args...)...)
		require.Equal(t, c.status, r.wait(t), c.args)
		require.Regexp(t, `^etcdlock: .*`+c.says+`.*\n$`, r.stderr.String())
		require.Equal(t, 1, strings.Count(r.stderr.String(), "\n"), "one line")
		require.Empty(t, r.output())
	}
	noKeys(t, client)
}

func TestRun_Taken(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	holder, end := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	holder.inSection(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	for _, args := range [][]string{{"--try"}, {"--try", "--read"}, {"--wait", "50ms"}, {"--wait", "50ms", "--read"}} {
		r := start(t, env, append(append([]string{"run", "x"}, args...), "--", "echo", "started")...)
		require.Equal(t, 75, r.wait(t), args)
		require.Regexp(t, `^etcdlock: x: (the lock is taken: |the lock was still taken after 50ms: (1 ahead, )?)held by \S+ sh\[\d+\] \(queued \d+s ago\)\n$`, r.stderr.String())
		require.Empty(t, r.output())
		require.Len(t, waiters(t, client, "x", 1), 1, "nothing of it is left")
	}
	end()
	require.Zero(t, holder.wait(t))
	r := start(t, env, "run", "x", "--try", "--", "echo", "started")
	require.Zero(t, r.wait(t))
	require.Equal(t, "started", r.output())
	noKeys(t, client)
}

// When etcd goes away during the wait, perhaps nobody has the lock. So the status must
// not be the one that says that somebody else does the work.
func TestRun_WaitEtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	enqueued(t, client, "ann", "x")
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "run", "x", "--wait=10s", "--dial-timeout=4s", "--", "echo", "started")
	waiters(t, client, "x", 2)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	require.Equal(t, 125, r.wait(t))
	require.Regexp(t, `^(etcdlock: x: waiting.*\n)*etcdlock: x: no lock within 10s, and etcd does not say who holds it: .+\n$`, r.stderr.String())
	require.Empty(t, r.output())
}

// --try does not wait either when etcd stops answering after its first answer.
func TestRun_TryEtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		if _, ok := req.(*pb.LeaseGrantRequest); ok {
			<-ctx.Done()
		}
	}))
	var all []*invocation
	for _, args := range [][]string{{"--try"}, {"--try", "--read"}} {
		args = append(append([]string{"run", "x", "--dial-timeout=5s"}, args...), "--", "echo", "started")
		all = append(all, start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, args...))
	}
	for _, r := range all {
		require.Equal(t, 125, r.wait(t))
		require.Equal(t, "etcdlock: x: etcd has not answered within 5s\n", r.stderr.String())
		require.Empty(t, r.output())
	}
}

// run queues in the order of arrival together with the locks that etcdctl uses.
func TestRun_Order(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	ctx := bounded(t)
	first, endFirst := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	_, token1 := first.inSection(t)

	s, err := concurrency.NewSession(client)
	require.NoError(t, err)
	second := concurrency.NewMutex(s, "x")
	locked := make(chan error, 1)
	go func() { locked <- second.Lock(ctx) }()
	waiters(t, client, "x", 2)

	third, endThird := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	waiters(t, client, "x", 3)
	endFirst()
	require.Zero(t, first.wait(t))
	require.NoError(t, <-locked)
	keys := waiters(t, client, "x", 2)
	require.Equal(t, second.Key(), keys[0])
	require.NoError(t, second.Unlock(ctx))
	_, token3 := third.inSection(t)
	require.Greater(t, token3, token1)
	endThird()
	require.Zero(t, third.wait(t))
	require.NoError(t, s.Close())
	noKeys(t, client)
}

func TestRun_Read(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r1, end1 := begin(t, cluster.Endpoints(), append([]string{"x", "--read", "--"}, section...)...)
	r1.inSection(t)
	r2, end2 := begin(t, cluster.Endpoints(), append([]string{"x", "--read", "--"}, section...)...)
	r2.inSection(t)
	w, endW := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	waiters(t, client, "x", 3)
	end1()
	require.Zero(t, r1.wait(t))
	require.Empty(t, w.lines)
	end2()
	require.Zero(t, r2.wait(t))
	w.inSection(t)
	endW()
	require.Zero(t, w.wait(t))
	noKeys(t, client)
}
