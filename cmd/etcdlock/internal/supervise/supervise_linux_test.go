package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A program that is no guard, whatever it does, guards nothing: the command is not started.
func TestRun_NoGuard(t *testing.T) {
	own, timeout := self, answerTimeout
	defer func() { self, answerTimeout = own, timeout }()
	answerTimeout = 100 * time.Millisecond
	dir := t.TempDir()
	for what, script := range map[string]string{
		"ends":             "exit 0",
		"says other words": "echo 'usage: another program than this one'",
		"hangs":            "exec sleep 1000",
		"is removed":       "",
	} {
		self = filepath.Join(dir, what)
		if script != "" {
			require.NoError(t, os.WriteFile(self, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		}
		started := filepath.Join(dir, what+" started")
		c := Command{Path: "/bin/sh", Args: []string{"sh", "-c", `: >"$0"`, started}, Env: os.Environ(), Grace: time.Second, Say: t.Logf}
		lock := &lateLock{looks: 3, done: make(chan struct{})}
		_, err := Run(lock, make(chan os.Signal), c)
		require.ErrorContains(t, err, "start the guard process: ", what)
		require.NoFileExists(t, started)
	}
	self, answerTimeout = own, timeout
	o, err := Run(&lateLock{looks: 3, done: make(chan struct{})}, make(chan os.Signal),
		Command{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 7"}, Env: os.Environ(), Grace: time.Second, Say: t.Logf})
	require.NoError(t, err)
	require.Equal(t, 7, o.Status)
}

// A guard that was started while the command runs, and turns out to be none, is replaced when it is told the next
// deadline.
func TestRun_GuardReplaced(t *testing.T) {
	own, timeout := self, answerTimeout
	defer func() { self, answerTimeout = own, timeout }()
	self = filepath.Join(t.TempDir(), "another program")
	require.NoError(t, os.WriteFile(self, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	answerTimeout = 100 * time.Millisecond
	none, err := startGuard(0, time.Time{})
	require.NoError(t, err)
	require.Error(t, none.listens())
	self, answerTimeout = own, timeout
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, sleeper.Start())
	s := &supervisor{pid: sleeper.Process.Pid, guard: none}
	s.tellGuard(time.Now().Add(time.Minute))
	require.NotSame(t, none, s.guard)
	require.NoError(t, s.guard.listens())
	require.False(t, s.guard.failed())
	_ = s.guard.pipe.Close() // as if this process had died
	require.Error(t, sleeper.Wait(), "it was killed")
	s.guard.end()
}

// A stoppingLock stops this process when Run has just started the command.
type stoppingLock struct{}

func (stoppingLock) Deadline() time.Time { return time.Now().Add(2 * time.Second) }
func (stoppingLock) Err() error          { return nil }
func (stoppingLock) Done() <-chan struct{} {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	defer signal.Stop(woken)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-woken
	return nil
}

// Also a command that has just been started, and whose group the guard was not told yet, does not outlive the lock. A process
// that has left the session goes on.
func TestRun_StoppedAtOnce(t *testing.T) {
	const stops = "TEST_STOPS_AT_ONCE"
	if os.Getenv(stops) != "" {
		script := "setsid sleep 1000 & echo $!; sleep 1000 & echo $$; wait"
		c := Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Grace: time.Second, Say: t.Logf}
		o, err := Run(stoppingLock{}, make(chan os.Signal), c)
		require.NoError(t, err)
		require.Equal(t, 128+int(syscall.SIGKILL), o.Status)
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), stops+"=1")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var left, group int
	_, err = fmt.Fscan(out, &left, &group)
	require.NoError(t, err)
	defer func() { _ = syscall.Kill(left, syscall.SIGKILL) }()
	require.Eventually(t, func() bool { return onlyDead(group) }, time.Minute, time.Millisecond)
	state := func(pid int) string {
		s, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		return s.state
	}
	require.Equal(t, "T", state(c.Process.Pid))
	require.Equal(t, "S", state(left))
	require.NoError(t, c.Process.Signal(syscall.SIGCONT))
	require.NoError(t, c.Wait())
}

// A group counts as dead only if all that is left of it was seen, and is dead.
func TestOnlyDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a) Z 1 1") // a name like the fields after it
	require.NoError(t, os.Symlink("/bin/sh", path))
	c := exec.Command(path, "-c", "read line")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	group := c.Process.Pid
	require.False(t, onlyDead(group))
	require.NoError(t, syscall.Kill(-group, syscall.SIGKILL))
	require.Eventually(t, func() bool { return onlyDead(group) }, time.Minute, time.Millisecond)
	require.Error(t, c.Wait(), "it was killed")
	require.False(t, onlyDead(group), "nobody is left")

	stat := filepath.Join(t.TempDir(), "stat")
	require.NoError(t, os.WriteFile(stat, []byte("7 (x) Z"), 0o600))
	_, err = readStat(stat)
	require.ErrorContains(t, err, "has another form")
}
