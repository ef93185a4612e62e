// Package outcome names how waits and holds end, for labels and attributes: few
// words, which stay the same.
package outcome

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

// The words for ends that are nobody's failure.
const (
	Granted       = "granted"
	Released      = "released"
	Locked        = "locked"         // a Try
	Cancelled     = "cancelled"      // ctx, or a ticket
	SessionClosed = "session_closed" // or orphaned
)

// Of is the word for an error that a hook is told.
func Of(err error) string {
	switch {
	case errors.Is(err, etcdlock.ErrSessionExpired):
		return "session_expired"
	case errors.Is(err, etcdlock.ErrSessionClosed):
		return SessionClosed
	case errors.Is(err, etcdlock.ErrLost):
		return "removed" // the entry, by somebody else
	case errors.Is(err, etcdlock.ErrLocked):
		return Locked
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled), errors.Is(err, etcdlock.ErrNotHeld):
		return Cancelled
	}
	return "error" // etcd's refusal
}

// Mode is the word for the kind of an acquisition.
func Mode(a etcdlock.Acquisition) string {
	if a.Read {
		return "shared"
	}
	return "exclusive"
}
