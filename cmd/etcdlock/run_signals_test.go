//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// Signals reach the command and the processes that it has started.
func TestRun_Signals(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	script := `for s in HUP INT QUIT USR1 USR2; do trap "echo $s in $0" $s; done; trap "echo TERM in $0; exit 3" TERM
		if [ $0 = parent ]; then sh -c "$1" child & fi
		echo ready $0; while :; do sleep 0.02; done`
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=60s", "--grace=20s", "--", "sh", "-c", script, "parent", script)
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
		require.Regexp(t, `^(etcdlock: x: waiting: 1 ahead, held by .*\n)?etcdlock: ended by signal: [a-z]+\n$`, r.stderr.String())
		require.Empty(t, r.output())
		waiters(t, client, "x", 1)
	}
	end()
	require.Zero(t, holder.wait(t))
	noKeys(t, client)
}

// A process that was started to ignore SIGHUP, as by nohup, still ignores it.
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
