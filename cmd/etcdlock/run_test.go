package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// begin starts `etcdlock run` with a command that reads a standard input, which
// end closes.
func begin(t *testing.T, endpoints []string, args ...string) (r *invocation, end func()) {
	t.Helper()
	return beginAs(t, "run", endpoints, args...)
}

func beginAs(t *testing.T, subcommand string, endpoints []string, args ...string) (r *invocation, end func()) {
	t.Helper()
	r = command(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(endpoints, ",")}, append([]string{subcommand}, args...)...)
	in, err := r.cmd.StdinPipe()
	require.NoError(t, err)
	r.launch(t)
	return r, func() { require.NoError(t, in.Close()) }
}

// section is a command that says its process and its token, and stays until its
// input ends.
var section = []string{"sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; echo out"}

// inSection waits for it.
func (r *invocation) inSection(t *testing.T) (pid int, token int64) {
	t.Helper()
	m := r.until(t, `^in (\d+) (\d+)$`)
	return int(mustInt(m[1])), mustInt(m[2])
}

// stop stops it, and returns when it has: a process of several threads goes on for a
// moment.
func (r *invocation) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	var ws syscall.WaitStatus
	err := error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		_, err = syscall.Wait4(r.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil)
	}
	require.NoError(t, err)
	require.True(t, ws.Stopped())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// waiters waits until n entries are in a lock's queue, and returns their keys, by
// revision.
func waiters(t *testing.T, client *clientv3.Client, name string, n int) (keys []string) {
	t.Helper()
	ctx := bounded(t)
	events := client.Watch(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	for {
		wr, ok := <-events
		require.True(t, ok && wr.Err() == nil, "waiting for %d entries", n)
		got, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		require.NoError(t, err)
		if len(got.Kvs) == n {
			for _, kv := range got.Kvs {
				keys = append(keys, string(kv.Key))
			}
			return keys
		}
	}
}

// contend takes the lock as soon as it is to be had, and returns whether any of
// the processes was alive at that moment.
func contend(t *testing.T, client *clientv3.Client, name string) (outlived func(pids ...int) bool, free func()) {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client)
	require.NoError(t, err)
	ticket, err := etcdlock.NewMutex(s, name).Enqueue(bounded(t))
	require.NoError(t, err)
	outlived = func(pids ...int) bool {
		_, err := ticket.Wait(bounded(t))
		require.NoError(t, err)
		return slices.ContainsFunc(pids, alive)
	}
	return outlived, func() { require.NoError(t, s.Close()) }
}

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

// Under another run the command gets the variables of its own lock, and those
// once: of what is there twice some programs take the first.
func TestRun_Nested(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "outer", "--", binary, "run", "inner", "--", "env")
	require.Zero(t, r.wait(t), r.stderr.String())
	var ours []string
	for _, l := range r.lines {
		if strings.HasPrefix(l, "ETCDLOCK_") {
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
		{125, "no name of a lock.*etcdlock run NAME", nil},
		{125, "no name of a lock", []string{"--", "true"}},
		{125, `a "--" has to stand`, []string{"x", "true"}},
		{125, `a "--" has to stand`, []string{"x", "y", "--", "true"}},
		{125, "no CMD", []string{"x", "--"}},
		{125, "--grace 4s does not fit into --ttl 10s: .*--ttl 12s or --grace 3.333s", []string{"x", "--grace", "4s", "--", "true"}},
		{125, "--grace -1s: it can't be negative", []string{"x", "--grace=-1s", "--", "true"}},
		{125, "--ttl 10ms: .*1s at least", []string{"x", "--ttl", "10ms", "--", "true"}},
		{125, "--try and --wait", []string{"x", "--wait", "1s", "--try", "--", "true"}},
		{125, "--wait 0s", []string{"x", "--wait", "0", "--", "true"}},
		{125, "unknown flag: --patience", []string{"x", "--patience", "--", "true"}},
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
		require.Regexp(t, `^etcdlock: x: (not to be had at once|still not to be had after 50ms): held by \S+ sh\[\d+\] \(queued \d+s ago\)\n$`, r.stderr.String())
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

// Etcd goes away during the wait: perhaps nobody has the lock, so that is no
// status for somebody who would leave the work to whoever has it.
func TestRun_WaitEtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	enqueued(t, client, "ann", "x")
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "run", "x", "--wait=3s", "--", "echo", "started")
	waiters(t, client, "x", 2)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	require.Equal(t, 125, r.wait(t))
	require.Regexp(t, `^etcdlock: x: not to be had within 3s, and etcd does not tell who has it: .+\n$`, r.stderr.String())
	require.Empty(t, r.output())
}

// Etcd stops to answer once it has answered: --try does not wait for that either.
func TestRun_TryEtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, intercepted(func(ctx context.Context, req any) {
		if _, ok := req.(*pb.LeaseGrantRequest); ok {
			<-ctx.Done()
		}
	}))
	for _, args := range [][]string{{"--try"}, {"--try", "--read"}} {
		args = append(append([]string{"run", "x", "--dial-timeout=2s"}, args...), "--", "echo", "started")
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, args...)
		require.Equal(t, 125, r.wait(t))
		require.Equal(t, "etcdlock: x: etcd has not answered within 2s\n", r.stderr.String())
		require.Empty(t, r.output())
	}
}

