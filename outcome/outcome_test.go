package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/outcome"
)

// The words are what dashboards and alerts ask for, and the cause of a session's end comes before what follows from it.
func TestOf(t *testing.T) {
	for _, c := range []struct {
		word string
		err  error
	}{
		{"locked", etcdlock.ErrLocked},
		{"timeout", context.DeadlineExceeded},
		{"cancelled", context.Canceled},
		{"cancelled", etcdlock.ErrNotHeld},
		{"session_closed", errors.Join(etcdlock.ErrLost, etcdlock.ErrSessionClosed)},
		{"session_expired", errors.Join(etcdlock.ErrLost, etcdlock.ErrSessionExpired)},
		{"session_expired", errors.Join(context.Canceled, etcdlock.ErrSessionExpired)},
		{"removed", etcdlock.ErrLost},
		{"removed", errors.Join(context.Canceled, etcdlock.ErrLost)},
		{"error", errors.New("etcdserver: permission denied")},
	} {
		require.Equal(t, c.word, outcome.Of(fmt.Errorf("lock %q: %w", "a", c.err)), c.err)
	}
}

func TestMode(t *testing.T) {
	require.Equal(t, "exclusive", outcome.Mode(etcdlock.Acquisition{}))
	require.Equal(t, "shared", outcome.Mode(etcdlock.Acquisition{Read: true}))
	require.Equal(t, "elector", outcome.Mode(etcdlock.Acquisition{Elector: true}))
}
