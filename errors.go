package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// The errors that callers act on, to be found with [errors.Is]. What the
// package returns wraps one of them, or ctx's error, or etcd's own, and says
// the operation and the name of the lock.
var (
	// ErrLocked: a Try found that somebody holds the lock or waits for it.
	ErrLocked = errors.New("locked by another")
	// ErrSessionExpired: the lease is gone, or can no longer be vouched for;
	// make a new Session.
	ErrSessionExpired = errors.New("session expired")
	// ErrSessionClosed: Close or Orphan ended the session.
	ErrSessionClosed = errors.New("session closed")
	// ErrLost: the entry in the queue is gone although its owner did not give
	// it back; somebody else may be in the section already.
	ErrLost = errors.New("lock lost")
	// ErrNotHeld: the hold was given back before, or its ticket cancelled.
	ErrNotHeld = errors.New("lock not held")
	// ErrNotFound: no such entry is in the queue: it was given back, or broken,
	// or its session ended.
	ErrNotFound = errors.New("entry not found")
	// ErrWouldDeadlock: the acquisition would wait for a hold of its own caller.
	ErrWouldDeadlock = errors.New("would deadlock: its own caller holds the lock")
	// ErrNoLeader: nobody leads.
	ErrNoLeader = errors.New("no leader")
	// ErrInvalidName: a name is non-empty UTF-8 without control characters
	// that does not end in "/".
	ErrInvalidName = errors.New("invalid lock name")
)

// wrap is applied once, at the exported boundary.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil // before the prefix is made
	}
	return wrapNeeding("readwrite", name+"/", op, name, err)
}

// wrapNeeding is wrap for an operation that needs that right on that prefix.
func wrapNeeding(right, prefix, op, name string, err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		hint = fmt.Sprintf(" (the client's role needs %s on the prefix %q)", right, prefix)
	case errors.Is(err, ErrWouldDeadlock):
		hint = " (use the hold that Do gave, or call this with a ctx from outside of Do)"
	}
	return fmt.Errorf("etcdlock: %s %q: %w%s", op, name, err, hint)
}

var (
	errLostExpired = fmt.Errorf("%w: %w", ErrLost, ErrSessionExpired)
	errLostClosed  = fmt.Errorf("%w: %w", ErrLost, ErrSessionClosed)
)

// lossOf is the error of a hold that was lost; cause is what ended the session, or
// nil if it lives.
func lossOf(cause error) error {
	switch {
	case cause == nil:
		return ErrLost
	case errors.Is(cause, ErrSessionClosed):
		return errLostClosed
	}
	return errLostExpired
}

// ended is the error of a call whose ctx ended: ctx's error, its cause, and
// the last thing that etcd answered before, so that "deadline exceeded" does
// not hide "no leader".
func ctxError(ctx context.Context, last error) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if last != nil && !isContextErr(last) {
		err = fmt.Errorf("%w (etcd: %w)", err, last)
	}
	return err
}

func isContextErr(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// refused reports whether etcd has answered that it did not and will not carry
// out the request. Any other error (no leader, a member that goes away,
// "raft proposal dropped", a lost reply) leaves open whether it was carried
// out, and passes: the request is to be repeated.
func refused(err error) bool {
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return false
	}
	switch {
	case errors.Is(e, rpctypes.ErrNoSpace):
		return true // until somebody defragments and disarms the alarm
	case errors.Is(e, rpctypes.ErrAuthOldRevision):
		return false // users or roles were changed meanwhile, more than once: the client asks again once
	}
	switch e.Code().String() { // by name: the package does not import gRPC
	case "PermissionDenied", "Unauthenticated", "InvalidArgument", "NotFound",
		"FailedPrecondition", "OutOfRange", "Unimplemented", "AlreadyExists":
		return true
	}
	return false
}
