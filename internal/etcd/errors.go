// What an error of etcd says: whether the request was refused, not even proposed, or may have been carried out.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	// ErrClientClosed says that the etcd client was closed, so nothing can be asked any more.
	ErrClientClosed error = Word("the etcd client is closed")
	// errNoConnection says that no connection to any member can be had, or that it broke.
	errNoConnection error = Word("no connection to etcd")
	// ErrNotSent says the same of a request that was not sent for that reason.
	ErrNotSent = fmt.Errorf("%w", errNoConnection)
	// ErrWatch says that a watch could not be opened, or ended. What it watched for may have
	// happened unseen.
	ErrWatch error = Word("no watch tells of etcd's changes")
	// ErrWatchLate says that a watch was not open in time. Etcd has not refused the watch.
	ErrWatchLate = fmt.Errorf("%w: none was open in time", ErrWatch)
)

// A Word is an error by which the library says what has become of a call.
type Word string

func (w Word) Error() string { return string(w) }

// isWord reports whether err is a word of the library, or an answer of etcd, to this call or to another one.
func isWord(err error) bool {
	return errors.As(err, new(Word)) || errors.As(err, new(rpctypes.EtcdError))
}

// CtxError is the error of a call whose ctx ended: ctx's error, its cause, and why it had no answer, if that
// is known, so that "deadline exceeded" hides neither "no leader" nor "connection refused".
//
// The cause may be the word of another call: that the lock was lost whose Do has given this ctx, or whatever another goroutine of
// an errgroup has failed with. Whoever compares the error of this call, the library itself included, would take such a cause for
// the answer to this call. So the error has only its text.
func CtxError(ctx context.Context, last error) error {
	err := ctx.Err()
	switch cause := context.Cause(ctx); {
	case cause == nil, errors.Is(err, cause):
	case isWord(cause):
		err = fmt.Errorf("%w: %s", err, cause.Error())
	default:
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if last = RequestError(ctx, last); last != nil && !IsCtxError(last) {
		err = fmt.Errorf("etcd does not answer: %w: %w", last, err)
	}
	return err
}

// RequestError is clientv3.ContextError for a request that was sent beside clientv3's own methods. It says in
// short why no connection can be had, a certificate for example, also where gRPC has waited for one until the
// end of ctx: clientv3 says no more then than that ctx has ended.
func RequestError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if _, desc, found := strings.Cut(text, "connection error: desc = "); found {
		if why, err := strconv.Unquote(desc); err == nil {
			desc = why
		}
		// So begins what gRPC says of a connection that it could not make.
		if strings.HasPrefix(desc, "transport: ") || strings.HasPrefix(desc, "error reading server preface") || strings.HasPrefix(desc, "initial http2 frame") {
			return fmt.Errorf("%w: %s", ErrNotSent, desc)
		}
		return fmt.Errorf("%w: %s", errNoConnection, desc)
	}
	// If gRPC could not write the first bytes on a connection, its error is the operating system's. (For a connection that
	// had come into use, the connection's reader reports, as above.)
	if _, desc, found := strings.Cut(text, "code = Unavailable desc = write tcp "); found {
		return fmt.Errorf("%w: write tcp %s", ErrNotSent, desc)
	}
	if strings.HasSuffix(text, "while waiting for connections to become ready") {
		return fmt.Errorf("%w: the endpoints do not answer", ErrNotSent)
	}
	return clientv3.ContextError(ctx, err)
}

// IsCtxError reports whether err is that of a ctx that has ended.
func IsCtxError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// answered reports whether err is etcd's last word, and tells whether the request was carried out.
func answered(err error) bool { return err == nil || Refused(err) && !ReplyTooLarge(err) }

// Refused reports whether a repetition of the request would have the same error: etcd, or what stands between
// it and the client, has answered that it did not and will not carry out the request, or the client can't send
// it or can't read the reply (see ReplyTooLarge: then the request may have been carried out).
// Any other error (no leader, a member that goes away, "raft proposal dropped", a lost reply)
// leaves open whether the request was carried out, and passes: the request is repeated.
func Refused(err error) bool {
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return refusal(err) != ""
	}
	switch {
	case Alarm(e):
		return true // until somebody mends etcd and disarms the alarm
	case errors.Is(e, rpctypes.ErrAuthOldRevision):
		return false // users or roles changed meanwhile, more than once: the client asks again once
	case notServed(e):
		return false
	}
	switch e.Code().String() { // by name: the library does not import gRPC
	case "PermissionDenied", "Unauthenticated", "InvalidArgument", "NotFound",
		"FailedPrecondition", "OutOfRange", "Unimplemented", "AlreadyExists":
		return true
	}
	return false
}

// Alarm reports whether etcd has refused the request because of an alarm: etcd is full, or its members have different
// data. Then it refuses all writes, except that a full etcd carries out deletions. Etcd also refuses the request by which it
// becomes full, although it has carried that request out (quotaApplierV3).
func Alarm(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrCorrupt)
}

// RefusesAll reports whether etcd refuses all locks of this client, for now: there is an alarm, or etcd does not know the client's
// user, or not by this password.
func RefusesAll(err error) bool {
	return Alarm(err) || slices.ContainsFunc([]error{rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound},
		func(unknown error) bool { return errors.Is(err, unknown) })
}

// NotCarriedOut reports whether it is certain that etcd has not carried out the request and never will.
func NotCarriedOut(err error) bool {
	return Refused(err) && !ReplyTooLarge(err) && !errors.Is(err, rpctypes.ErrNoSpace) || notProposed(err)
}

// RevisionGone reports whether etcd has no state of the revision that was asked for any more: the revision was compacted, or a
// restore has brought etcd back to before it.
func RevisionGone(err error) bool {
	return errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev)
}

// notProposed reports whether etcd says that it has not even proposed the request.
func notProposed(err error) bool {
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests) || notServed(err) ||
		err != nil && !IsCtxError(err) && strings.Contains(err.Error(), "raft proposal dropped") // which has no type of its own
}

// notServed reports whether the member that was asked serves no requests yet: it is a learner, or its cluster has only just
// begun. Another member may serve them, and so may this one later: a learner is promoted.
func notServed(err error) bool {
	var e rpctypes.EtcdError
	return errors.As(err, &e) && (errors.Is(e, rpctypes.ErrNotCapable) || e.Error() == "etcdserver: rpc not supported for learner")
}
