//go:build unix

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// When somebody takes the lock away, the command is asked to end and then killed.
func TestRun_Broken(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	takeAway := func() {
		_, err := client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
		require.NoError(t, err)
	}
	r := start(t, env, "run", "x", "--ttl=30s", "--grace=4s", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	takeAway()
	r.until(t, "^TERM$")
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, fmt.Sprintf(`^etcdlock: x: sh: lock lost; process group %[1]d gets SIGTERM, and SIGKILL in [\d.]+s
etcdlock: x: killing process group %[1]d
etcdlock: x: the lock was not held all the time that sh ran: lock lost
$`, max(pids[0], 0)), strings.ReplaceAll(r.stderr.String(), fmt.Sprint(pids[1]), fmt.Sprint(pids[0])))
	requireDead(t, pids...)

	// A command that ends with 0 when it is asked to has still lost the lock.
	r = start(t, env, "run", "x", "--ttl=60s", "--grace=20s", "--", "sh", "-c", `trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	r.until(t, "ready")
	takeAway()
	require.Equal(t, 76, r.wait(t))
	require.Equal(t, "ready\nTERM", r.output())
	require.NotContains(t, r.stderr.String(), "killed")

	// A command that is stopped is asked, too.
	r = start(t, env, "run", "x", "--ttl=60s", "--grace=20s", "--", "sh", "-c", `trap "echo TERM; exit 0" TERM; echo $$; while :; do sleep 0.01; done`)
	pid := int(mustInt(r.until(t, `^(\d+)$`)[1]))
	require.NoError(t, syscall.Kill(-pid, syscall.SIGSTOP))
	takeAway()
	r.until(t, "^TERM$")
	require.Equal(t, 76, r.wait(t))

	// Without a grace period nothing is asked.
	r = start(t, env, "run", "x", "--grace=0s", "--", "sh", "-c", stubborn)
	pids = r.stubbornPids(t)
	takeAway()
	require.Equal(t, 76, r.wait(t))
	require.NotContains(t, r.output(), "TERM")
	requireDead(t, pids...)
	noKeys(t, client)
}

// The command is ended as usual when nobody reads standard error.
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

// The lock, or its lease, is taken away and the command ends while etcdlock is stopped. Whichever it
// sees first, the lock was not held all the time.
func TestRun_LostUnseen(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for i := range sample.Rounds(t, 2, 6) {
		r, end := begin(t, cluster.Endpoints(), append([]string{"x", "--ttl=60s", "--"}, section...)...)
		r.inSection(t)
		r.stop(t)
		key := waiters(t, client, "x", 1)[0]
		if i%2 == 0 {
			require.NoError(t, second(client.Delete(bounded(t), key)))
		} else {
			got, err := client.Get(bounded(t), key)
			require.NoError(t, err)
			require.NoError(t, second(client.Revoke(bounded(t), clientv3.LeaseID(got.Kvs[0].Lease))))
		}
		end()
		r.until(t, "^out$")
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
		require.Equal(t, 76, r.wait(t))
		require.Contains(t, r.stderr.String(), "etcdlock: x: the lock was not held all the time that sh ran: ")
	}
	noKeys(t, client)
}

// When etcd can't be reached, the command is asked to end in time, and is dead before
// anybody else has the lock.
func TestRun_EtcdAway(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(proxy.Endpoints(), ",")}, "run", "x", "--ttl=18s", "--grace=6s", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	outlived, free := contend(t, client, "x")
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	r.until(t, "^TERM$")
	require.Len(t, waiters(t, client, "x", 2), 2, "the lease lives yet")
	require.False(t, outlived(pids...))
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, `^etcdlock: x: sh: etcd has not confirmed the lock in time(: [^\n]+)?; process group \d+ gets SIGTERM, and SIGKILL in [\d.]+m?s
(etcdlock: x: killing process group \d+
)?etcdlock: x: the lock was not held all the time that sh ran: .+\n$`, r.stderr.String())
	free()
	noKeys(t, client)
}

// It also says why etcd has not answered, in the lines that somebody reads in the morning.
func TestRun_EtcdAwayAndWhy(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "run", "x", "--ttl=12s", "--grace=3s", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; exec sleep 1000")
	r.inSection(t)
	proxy.Refuse()
	proxy.Reset()
	require.Equal(t, 76, r.wait(t))
	const why = `etcd has not confirmed the lock in time: no connection to etcd: [^\n]+`
	require.Regexp(t, `^etcdlock: x: sh: `+why+`; process group \d+ gets SIGTERM, and SIGKILL in [^\n]+
etcdlock: x: the lock was not held all the time that sh ran: `+why+`\n$`, r.stderr.String())
}

// Changes of the leader, and members that stop and come back, have no effect.
func TestRun_LeaderChange(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	r, end := begin(t, cluster.Endpoints(), append([]string{"x", "--ttl=30s", "--"}, section...)...) // an election takes its time on a busy machine
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

// kill -9 of the process that holds the lock ends the command and everything that it has
// started, long before the lease ends.
func TestRun_Killed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=10s", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	outlived, free := contend(t, client, "x")
	require.NoError(t, r.cmd.Process.Kill())
	require.False(t, outlived(pids...))
	require.Equal(t, -1, r.wait(t))
	free()
}

// A waiter whose session is lost queues again.
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
	require.Regexp(t, `^(etcdlock: x: waiting: .*\n)*$`, r.stderr.String())
	noKeys(t, client)
}

// If etcd is away at the very end, the exit status is still the command's, and two signals change nothing.
func TestRun_ReleaseUnconfirmed(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r, end := begin(t, proxy.Endpoints(), append([]string{"x", "--ttl=30s", "--"}, section...)...)
	pid, _ := r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	end()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, hang, time.Millisecond, "ended and reaped")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} { // whoever does not want to wait for it
		require.NoError(t, r.cmd.Process.Signal(sig))
	}
	require.Zero(t, r.wait(t))
	require.Equal(t, "etcdlock: x: etcd does not answer: the lock becomes free when its lease ends, at most a TTL from now\n", r.stderr.String())
}

// The same if the lock can't be vouched for any more by the time that the release is given up: it was held when the command ended.
func TestRun_ReleaseUnconfirmedAtTheDeadline(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r, end := begin(t, proxy.Endpoints(), append([]string{"x", "--ttl=5s", "--grace=0s", "--"}, section...)...) // the deadline comes before releaseTimeout
	r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	end()
	require.Zero(t, r.wait(t), r.stderr.String())
	require.Equal(t, "etcdlock: x: etcd does not answer: the lock becomes free when its lease ends, at most a TTL from now\n", r.stderr.String())
}
