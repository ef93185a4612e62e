// Package outcome has the words for how waits and holds end, which metrics use as
// labels and spans as attributes.
package outcome

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

// The words for ends that are no failure.
const (
	Granted       = "granted"
	Released      = "released"
	Locked        = "locked"         // TryLock found the lock taken
	Cancelled     = "cancelled"      // the ctx or the Ticket
	SessionClosed = "session_closed" // or orphaned
)

// The words for entries that were taken away.
const (
	SessionExpired = "session_expired"
	Removed        = "removed" // by somebody else
)

// Of returns the word for an error that a hook gets.
func Of(err error) string {
	switch {
	case errors.Is(err, etcdlock.ErrSessionExpired):
		return SessionExpired
	case errors.Is(err, etcdlock.ErrSessionClosed):
		return SessionClosed
	case errors.Is(err, etcdlock.ErrLost):
		return Removed
	case errors.Is(err, etcdlock.ErrLocked):
		return Locked
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled), errors.Is(err, etcdlock.ErrNotHeld):
		return Cancelled
	}
	return "error" // etcd refused
}

// Mode returns the word for the kind of an acquisition.
func Mode(a etcdlock.Acquisition) string {
	switch {
	case a.Read:
		return "shared"
	case a.Elector:
		return "elector" // it may wait for as long as its process lives
	}
	return "exclusive"
}
