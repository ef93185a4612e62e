// Package outcome has the values of labels and attributes that say how waits and holds
// end. They are few and do not change.
package outcome

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

// The outcomes that are not failures.
const (
	Granted       = "granted"
	Released      = "released"
	Locked        = "locked"         // of a TryLock
	Cancelled     = "cancelled"      // by ctx, or by Ticket.Cancel
	SessionClosed = "session_closed" // closed or orphaned
)

// Of returns the outcome for an error that was passed to a hook.
func Of(err error) string {
	switch {
	case errors.Is(err, etcdlock.ErrSessionExpired):
		return "session_expired"
	case errors.Is(err, etcdlock.ErrSessionClosed):
		return SessionClosed
	case errors.Is(err, etcdlock.ErrLost):
		return "removed" // another client removed the entry
	case errors.Is(err, etcdlock.ErrLocked):
		return Locked
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled), errors.Is(err, etcdlock.ErrNotHeld):
		return Cancelled
	}
	return "error" // etcd has refused the request
}

// Mode returns "shared" or "exclusive".
func Mode(a etcdlock.Acquisition) string {
	if a.Read {
		return "shared"
	}
	return "exclusive"
}
