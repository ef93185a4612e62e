// The errors of the package, and how they are put into words.

package etcdlock

import (
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// The errors that callers act on, to be found with [errors.Is]. What the package returns wraps one of them, or ctx's error, or etcd's
// own, and says the operation and the name of the lock. If ctx has ended with a cause that is one of these errors or etcd's, only the
// text is there.
var (
	// ErrLocked: a Try found that somebody holds the lock or waits for it.
	ErrLocked error = etcd.Word("locked by another")
	// ErrSessionExpired: the lease is gone, or can no longer be vouched for, or etcd was restored to an earlier state.
	// Locks of New go on in another session; with NewSession, make a new one.
	ErrSessionExpired error = etcd.Word("session expired")
	// ErrSessionClosed: Close or Orphan ended the session.
	ErrSessionClosed error = etcd.Word("session closed")
	// ErrLost: the entry was removed from the queue, and not by its owner. Somebody else may be in the section already.
	ErrLost error = etcd.Word("lock lost")
	// ErrOutcomeUnknown: etcd may have carried out a transaction of [Held.Txn], or may yet: no answer came, or etcd is full.
	// Test for it first: ctx's error, ErrLost or ErrNotHeld is in the same error, and by itself would say that nothing was carried out.
	ErrOutcomeUnknown error = etcd.Word("outcome unknown")
	// ErrNotHeld: the hold was released before, or its ticket cancelled.
	ErrNotHeld error = etcd.Word("lock not held")
	// ErrNotFound: no such entry is in the queue. It was released or broken, or its session ended.
	ErrNotFound error = etcd.Word("entry not found")
	// ErrWouldDeadlock: the acquisition would wait for its own caller's hold: Do's, or an Elector's lead's.
	ErrWouldDeadlock error = etcd.Word("would deadlock: its own caller holds the lock")
	// ErrElectionNoLeader: nobody leads.
	ErrElectionNoLeader error = etcd.Word("no leader")
	// ErrInvalidName: a name is non-empty UTF-8 without control characters that does not end in "/". A Multi has 1 to
	// 32 names, each once.
	ErrInvalidName error = etcd.Word("invalid lock name")
)

// A WaitError is in the error of a Lock or a Do that has waited until its ctx ended, if a read has shown whom it waited
// for: after a second, or before ctx's deadline. [errors.As] finds it.
type WaitError struct {
	Ahead  int    // how many acquisitions were ahead, at least
	Holder string // who has the lock, as its WithOwner says, or its key: anybody may have written anything there
	Token  int64  // of that holder; see [Held.Token]
	text   string
	err    error
}

func (e *WaitError) Error() string { return fmt.Sprint(e.text, ": ", e.err) }
func (e *WaitError) Unwrap() error { return e.err } // ctx's

// wrap adds the operation and the lock's names to err. It is applied once, at the exported boundary.
func wrap(op string, names func() []string, err error) error {
	if err == nil {
		return nil // before the names are listed
	}
	all := names()
	return wrapNeeding("readwrite", strings.Join(all, "/\n")+"/", op, strings.Join(all, ", "), err)
}

const txnOp = "transaction under" // for which a role needs more than for other operations

// wrapNeeding is wrap for an operation that needs that right on that prefix, or on each of several, one a line.
func wrapNeeding(right, prefix, op, name string, err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch denied := errors.Is(err, rpctypes.ErrPermissionDenied); {
	case denied && op == txnOp:
		hint = fmt.Sprintf(" (the client's role needs %s on %s, and rights on the transaction's own keys)", right, keyspace.Prefixes(prefix))
	case denied:
		hint = fmt.Sprintf(" (the client's role needs %s on %s)", right, keyspace.Prefixes(prefix))
	case errors.Is(err, ErrWouldDeadlock):
		hint = " (use the hold that Do or Run gave, or call this with a ctx from outside of it)"
	}
	return fmt.Errorf("etcdlock: %s %q: %w%s", op, name, err, hint)
}

// checkName says what is wrong with a name. slash says that it may end in "/".
func checkName(name string, slash bool) error {
	if slash {
		name = strings.TrimRight(name, "/")
	}
	if err := keyspace.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

var (
	errNotText    = errors.New("the value is not UTF-8")
	errNilSession = errors.New("the session is nil: make one with NewSession")
	errNilClient  = errors.New("the client is nil: make one with clientv3.New")
	errNilOption  = errors.New("an option is nil: leave it out")
)

// lossOf is the error of a hold that was lost. cause is what ended the session, or nil if the session lives.
func lossOf(cause error) error {
	if cause == nil {
		return ErrLost
	}
	return loss{cause}
}

// A loss equals another one of the same cause: Held.Err is what the cause of Held.Context is.
type loss struct{ cause error }

func (l loss) Error() string   { return ErrLost.Error() + ": " + l.cause.Error() }
func (l loss) Unwrap() []error { return []error{ErrLost, l.cause} }
