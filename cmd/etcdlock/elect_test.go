//go:build unix

package main

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// candidate starts `etcdlock elect` with a command that prints its process and token.
func candidate(t *testing.T, endpoints []string, args ...string) *invocation {
	t.Helper()
	return start(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(endpoints, ",")},
		append(append([]string{"elect", "svc"}, args...), "--", "sh", "-c", `echo in $$ $ETCDLOCK_TOKEN; exec sleep 1000`)...)
}

// One of three candidates runs its command. When it is ended, the next one does.
func TestElect(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	var all []*invocation
	for i := range 3 {
		all = append(all, candidate(t, cluster.Endpoints()))
		waiters(t, client, "svc", i+1)
	}
	var pids []int
	var tokens []int64
	for i, r := range all {
		pid, token := r.inSection(t)
		require.False(t, slices.ContainsFunc(pids, alive), "the command of the last leader has ended")
		pids, tokens = append(pids, pid), append(tokens, token)
		require.Len(t, waiters(t, client, "svc", 3-i), 3-i)
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 143, r.wait(t), "the command's own")
		require.Contains(t, r.stderr.String(), "etcdlock: svc: leads with token ")
	}
	require.True(t, slices.IsSorted(tokens))
	noKeys(t, client)
}

// A command that ends by itself ends the term and elect, with its exit status.
func TestElect_CommandEnds(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	for script, status := range map[string]int{"true": 0, "exit 9": 9, "kill -9 $$": 137} {
		r := start(t, env, "elect", "svc", "--", "sh", "-c", script)
		require.Equal(t, status, r.wait(t))
	}
	r := start(t, env, "elect", "svc", "--", "no-such")
	require.Equal(t, 127, r.wait(t))
	r = start(t, env, "elect", "svc/", "--", "true")
	require.Equal(t, 125, r.wait(t))
	require.Equal(t, `etcdlock: run elector "svc/": invalid lock name: it ends in "/", and without that it is the name of another lock`+"\n", r.stderr.String(), "the name once")
	noKeys(t, client)

	leader := candidate(t, cluster.Endpoints())
	leader.inSection(t)
	waiting := candidate(t, cluster.Endpoints())
	waiters(t, client, "svc", 2)
	require.NoError(t, waiting.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, waiting.wait(t), "while it campaigns")
	require.Regexp(t, `^(etcdlock: svc: waiting: 1 ahead, held by .*\n)?etcdlock: ended by signal: terminated\n$`, waiting.stderr.String())
	waiters(t, client, "svc", 1)
	require.NoError(t, leader.cmd.Process.Signal(syscall.SIGTERM))
	leader.wait(t)
	noKeys(t, client)
}

// A candidate that has lost the lead campaigns and leads again.
func TestElect_Again(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := candidate(t, cluster.Endpoints(), "--ttl=60s")
	first, token1 := r.inSection(t)
	_, err := client.Delete(bounded(t), waiters(t, client, "svc", 1)[0])
	require.NoError(t, err)
	second, token2 := r.inSection(t)
	require.Greater(t, token2, token1)
	require.NotEqual(t, first, second)
	require.False(t, alive(first))
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, r.wait(t))
	require.Regexp(t, `etcdlock: svc: leads with token \d+, starts sh
etcdlock: svc: sh: lock lost; process group \d+ gets SIGTERM, and SIGKILL in 12s
etcdlock: svc: sh has ended after the lead was lost \(lock lost\): waiting to lead again
(etcdlock: svc: waiting.*\n)*etcdlock: svc: leads with token \d+, starts sh\n$`, r.stderr.String())
	noKeys(t, client)
}

// SIGHUP and SIGQUIT do not ask elect to end if its command handles them. It campaigns
// again when it loses the lead later. While it waits, they end it.
func TestElect_HandledSignals(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "elect", "svc", "--",
		"sh", "-c", `ulimit -c 0; for s in HUP QUIT; do trap "echo $s" $s; done; echo in $$ $ETCDLOCK_TOKEN; while :; do sleep 0.02; done`)
	_, token := r.inSection(t)
	for sig, says := range map[syscall.Signal]string{syscall.SIGHUP: "^HUP$", syscall.SIGQUIT: "^QUIT$"} {
		require.NoError(t, r.cmd.Process.Signal(sig))
		r.until(t, says)
		_, err := client.Delete(bounded(t), waiters(t, client, "svc", 1)[0])
		require.NoError(t, err)
		_, next := r.inSection(t)
		require.Greater(t, next, token)
		token = next
	}
	// An elect that waits has no command to pass them on to.
	for sig, status := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGQUIT: 131} {
		standby := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "elect", "svc", "--", "true")
		waiters(t, client, "svc", 2)
		require.NoError(t, standby.cmd.Process.Signal(sig))
		require.Equal(t, status, standby.wait(t))
		waiters(t, client, "svc", 1)
	}
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, r.wait(t))
	noKeys(t, client)
}

