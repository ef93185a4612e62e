//go:build unix

package supervise

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of the command cover the rest, as users run it.

func TestMain(m *testing.M) {
	if IsGuard() {
		os.Exit(Guard())
	}
	os.Exit(m.Run())
}

// A lateLock is renewed or lost after its deadline was read a few times.
type lateLock struct {
	looks int
	done  chan struct{}
	lost  error
}

func (l *lateLock) Deadline() time.Time {
	l.looks++
	switch {
	case l.looks < 3:
	case l.lost == nil:
		return time.Now().Add(time.Minute)
	case l.looks == 3:
		close(l.done)
	}
	return time.Now().Add(time.Second)
}

func (l *lateLock) Done() <-chan struct{} { return l.done }

func (l *lateLock) Err() error {
	if l.looks < 3 {
		return nil
	}
	return l.lost
}

// The lock is granted when less than the grace period is left until its deadline. The
// command is started after the next renewal, and not without one.
func TestRun_RenewedLate(t *testing.T) {
	c := Command{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 7"}, Env: os.Environ(), Grace: 2 * time.Second, Say: t.Logf}
	o, err := Run(&lateLock{done: make(chan struct{})}, make(chan os.Signal), c)
	require.NoError(t, err)
	require.Equal(t, 7, o.Status)
	require.NoError(t, o.Lost)

	lost := errors.New("lost")
	_, err = Run(&lateLock{done: make(chan struct{}), lost: lost}, make(chan os.Signal), c)
	require.ErrorIs(t, err, lost)
}

// A brokenLock is lost when done is closed, long before its deadline.
type brokenLock struct{ done chan struct{} }

func (l brokenLock) Deadline() time.Time   { return time.Now().Add(time.Minute) }
func (l brokenLock) Done() <-chan struct{} { return l.done }
func (l brokenLock) Err() error {
	select {
	case <-l.done:
		return errors.New("lost")
	default:
		return nil
	}
}

// Say may block, as where nobody reads what it writes. The command is asked to end, and is killed, before that.
func TestRun_SignalsBeforeItSays(t *testing.T) {
	for ends, grace := range map[string]time.Duration{"exit 0": 30 * time.Second, ":": time.Second} {
		ready, asked := filepath.Join(t.TempDir(), "ready"), filepath.Join(t.TempDir(), "asked")
		there := func(file string) bool { _, err := os.Stat(file); return err == nil }
		lock := brokenLock{make(chan struct{})}
		go func() { // until the command is ready
			assert.Eventually(t, func() bool { return there(ready) }, time.Minute, time.Millisecond)
			close(lock.done)
		}()
		script := `exec 2>/dev/null; trap ': >"$1"; ` + ends + `' TERM; : >"$0"; while :; do sleep 0.01; done`
		pid, killed := 0, false
		c := Command{Path: "/bin/sh", Args: []string{"sh", "-c", script, ready, asked}, Env: os.Environ(), Grace: grace}
		c.Say = func(format string, args ...any) {
			if strings.HasPrefix(format, "killing") {
				killed = true
				pid = args[0].(int)
				require.Eventually(t, func() bool { return zombie(pid) }, time.Minute, time.Millisecond)
				return
			}
			require.Eventually(t, func() bool { return there(asked) }, time.Minute, time.Millisecond)
		}
		o, err := Run(lock, make(chan os.Signal), c)
		require.NoError(t, err)
		require.ErrorContains(t, o.Lost, "lost")
		require.Equal(t, ends == ":", killed)
	}
}

// zombie reports whether the process has ended, and is not reaped.
func zombie(pid int) bool {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}
