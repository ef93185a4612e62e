//go:build unix

package main

import (
	"bytes"
	"context"
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
)

// A console is a program in a terminal with somebody who types.
type console struct {
	cmd    *exec.Cmd
	tty    *os.File
	mu     sync.Mutex
	out    bytes.Buffer
	seen   int           // length of the part of out that was matched
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
	go func() { // ends when the terminal is closed on either side
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

// types types a text.
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

// until waits for a match after the last one.
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

// ends waits for the end of the program.
func (s *console) ends(t *testing.T) syscall.WaitStatus {
	t.Helper()
	_ = s.cmd.Wait() // the status says it
	return s.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// shell is an interactive shell with job control.
func shell(t *testing.T, endpoints []string) *console {
	t.Helper()
	s := onConsole(t, endpoints, "bash", "--norc", "--noprofile", "--noediting", "-i")
	s.until(t, `ready> `)
	return s
}

// echoes types a line to `cat`, and waits for its answer after the terminal's echo. Only
// then can Ctrl-Z stop it: a shell that has just called vfork gets no signals.
func (s *console) echoes(t *testing.T, text string) {
	t.Helper()
	s.types(t, text+"\r")
	s.until(t, text+`\r\n(.*\n)*`+text+`\r\n`)
}

// untilStopped waits until the shell knows that its job has stopped.
func (s *console) untilStopped(t *testing.T) {
	t.Helper()
	for {
		s.types(t, "jobs; echo all jobs\r")
		if strings.Contains(s.until(t, `(?s)all jobs.*all jobs`)[0], "Stopped") {
			return
		}
	}
}

// untilLent waits until the shell has given the terminal to a job. An earlier Ctrl-C goes
// to the shell.
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
