// Package outcome has one word for each way in which a wait or a hold ends. promlock uses the words as labels and
// otellock as attributes. Other hooks can use the same words: a dashboard then needs no translation.
//
// promlock and otellock are modules of their own, which a program may combine with another version of this package.
// Therefore no word and no name here changes.
package outcome

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

// The words for the ends that no error causes.
const (
	Granted  = "granted"  // of a wait
	Released = "released" // of a hold
)

// The words that Of returns.
const (
	Locked         = "locked"          // a Try found the lock taken
	Timeout        = "timeout"         // the deadline of the ctx passed
	Cancelled      = "cancelled"       // the ctx or the Ticket was cancelled
	SessionClosed  = "session_closed"  // or orphaned
	SessionExpired = "session_expired" // the lease was lost
	Removed        = "removed"         // somebody else removed the entry
	Error          = "error"           // etcd refused
)

// Of returns the word for the Err of an [etcdlock.AbandonedInfo], or the Cause of an [etcdlock.LostInfo] or an
// [etcdlock.SessionEndedInfo].
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
		return Timeout
	case errors.Is(err, context.Canceled), errors.Is(err, etcdlock.ErrNotHeld):
		return Cancelled
	}
	return Error
}

// Mode returns the word for the kind of an acquisition: "exclusive", "shared" or "elector".
func Mode(a etcdlock.Acquisition) string {
	switch {
	case a.Read:
		return "shared"
	case a.Elector:
		return "elector" // it may wait for as long as its process lives
	}
	return "exclusive"
}