// The command of a leader that is cut off is dead before the next one leads. The leader
// campaigns again when it can reach etcd.
func TestElect_CutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	cutOff := candidate(t, proxy.Endpoints(), "--ttl=12s", "--grace=500ms", "--dial-timeout=4s")
	pid, _ := cutOff.inSection(t)
	next := candidate(t, cluster.Endpoints())
	waiters(t, client, "svc", 2)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	next.inSection(t)
	require.False(t, alive(pid))
	proxy.Heal()
	waiters(t, client, "svc", 2)
	require.NoError(t, next.cmd.Process.Signal(syscall.SIGTERM))
	next.wait(t)
	cutOff.inSection(t)
	require.NoError(t, cutOff.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, cutOff.wait(t))
	require.Regexp(t, `(?s)^etcdlock: svc: leads with token \d+, starts sh
etcdlock: svc: sh: [^\n]*
(etcdlock: svc: killing[^\n]*
)?etcdlock: svc: sh has ended after the lead was lost [^\n]*: waiting to lead again
(etcdlock: svc: (waiting|etcd answers again)[^\n]*\n)*etcdlock: svc: leads with token \d+, starts sh
$`, cutOff.stderr.String())
	noKeys(t, client)
}

// elect ends when it is asked to while etcd is away, and does not campaign again.
func TestElect_AskedWhileCutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "elect", "svc", "--ttl=12s", "--grace=4s", "--",
		"sh", "-c", `trap "echo TERM" TERM; echo in $$ $ETCDLOCK_TOKEN; while :; do sleep 0.02; done`)
	r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	r.until(t, "^TERM$")
	require.Equal(t, 137, r.wait(t), "it did not end by itself")
}

// elect ends soon after its command when etcd is away, with the command's status, and says what it leaves. So it does while
// it waits to lead. Nobody waits for it to end for as long as this TTL.
func TestElect_LeavesWhileCutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	proxy := cluster.Proxy(t)
	const left = "etcdlock: svc: etcd does not answer: what it has of this command in the queue ends with the lease, at most a TTL from now\n"
	asked := candidate(t, proxy.Endpoints(), "--ttl=600s")
	asked.inSection(t)
	waits := candidate(t, proxy.Endpoints(), "--ttl=600s")
	waiters(t, client, "svc", 2)
	itself, end := beginAs(t, "elect", proxy.Endpoints(), "other", "--ttl=600s", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; exit 9")
	itself.inSection(t)
	proxy.Blackhole(etcdtest.Both)
	require.NoError(t, asked.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, asked.wait(t), "the command's own")
	require.Regexp(t, `^etcdlock: svc: leads with token \d+, starts sh\n`+left+"$", asked.stderr.String())
	end()
	require.Equal(t, 9, itself.wait(t), itself.stderr.String())
	require.Contains(t, itself.stderr.String(), "etcdlock: other: etcd does not answer: ")
	require.NoError(t, waits.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, waits.wait(t))
	require.Regexp(t, left+"etcdlock: ended by signal: terminated\n$", waits.stderr.String())
}

// A command that ends by itself while etcd is away is not started again, although
// nobody knows whether the lead lasted.
func TestElect_EndsWhileCutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r, end := beginAs(t, "elect", proxy.Endpoints(), "svc", "--ttl=9s", "--grace=0s", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; exit 9")
	r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	end()
	require.Equal(t, 9, r.wait(t), r.stderr.String())
	require.Len(t, r.lines, 1, "started once")
}

// Two signals after that end elect before its release is confirmed. The exit status is still the command's.
func TestElect_SignalledWhileCutOff(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r, end := beginAs(t, "elect", proxy.Endpoints(), "svc", "--ttl=60s", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; exit 9")
	pid, _ := r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	end()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, hang, time.Millisecond, "ended and reaped")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		require.NoError(t, r.cmd.Process.Signal(sig))
	}
	require.Equal(t, 9, r.wait(t), r.stderr.String())
}

// elect campaigns again also if etcd comes back after the command was ended and before
// the lead was lost.
func TestElect_EndedInTime(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + proxy.Endpoints()[0]}, "elect", "svc", "--ttl=12s", "--grace=4s", "--",
		"sh", "-c", `trap "echo TERM; exit 0" TERM; echo in $$ $ETCDLOCK_TOKEN; while :; do sleep 0.02; done`)
	_, token1 := r.inSection(t)
	proxy.Blackhole(etcdtest.ToServer)
	proxy.Refuse()
	r.until(t, "^TERM$")
	proxy.Heal()
	_, token2 := r.inSection(t)
	require.Greater(t, token2, token1)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, r.wait(t))
	require.Contains(t, r.stderr.String(), "etcd has not confirmed the lock in time")
}
