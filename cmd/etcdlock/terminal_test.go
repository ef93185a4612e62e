package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A console is a program in a terminal, and somebody who types.
type console struct {
	cmd    *exec.Cmd
	tty    *os.File
	mu     sync.Mutex
	out    bytes.Buffer
	seen   int           // how much of out was matched
	more   chan struct{} // has room for one
	closed chan struct{}
}

// onConsole starts a program in a terminal of its own.
func onConsole(t *testing.T, endpoints []string, name string, args ...string) *console {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	s := &console{cmd: exec.CommandContext(ctx, name, args...), more: make(chan struct{}, 1), closed: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+strings.Join(endpoints, ","), "TERM=xterm-256color", "NO_COLOR=",
		"PS1=ready> ", "HISTFILE=", "GORACE=atexit_sleep_ms=100", "L="+binary)
	tty, err := pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 30, Cols: 100})
	require.NoError(t, err)
	s.tty = tty
	t.Cleanup(func() { _ = tty.Close() })
	go func() { // until the terminal is closed on either side
		defer close(s.closed)
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			s.mu.Lock()
			s.out.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
			select {
			case s.more <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

// types is what somebody types.
func (s *console) types(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(s.tty, text)
	require.NoError(t, err)
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

// until waits for what matches below what was matched before.
func (s *console) until(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		s.mu.Lock()
		all := s.out.String()
		if loc := re.FindStringSubmatchIndex(all[s.seen:]); loc != nil {
			m := re.FindStringSubmatch(all[s.seen:])
			s.seen += loc[1]
			s.mu.Unlock()
			return m
		}
		s.mu.Unlock()
		select {
		case <-s.more:
		case <-s.closed:
			s.mu.Lock()
			defer s.mu.Unlock()
			if all != s.out.String() {
				continue
			}
			require.FailNow(t, "nothing matches", "%s in:\n%s", pattern, all)
		}
	}
}

// ends waits for the program's end.
func (s *console) ends(t *testing.T) syscall.WaitStatus {
	t.Helper()
	_ = s.cmd.Wait() // its status tells
	return s.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// shell is an interactive shell with job control.
func shell(t *testing.T, endpoints []string) *console {
	t.Helper()
	s := onConsole(t, endpoints, "bash", "--norc", "--noprofile", "--noediting", "-i")
	s.until(t, `ready> `)
	return s
}

// echoes types a line to `cat`, and waits for its answer below the terminal's own.
// Only then can Ctrl-Z stop it: a shell that is just starting a program (by vfork)
// waits for that where no signal gets to it.
func (s *console) echoes(t *testing.T, text string) {
	t.Helper()
	s.types(t, text+"\r")
	s.until(t, text+`\r\n(.*\n)*`+text+`\r\n`)
}

// untilStopped waits for the shell to know that its job has stopped.
func (s *console) untilStopped(t *testing.T) {
	t.Helper()
	for {
		s.types(t, "jobs; echo all jobs\r")
		if strings.Contains(s.until(t, `(?s)all jobs.*all jobs`)[0], "Stopped") {
			return
		}
	}
}

// untilLent waits for the shell to have given the terminal to a job: Ctrl-C typed
// before that is the shell's.
func (s *console) untilLent(t *testing.T) {
	t.Helper()
	tty, err := s.tty.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var group int
		var gerr error
		require.NoError(t, tty.Control(func(fd uintptr) { group, gerr = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }))
		require.NoError(t, gerr)
		return group != s.cmd.Process.Pid
	}, hang, 5*time.Millisecond)
}

// The command has the keyboard, and Ctrl-C is for it.
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

	// Nobody could wake it up here, so Ctrl-Z stops nothing.
	s = onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "cat")
	s.echoes(t, "one")
	s.types(t, ctrlZ)
	s.until(t, "stopped; if it does not go on within")
	s.echoes(t, "two")
	s.types(t, ctrlD)
	require.Zero(t, s.ends(t).ExitStatus())
	noKeys(t, client)
}

// Somebody who waits at a terminal is told for whom, and may stop and end that.
func TestTerminal_Waiting(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	holder := enqueued(t, client, "ann", "x")
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- echo in it\r")
	s.until(t, `etcdlock: x: waiting: held by ann \(queued \d+s ago\)\r\n`)
	s.types(t, ctrlZ)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.untilLent(t)
	s.types(t, ctrlC)
	s.until(t, "etcdlock: ended by signal: interrupt")
	s.until(t, `ready> `)
	waiters(t, client, "x", 1)
	s.types(t, "$L run x -- echo in it\r")
	s.until(t, `etcdlock: x: waiting: held by ann `)
	require.NoError(t, holder.Close())
	s.until(t, `in it\r\n`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	s.ends(t)
	noKeys(t, client)
}

// Who is stopped for too long loses the lock, and is killed before others have it.
func TestTerminal_StoppedTooLong(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 2s -- sh -c 'echo in $$; cat; echo out'\r")
	pid := int(mustInt(s.until(t, `\nin (\d+)`)[1]))
	outlived, free := contend(t, client, "x")
	s.echoes(t, "at first")
	s.types(t, ctrlZ)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	require.False(t, outlived(pid))
	s.types(t, "fg\r")
	s.until(t, `etcdlock: x: the lock was not held for as long as sh ran: lock lost`)
	s.until(t, `ready> `)
	s.types(t, "echo status $?\r")
	s.until(t, "status 76")
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
	free()
}

// Editors take Ctrl-Z as a key and stop themselves, by a signal that nobody can
// see: the shell gets the terminal as at Ctrl-Z.
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

	// Where nobody could wake it up it goes on.
	s = onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c", "kill -STOP 0; echo on")
	s.until(t, `on\r`)
	require.Zero(t, s.ends(t).ExitStatus())
}

// Ctrl-C has come to what the command leaves as well, and is not repeated; a signal
// to the command alone has not.
func TestTerminal_Leftovers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	args := []string{"run", "x", "--ttl=6s", "--grace=2s", "--", "sh", "-c",
		`sh -c 'trap "echo TERM; exit" TERM; echo in $PPID; while :; do sleep 0.02; done' & wait`}
	s := onConsole(t, cluster.Endpoints(), binary, args...)
	s.until(t, `in \d+\r`)
	s.types(t, ctrlC)
	s.until(t, `etcdlock: x: process group \d+ is killed`)
	require.Equal(t, syscall.SIGINT, s.ends(t).Signal())
	<-s.closed
	require.NotContains(t, s.out.String(), "TERM")

	s = onConsole(t, cluster.Endpoints(), binary, args...)
	pid := int(mustInt(s.until(t, `in (\d+)\r`)[1]))
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	s.until(t, `etcdlock: x: sh: it ended and left processes behind`)
	s.until(t, `TERM\r`)
	require.Equal(t, 143, s.ends(t).ExitStatus())
}

// Ctrl-C ends a script that runs things under the lock in a loop, and a
// pipeline, and the loop of an interactive shell.
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
	// A script has the keyboard again afterwards.
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

// A program that puts its terminal into another mode may do so.
func TestTerminal_Modes(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, fmt.Sprintf("%s run x -- sh -c 'stty -echo; echo in; read a; stty echo; echo got $a'\r", binary))
	s.until(t, `\nin`)
	s.types(t, "hidden\r")
	s.until(t, `got hidden`)
	s.until(t, `ready> `)
	require.NotContains(t, strings.ReplaceAll(s.out.String(), "got hidden", ""), "hidden")
	s.types(t, "exit\r")
	s.ends(t)
}
