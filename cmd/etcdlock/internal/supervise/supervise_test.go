//go:build unix

package supervise

import (
	"errors"
	"os"
	"testing"
	"time"

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
