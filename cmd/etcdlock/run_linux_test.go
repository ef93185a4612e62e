package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// These tests read /proc.

// A process that is stopped for too long can't end its command. The guard does, and a
// new guard if somebody has killed the first one.
func TestRun_Stopped(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=9s", "--grace=0s", "--", "sh", "-c", stubborn)
	pids := r.stubbornPids(t)
	guard := r.guard(t)
	require.Positive(t, guard)
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	require.Eventually(t, func() bool { g := r.guard(t); return g != guard && g != 0 }, hang, 5*time.Millisecond, "a new guard")
	outlived, free := contend(t, client, "x")
	r.stop(t)
	require.False(t, outlived(pids...))
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, 76, r.wait(t))
	require.Contains(t, r.stderr.String(), "etcdlock: x: the lock was not held all the time that sh ran: lock lost")
	free()
	noKeys(t, client)
}

// guard is the process ID of the guard, 0 if there is none at the moment.
func (r *invocation) guard(t *testing.T) int {
	t.Helper()
	for _, pid := range children(t, r.cmd.Process.Pid) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "run-guard") {
			return pid
		}
	}
	return 0
}

func children(t *testing.T, of int) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", of))
	require.NoError(t, err)
	for _, f := range tasks {
		list, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(list)) {
			pid, err := strconv.Atoi(f)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// Somebody who kills everything called etcdlock also kills the guard. Then the kernel
// still kills the command itself.
func TestRun_KilledWithGuard(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r, _ := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	pid, _ := r.inSection(t)
	var guard int
	require.Eventually(t, func() bool { guard = r.guard(t); return guard != 0 }, hang, 5*time.Millisecond)
	r.stop(t) // so that it can't start another guard
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	require.NoError(t, r.cmd.Process.Kill())
	requireDead(t, pid)
	require.Equal(t, -1, r.wait(t))
}

// Processes that the command leaves in its group are ended before the lock is released.
// The exit status is still the command's.
//
// (The shell uses `wait`, because a trap runs only after a foreground command has
// ended.)
func TestRun_Leftovers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=30s", "--grace=4s", "--", "sh", "-c",
		`sh -c 'trap "echo TERM" TERM; echo $$; while :; do sleep 1000 & wait $!; done' & sleep 1000 & wait $!; exit 5`)
	child := int(mustInt(r.until(t, `^(\d+)$`)[1]))
	outlived, free := contend(t, client, "x")
	// End the process that the command waits for.
	group, err := syscall.Getpgid(child)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(children(t, group)) == 2 }, hang, 5*time.Millisecond)
	for _, pid := range children(t, group) {
		if pid != child {
			require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		}
	}
	r.until(t, "^TERM$")
	require.False(t, outlived(child))
	require.Equal(t, 5, r.wait(t))
	require.Regexp(t, `sh: it has ended and left processes in its group; process group \d+ gets SIGTERM, and SIGKILL in 4s`, r.stderr.String())
	free()
	noKeys(t, client)
}

// A process that leaves the group, as a daemon does, has a dead child in the group, and does not reap it. The child blocks nothing.
func TestRun_DeadLeftover(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r, end := begin(t, cluster.Endpoints(), "x", "--grace=0s", "--", "sh", "-c",
		`( sleep 0.1 & echo child $!; exec setsid sleep 1000 >/dev/null 2>&1 ) & echo daemon $!; read line; exit 5`)
	pids := make(map[string]int)
	for range 2 {
		m := r.until(t, `^(child|daemon) (\d+)$`)
		pids[m[1]] = int(mustInt(m[2]))
	}
	t.Cleanup(func() { _ = syscall.Kill(pids["daemon"], syscall.SIGKILL) })
	untilState(t, pids["child"], "Z")
	end()
	require.Equal(t, 5, r.wait(t), r.stderr.String())
	require.True(t, alive(pids["daemon"]))
	require.Regexp(t, `^etcdlock: x: sh: it has ended and left processes in its group\netcdlock: x: killing process group \d+\n$`, r.stderr.String())
	noKeys(t, client)
}

// These processes also get SIGTERM if an earlier signal meant something else to them
// and to the command (SIGHUP: read files again), and if somebody has ended the command
// alone.
func TestRun_LeftoversAsked(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	child := `trap "" HUP; trap "echo TERM; exit" TERM; echo in $$; while :; do sleep 0.02; done`
	for _, c := range []struct {
		sig    syscall.Signal
		alone  bool
		status int
		script string
	}{
		{syscall.SIGHUP, false, 5, `exec 2>/dev/null; trap hup=yes HUP; sh -c "$0" & until [ $hup ]; do sleep 0.02; done; sleep 4.2; exit 5`},
		{syscall.SIGTERM, true, 143, `exec 2>/dev/null; sh -c "$0" & wait`},
	} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=30s", "--grace=4s", "--", "sh", "-c", c.script, child)
		pid := int(mustInt(r.until(t, `^in (\d+)$`)[1]))
		to := r.cmd.Process.Pid
		if c.alone {
			var err error
			to, err = syscall.Getpgid(pid) // the command leads the group
			require.NoError(t, err)
		}
		require.NoError(t, syscall.Kill(to, c.sig))
		r.until(t, "^TERM$")
		require.Equal(t, c.status, r.wait(t), c.sig)
		require.Regexp(t, `^etcdlock: x: sh: it has ended and left processes in its group; process group \d+ gets SIGTERM, and SIGKILL in 4s\n$`, r.stderr.String())
		requireDead(t, pid)
	}
	noKeys(t, client)
}

