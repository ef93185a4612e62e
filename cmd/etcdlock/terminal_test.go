//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// The command gets what is typed, and Ctrl-C.
func TestTerminal(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c", `trap "echo caught; exit 4" INT; read a; echo got $a; read b`)
	s.types(t, "hello\r")
	s.until(t, "got hello")
	s.types(t, ctrlC)
	s.until(t, "caught")
	require.Equal(t, 4, s.ends(t).ExitStatus())
	noKeys(t, client)

	s = onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c", "echo ready; exec cat")
	s.until(t, "ready")
	s.types(t, ctrlC)
	require.Equal(t, syscall.SIGINT, s.ends(t).Signal(), "as the command, so that loops of shells end")
	noKeys(t, client)

	// Nobody could continue it here, so Ctrl-Z stops nothing.
	s = onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "cat")
	s.echoes(t, "one")
	s.types(t, ctrlZ)
	s.until(t, "stopped; unless it continues within")
	s.echoes(t, "two")
	s.types(t, ctrlD)
	require.Zero(t, s.ends(t).ExitStatus())
	noKeys(t, client)
}

// A wait at a terminal says for whom, and Ctrl-Z and Ctrl-C stop and end it.
func TestTerminal_Waiting(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	holder := enqueued(t, client, "ann", "x")
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- echo in it\r")
	s.until(t, `etcdlock: x: waiting: 1 ahead, held by ann \(queued \d+s ago\)\r\n`)
	s.types(t, ctrlZ)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.untilLent(t)
	s.types(t, ctrlC)
	s.until(t, "etcdlock: ended by signal: interrupt")
	s.until(t, `ready> `)
	waiters(t, client, "x", 1)
	s.types(t, "$L run x -- echo in it\r")
	s.until(t, `etcdlock: x: waiting: 1 ahead, held by ann `)
	require.NoError(t, holder.Close())
	s.until(t, `in it\r\n`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	s.ends(t)
	noKeys(t, client)
}

// A command that is stopped for too long is killed before anybody else has the lock.
func TestTerminal_StoppedTooLong(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 9s -- sh -c 'echo in $$; cat; echo out'\r")
	pid := int(mustInt(s.until(t, `\nin (\d+)`)[1]))
	outlived, free := contend(t, client, "x")
	s.echoes(t, "at first")
	s.types(t, ctrlZ)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	require.False(t, outlived(pid))
	s.types(t, "fg\r")
	s.until(t, `etcdlock: x: the lock was not held all the time that sh ran: lock lost`)
	s.until(t, `ready> `)
	s.types(t, "echo status $?\r")
	s.until(t, "status 76")
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
	free()
}

// Editors read Ctrl-Z as a key and stop themselves by a signal that nobody can catch. The
// shell then gets the terminal, as after Ctrl-Z.
func TestTerminal_StopsItself(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; kill -STOP 0; echo on; cat'\r")
	s.until(t, `\nin`)
	s.until(t, `etcdlock: x: stopped`)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	s.types(t, "fg\r")
	s.until(t, `\non\r`)
	s.echoes(t, "hello")
	s.types(t, ctrlD)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())

	// It continues where nobody could continue it.
	s = onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c", "kill -STOP 0; echo on")
	s.until(t, `on\r`)
	require.Zero(t, s.ends(t).ExitStatus())
}

// Ctrl-C also reaches the processes that the command leaves, so they get no SIGTERM. A
// signal to the command alone does not reach them.
func TestTerminal_Leftovers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	sh := []string{"--", "sh", "-c", `sh -c 'trap "echo TERM; exit" TERM; echo in $PPID; while :; do sleep 0.02; done' & wait`}
	s := onConsole(t, cluster.Endpoints(), binary, append([]string{"run", "x", "--ttl=60s", "--grace=2s"}, sh...)...)
	s.until(t, `in \d+\r`)
	s.types(t, ctrlC)
	s.until(t, `etcdlock: x: killing process group \d+`)
	require.Equal(t, syscall.SIGINT, s.ends(t).Signal())
	<-s.closed
	require.NotContains(t, s.out.String(), "TERM")

	s = onConsole(t, cluster.Endpoints(), binary, append([]string{"run", "x", "--ttl=60s", "--grace=20s"}, sh...)...)
	pid := int(mustInt(s.until(t, `in (\d+)\r`)[1]))
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	// Two processes write these lines.
	s.until(t, `(?s)sh: it has ended and left processes in its group.*TERM\r|TERM\r.*sh: it has ended and left processes in its group`)
	require.Equal(t, 143, s.ends(t).ExitStatus())
}

// Ctrl-C ends a script that uses run in a loop, a pipeline, and the loop of an
// interactive shell.
func TestTerminal_Scripts(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for _, sh := range []string{"sh", "bash"} {
		s := onConsole(t, cluster.Endpoints(), sh, "-c", `while :; do $L run x -- sh -c 'echo in; read a; echo got $a'; done`)
		s.types(t, "hello\r")
		s.until(t, "got hello")
		s.until(t, "in")
		s.types(t, ctrlC)
		require.Equal(t, syscall.SIGINT, s.ends(t).Signal(), sh)
		noKeys(t, client)
	}
	// Afterwards the script can read the keyboard again.
	s := onConsole(t, cluster.Endpoints(), "sh", "-c", `$L run x -- sh -c 'read a; echo got $a'; read b; echo then $b`)
	s.types(t, "hello\r")
	s.until(t, "got hello")
	s.types(t, "bye\r")
	s.until(t, "then bye")
	require.Zero(t, s.ends(t).ExitStatus())

	s = shell(t, cluster.Endpoints())
	s.types(t, "while :; do $L run x -- sh -c 'echo in; exec cat'; done\r")
	s.until(t, `\nin`)
	s.types(t, ctrlC)
	s.until(t, `ready> `)
	s.types(t, "$L run x -- sh -c 'echo in; read a; echo got $a' | cat\r")
	s.until(t, `\nin`)
	s.types(t, "hello\r")
	s.until(t, `\ngot hello`)
	s.until(t, `ready> `)
	s.types(t, "$L run x -- sh -c 'echo in; exec sleep 1000' | cat\r")
	s.until(t, `\nin`)
	s.types(t, ctrlC)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	s.ends(t)
	noKeys(t, client)
}

// A program may change the mode of its terminal.
func TestTerminal_Modes(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, fmt.Sprintf("%s run x -- sh -c 'stty -echo; echo in; read a; stty echo; echo got $a'\r", binary))
	s.until(t, `\nin`)
	s.types(t, "hidden\r")
	s.until(t, `got hidden`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	s.ends(t)
	<-s.closed
	require.NotContains(t, strings.ReplaceAll(s.out.String(), "got hidden", ""), "hidden")
}