// intercepted makes each member call f with each request, before it looks at it.
func intercepted(f func(ctx context.Context, req any)) etcdtest.Option {
	return etcdtest.WithConfig(func(c *embed.Config) {
		c.GRPCAdditionalServerOptions = append(c.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				f(ctx, req)
				return handler(ctx, req)
			}))
	})
}

// One queue, in the order of arrival, with what `etcdctl lock` uses.
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

// Signals reach the command and what it has started.
func TestRun_Signals(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	script := `for s in HUP INT QUIT USR1 USR2; do trap "echo $s in $0" $s; done; trap "echo TERM in $0; exit 3" TERM
		if [ $0 = parent ]; then sh -c "$1" child & fi
		echo ready $0; while :; do sleep 0.02; done`
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--", "sh", "-c", script, "parent", script)
	for range 2 {
		r.until(t, `^ready (child|parent)$`)
	}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
		require.NoError(t, r.cmd.Process.Signal(s))
		who := r.until(t, `^(HUP|USR1|USR2) in (parent|child)$`)
		other := r.until(t, `^(HUP|USR1|USR2) in (parent|child)$`)
		require.Equal(t, who[1], other[1])
		require.NotEqual(t, who[2], other[2])
	}
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 3, r.wait(t), "its own")
	require.Contains(t, r.output(), "TERM in parent")
	require.Contains(t, r.output(), "TERM in child")
	require.NotContains(t, r.stderr.String(), "etcdlock:")
	noKeys(t, client)
}

func TestRun_SignalWhileWaiting(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	holder, end := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	holder.inSection(t)
	for sig, status := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--", "echo", "started")
		waiters(t, client, "x", 2)
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGUSR1), "nobody to pass it on to")
		require.NoError(t, r.cmd.Process.Signal(sig))
		require.Equal(t, status, r.wait(t))
		require.Regexp(t, `^etcdlock: ended by signal: [a-z]+\n$`, r.stderr.String())
		require.Empty(t, r.output())
		waiters(t, client, "x", 1)
	}
	end()
	require.Zero(t, holder.wait(t))
	noKeys(t, client)
}

// A process that is started to ignore hang-ups, as by nohup, goes on doing so.
func TestRun_IgnoredSignals(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]})
	script := fmt.Sprintf(`trap "" HUP; exec %s run x -- sh -c 'trap "echo seen" HUP; echo ready; read line; echo done'`, binary)
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", script}
	in, err := r.cmd.StdinPipe()
	require.NoError(t, err)
	r.launch(t)
	r.until(t, "ready")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, in.Close())
	require.Zero(t, r.wait(t))
	require.Equal(t, "ready\ndone", r.output())

	r = command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]})
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf(`trap "" HUP; exec %s show x --watch`, binary)}
	r.launch(t)
	r.until(t, "^x: free$")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGHUP))
	enqueued(t, cluster.Client(t), "ann", "x")
	r.until(t, "^holds .* ann ")
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
}

// stubborn is a command that ignores SIGTERM and has a child that does; it says
// when it gets one.
const stubborn = `trap "echo TERM" TERM; sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' & echo $$; while :; do wait; done`

func (r *invocation) stubbornPids(t *testing.T) []int {
	t.Helper()
	return []int{int(mustInt(r.until(t, `^(\d+)$`)[1])), int(mustInt(r.until(t, `^(\d+)$`)[1]))}
}

func requireDead(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !alive(pid) }, hang, 5*time.Millisecond)
	}
}