// Somebody signals etcdlock together with its command, as systemd does, and etcdlock
// sees the signals after the command has ended. It still releases the lock, and ends
// with the status of the command.
func TestRun_SignalledAtTheEnd(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, subcommand := range []string{"run", "elect"} {
		for range sample.Rounds(t, 3, 10) {
			r, end := beginAs(t, subcommand, cluster.Endpoints(), "x", "--ttl=60s", "--", "sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; exit 9")
			pid, _ := r.inSection(t)
			r.stop(t)
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
				require.NoError(t, r.cmd.Process.Signal(sig))
			}
			end()
			untilState(t, pid, "Z")
			require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
			require.Equal(t, 9, r.wait(t), "%s: %s", subcommand, r.stderr.String())
			require.NotContains(t, r.stderr.String(), "does not answer")
			noKeys(t, client)
		}
	}
}

// untilState waits until a process is in a state such as "Z" (dead, not reaped).
func untilState(t *testing.T, pid int, state string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		return strings.Contains(string(stat), ") "+state+" ")
	}, hang, time.Millisecond)
}

// Processes that the command has left are reaped. In a container nobody else does that,
// and a dead process that nobody has reaped looks alive.
func TestRun_Reaps(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r, end := begin(t, cluster.Endpoints(), "x", "--", "sh", "-c", `(setsid sleep 1000 & echo $!); read line; true`)
	orphan := int(mustInt(r.until(t, `^(\d+)$`)[1]))
	require.Eventually(t, func() bool { return slices.Contains(children(t, r.cmd.Process.Pid), orphan) }, hang, 5*time.Millisecond)
	require.NoError(t, syscall.Kill(orphan, syscall.SIGKILL))
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(orphan, 0), syscall.ESRCH) }, hang, 5*time.Millisecond)
	end()
	require.Zero(t, r.wait(t))
}

// The file of the command is removed, or another program is put into its place, while run waits and elect leads, as a
// package manager does: the guard is started from the image that runs, and CMD dies with its lock as always.
func TestRun_ImageReplaced(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, subcommand := range []string{"run", "elect"} {
		for what, change := range map[string]func(path string) error{
			"removed": os.Remove,
			"replaced": func(path string) error {
				other := path + ".new"
				if err := os.WriteFile(other, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
					return err
				}
				return os.Rename(other, path)
			},
		} {
			t.Run(subcommand+" "+what, func(t *testing.T) {
				t.Parallel()
				name := subcommand + what
				own := filepath.Join(t.TempDir(), "etcdlock")
				// In this process a child of another test might have the file open for writing yet, and then nobody can run it.
				require.NoError(t, exec.Command("cp", binary, own).Run())
				outlived, free := contend(t, client, name)
				r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, subcommand, name, "--ttl=30s", "--grace=0s", "--", "sh", "-c", stubborn)
				r.cmd.Path = own
				r.launch(t)
				waiters(t, client, name, 2)
				require.NoError(t, change(own))
				require.False(t, outlived(), "it has the lock")
				free()
				pids := r.stubbornPids(t)
				guard := r.guard(t)
				require.Positive(t, guard)
				comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", guard))
				require.NoError(t, err)
				require.Equal(t, "etcdlock\n", string(comm))
				require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
				require.Eventually(t, func() bool { g := r.guard(t); return g != guard && g != 0 }, hang, 5*time.Millisecond, "a new guard")
				require.NoError(t, r.cmd.Process.Kill())
				requireDead(t, pids...)
			})
		}
	}
}

// Cron starts a short job on two machines, and the clock of one is behind: with --hold-for it finds the lock taken.
func TestRun_HoldFor(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	began := time.Now()
	first := start(t, env, "run", "x", "--try", "--hold-for=8s", "--", "sh", "-c", "echo in $$ 1; exit 7")
	pid, _ := first.inSection(t)
	requireDead(t, pid)
	second := start(t, env, "run", "x", "--try", "--hold-for=8s", "--", "echo", "in")
	require.Equal(t, 75, second.wait(t))
	require.Equal(t, 7, first.wait(t), first.stderr.String())
	require.GreaterOrEqual(t, time.Since(began), 8*time.Second)
	require.Empty(t, first.stderr.String())
	noKeys(t, client)

	// A signal ends that, and so does the loss of the lock. The status is CMD's.
	for what, end := range map[string]func(r *invocation){
		"": func(r *invocation) { require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM)) },
		"etcdlock: x: the lock was lost after sh had ended, and before --hold-for was over: lock lost\n": func(*invocation) {
			_, err := client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
			require.NoError(t, err)
		},
	} {
		r := start(t, env, "run", "x", "--hold-for=1h", "--", "sh", "-c", "echo in $$ 1; exit 7")
		pid, _ := r.inSection(t)
		require.Eventually(t, func() bool { return !alive(pid) && r.guard(t) == 0 }, hang, 5*time.Millisecond)
		end(r)
		require.Equal(t, 7, r.wait(t), r.stderr.String())
		require.Equal(t, what, r.stderr.String())
		noKeys(t, client)
	}
}

// A process that was stopped until --hold-for was over and the lease had expired has run CMD under the lock.
func TestRun_HoldForWhileStopped(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	env := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}
	r := start(t, env, "run", "x", "--ttl=8s", "--hold-for=12s", "--", "sh", "-c", "echo in $$ 1; exit 7")
	granted := time.Now()
	pid, _ := r.inSection(t)
	require.Eventually(t, func() bool { return !alive(pid) && r.guard(t) == 0 }, hang, 5*time.Millisecond)
	<-time.After(3 * time.Second) // it keeps the lock by now, however long the start of CMD took
	r.stop(t)
	waiters(t, client, "x", 0)
	<-time.After(time.Until(granted.Add(14 * time.Second)))
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, 7, r.wait(t), r.stderr.String())
	require.Regexp(t, `^etcdlock: x: the lock was lost after sh had ended, and before --hold-for was over: .*session expired`, r.stderr.String())
}
