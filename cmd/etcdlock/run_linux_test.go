package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// These tests look into /proc.

// A process that is stopped for too long can't end its command: the guard does,
// and if somebody has killed that, another one.
func TestRun_Stopped(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=3s", "--grace=0s", "--", "sh", "-c", stubborn)
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

// guard is the process of the guard, 0 if there is none at the moment.
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

// Whoever kills all that is called etcdlock kills the guard too. Then there is still
// the kernel, for the command itself.
func TestRun_KilledWithGuard(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	r, _ := begin(t, cluster.Endpoints(), append([]string{"x", "--"}, section...)...)
	pid, _ := r.inSection(t)
	var guard int
	require.Eventually(t, func() bool { guard = r.guard(t); return guard != 0 }, hang, 5*time.Millisecond)
	r.stop(t) // it must not get another one
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	require.NoError(t, r.cmd.Process.Kill())
	requireDead(t, pid)
	require.Equal(t, -1, r.wait(t))
}

// What the command leaves in its process group is ended before the lock is given
// back; its exit status stays.
//
// (The shell waits by `wait`: a trap waits for a command in the foreground, and so
// for all of its time where the signal came just before it was started.)
func TestRun_Leftovers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=6s", "--grace=2s", "--", "sh", "-c",
		`sh -c 'trap "echo TERM" TERM; echo $$; while :; do sleep 1000 & wait $!; done' & sleep 1000 & wait $!; exit 5`)
	child := int(mustInt(r.until(t, `^(\d+)$`)[1]))
	outlived, free := contend(t, client, "x")
	// End the one that the command waits for.
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
	require.Regexp(t, `sh: it ended and left processes behind; process group \d+ gets SIGTERM, and SIGKILL in 2s`, r.stderr.String())
	free()
	noKeys(t, client)
}

// They get it as well if they, and the command, have long since taken a signal for
// something else (SIGHUP: read your files again), and if somebody has ended the
// command alone.
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
		{syscall.SIGHUP, false, 5, `exec 2>/dev/null; trap hup=yes HUP; sh -c "$0" & until [ $hup ]; do sleep 0.02; done; sleep 2.2; exit 5`},
		{syscall.SIGTERM, true, 143, `exec 2>/dev/null; sh -c "$0" & wait`},
	} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=6s", "--grace=2s", "--", "sh", "-c", c.script, child)
		pid := int(mustInt(r.until(t, `^in (\d+)$`)[1]))
		to := r.cmd.Process.Pid
		if c.alone {
			var err error
			to, err = syscall.Getpgid(pid) // the command leads it
			require.NoError(t, err)
		}
		require.NoError(t, syscall.Kill(to, c.sig))
		r.until(t, "^TERM$")
		require.Equal(t, c.status, r.wait(t), c.sig)
		require.Regexp(t, `^etcdlock: x: sh: it ended and left processes behind; process group \d+ gets SIGTERM, and SIGKILL in 2s\n$`, r.stderr.String())
		requireDead(t, pid)
	}
	noKeys(t, client)
}

// Somebody signals it together with its command, as systemd does, and it sees the
// signals after the command's end: that is no reason to keep the lock, or to hide
// how the command has ended.
func TestRun_SignalledAtTheEnd(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, subcommand := range []string{"run", "elect"} {
		for range 10 {
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

// untilState waits until a process is in a state, such as "Z", dead but not reaped.
func untilState(t *testing.T, pid int, state string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		return strings.Contains(string(stat), ") "+state+" ")
	}, hang, time.Millisecond)
}

// What the command leaves is reaped: as the first process of a container nobody
// else would do it, and what is dead and not reaped looks alive.
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

// Programs may look whether they are in the foreground before they read.
func TestTerminal_Foreground(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c",
		`group=a; while [ $group != "$front" ]; do sleep 0.01; read -r pid name state parent group session tty front rest </proc/$$/stat; done; echo in front`)
	s.until(t, "in front")
	require.Zero(t, s.ends(t).ExitStatus())
}

// Ctrl-Z, fg and bg, as for any job of a shell.
func TestTerminal_JobControl(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; cat; echo out'\r")
	s.until(t, `\nin`)
	s.echoes(t, "at first")
	s.types(t, ctrlZ)
	m := s.until(t, `etcdlock: x: stopped; if it does not go on within \d+(?:\.\d)?s, the lock is lost and process group (\d+) killed`)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	groupStopped(t, m[1])
	s.types(t, "fg\r")
	s.echoes(t, "hello")
	s.types(t, ctrlZ)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	groupStopped(t, m[1])
	s.types(t, "bg\r") // and cat stops again, since it reads
	s.until(t, `etcdlock: x: stopped`)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.echoes(t, "again")
	s.types(t, ctrlD)
	s.until(t, `out\r`)
	s.until(t, `ready> `)
	s.types(t, "echo status $?\r")
	s.until(t, "status 0")
	noKeys(t, client)

	// In the background from the start: it gets the terminal with fg.
	s.types(t, "$L run x -- sh -c 'echo in; read a; echo got $a' &\r")
	s.until(t, `etcdlock: x: stopped`)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.types(t, "hello\r")
	s.until(t, `got`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
	noKeys(t, client)
}

// groupStopped waits until every process of the group is stopped. The first one is
// enough for the shell to go on; but another, that reads from the terminal and has
// yet to see its signal, would still take the line that is typed next.
func groupStopped(t *testing.T, group string) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/stat")
		require.NoError(t, err)
		found := false
		for _, f := range files {
			stat, err := os.ReadFile(f)
			if err != nil {
				continue // it has ended
			}
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // state, parent, group
			if fields[2] == group {
				if found = true; fields[0] != "T" {
					return false
				}
			}
		}
		return found
	}, hang, 5*time.Millisecond)
}

// Ctrl-Z as soon as the command goes on: what wakes this process must not be passed on
// so late that it wakes the command from its next stop.
func TestTerminal_StoppedAtOnce(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; cat; echo out'\r")
	s.until(t, `\nin`)
	s.echoes(t, "at first")
	for i := range 10 {
		s.types(t, ctrlZ)
		m := s.until(t, `etcdlock: x: stopped; [^\n]* group (\d+) killed`)
		s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
		groupStopped(t, m[1])
		s.types(t, "fg\r")
		s.echoes(t, fmt.Sprint("line ", i))
	}
	s.types(t, ctrlD)
	s.until(t, `out\r`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
}