// Somebody takes the lock away: the command is asked to end, and then killed.
func TestRun_Broken(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	takeAway := func() {
		_, err := client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
		require.NoError(t, err)
	}
	r := start(t, env, "run", "x", "--ttl=3s", "--grace=900ms", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	takeAway()
	r.until(t, "^TERM$")
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, fmt.Sprintf(`^etcdlock: x: sh: lock lost; process group %[1]d gets SIGTERM, and SIGKILL in \d+ms
etcdlock: x: process group %[1]d is killed
etcdlock: x: the lock was not held for as long as sh ran: lock lost
$`, max(pids[0], 0)), strings.ReplaceAll(r.stderr.String(), fmt.Sprint(pids[1]), fmt.Sprint(pids[0])))
	requireDead(t, pids...)

	// One that ends when asked to, and says that all went well, has lost the lock all
	// the same.
	r = start(t, env, "run", "x", "--", "sh", "-c", `trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	r.until(t, "ready")
	takeAway()
	require.Equal(t, 76, r.wait(t))
	require.Equal(t, "ready\nTERM", r.output())
	require.NotContains(t, r.stderr.String(), "killed")

	// One that is stopped is asked, too.
	r = start(t, env, "run", "x", "--ttl=60s", "--grace=20s", "--", "sh", "-c", `trap "echo TERM; exit 0" TERM; echo $$; while :; do sleep 0.01; done`)
	pid := int(mustInt(r.until(t, `^(\d+)$`)[1]))
	require.NoError(t, syscall.Kill(-pid, syscall.SIGSTOP))
	takeAway()
	r.until(t, "^TERM$")
	require.Equal(t, 76, r.wait(t))

	// Without grace there is no asking.
	r = start(t, env, "run", "x", "--grace=0s", "--", "sh", "-c", stubborn)
	pids = r.stubbornPids(t)
	takeAway()
	require.Equal(t, 76, r.wait(t))
	require.NotContains(t, r.output(), "TERM")
	requireDead(t, pids...)
	noKeys(t, client)
}

// Nobody reads what it says: the command is ended as ever.
func TestRun_Unread(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]},
		"run", "x", "--ttl=60s", "--grace=20s", "--", "sh", "-c", `exec 2>/dev/null; trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	r.cmd.Stderr = brokenPipe(t)
	r.launch(t)
	r.until(t, "ready")
	_, err := client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
	require.NoError(t, err)
	r.until(t, "^TERM$")
	require.Equal(t, 76, r.wait(t))
	noKeys(t, client)
}

// The lock is taken away and the command ends while nobody looks: whether the
// loss or the end is seen first, it was not held all the time.
func TestRun_LostUnseen(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for range 5 {
		r, end := begin(t, cluster.Endpoints(), append([]string{"x", "--ttl=60s", "--"}, section...)...)
		r.inSection(t)
		r.stop(t)
		_, err := client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
		require.NoError(t, err)
		end()
		r.until(t, "^out$")
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
		require.Equal(t, 76, r.wait(t))
		require.Contains(t, r.stderr.String(), "etcdlock: x: the lock was not held for as long as sh ran: ")
	}
	noKeys(t, client)
}

// Etcd can't be reached: the command is asked to end in time, and dead before
// anybody else has the lock.
func TestRun_EtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(proxy.Endpoints(), ",")}, "run", "x", "--ttl=3s", "--grace=900ms", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	outlived, free := contend(t, client, "x")
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	r.until(t, "^TERM$")
	require.Len(t, waiters(t, client, "x", 2), 2, "the lease lives yet")
	require.False(t, outlived(pids...))
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, `^etcdlock: x: sh: etcd has not confirmed the lock for too long; process group \d+ gets SIGTERM, and SIGKILL in \d+ms
(etcdlock: x: process group \d+ is killed
)?etcdlock: x: the lock was not held for as long as sh ran: .+\n$`, r.stderr.String())
	free()
	noKeys(t, client)
}

// Leader changes, and members that stop and come back, are nothing to it.
func TestRun_LeaderChange(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	r, end := begin(t, cluster.Endpoints(), append([]string{"x", "--ttl=4s", "--"}, section...)...)
	_, token := r.inSection(t)
	leader, err := cluster.Leader(bounded(t))
	require.NoError(t, err)
	leader.Kill()
	_, err = cluster.Leader(bounded(t))
	require.NoError(t, err)
	require.NoError(t, leader.Restart(bounded(t)))
	got, err := client.Get(bounded(t), waiters(t, client, "x", 1)[0])
	require.NoError(t, err)
	require.Equal(t, token, got.Kvs[0].CreateRevision)
	end()
	require.Zero(t, r.wait(t), r.stderr.String())
	require.Empty(t, r.stderr.String())
}

// kill -9 of the process that holds the lock ends the command with all that it has
// started, long before the lease ends.
func TestRun_Killed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=4s", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	outlived, free := contend(t, client, "x")
	require.NoError(t, r.cmd.Process.Kill())
	require.False(t, outlived(pids...))
	require.Equal(t, -1, r.wait(t))
	free()
}

// A waiter whose session ends queues again.
func TestRun_QueuesAgain(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	holder, endHolder := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	holder.inSection(t)
	r, end := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	keys := waiters(t, client, "x", 2)
	got, err := client.Get(bounded(t), keys[1])
	require.NoError(t, err)
	_, err = client.Revoke(bounded(t), clientv3.LeaseID(got.Kvs[0].Lease))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !slices.Contains(waiters(t, client, "x", 2), keys[1]) }, hang, time.Millisecond)
	endHolder()
	require.Zero(t, holder.wait(t))
	r.inSection(t)
	end()
	require.Zero(t, r.wait(t))
	require.Empty(t, r.stderr.String())
	noKeys(t, client)
}

// etcd away at the very end costs the time limit, not the exit status.
func TestRun_ReleaseUnconfirmed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r, end := begin(t, proxy.Endpoints(), append([]string{"x", "--ttl=30s", "--"}, section...)...)
	pid, _ := r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	end()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, hang, time.Millisecond, "ended and reaped")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM), "whoever does not want to wait for it")
	require.Zero(t, r.wait(t))
	require.Equal(t, "etcdlock: x: etcd does not answer: the lock is free when its lease ends, a TTL from now at the latest\n", r.stderr.String())
}
