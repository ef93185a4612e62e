// What may be called when something happens to a session or a lock: for metrics and traces.

package etcdlock

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/outbox"
)

// Hooks are functions that a session calls when something happens to it or to an acquisition of its locks: for metrics, traces and
// logs, in the manner of [net/http/httptrace]. Any may be nil. Package promlock makes metrics with them, package otellock spans.
//
// The calls about one acquisition come one after the other: Enqueued; then Granted or Abandoned; after Granted, one of Released
// and Lost. Each comes once at most. A call of Lock, Try, Enqueue or Do that ends without a lock is reported by Abandoned, with
// or without Enqueued before it, or by NoSession. A call that could not even begin, since the name is not valid, the session or
// its ctx had ended or it would wait for its own caller, is reported by its error alone. A Do inside the hold of another Do is
// no acquisition. A Lock of a [Client] that goes on in another session is another acquisition there.
//
// Hooks and the logger of [WithLogger] are called one after the other, in the order of the events, on a goroutine of
// the Client, or of a session of [NewSession]. No call and no renewal waits for them: a hook may come after the call
// that it is about has returned, so the infos have the times. Close waits for the hooks, as long as Close may take at all. A
// hook may use the Client, the session and its locks, and may block, but not in Close, which waits for it; meanwhile the
// hooks and lines behind it wait. Up to 16,384 calls wait; then new ones are dropped: lines, Renewed, and acquisitions
// and sessions as a whole, so that what was begun is reported to its end. When the rest has been delivered, one line of
// the log has the number. A panic is the program's, as in any other goroutine.
type Hooks struct {
	// SessionUp: a lease was granted, or adopted.
	SessionUp func(SessionUpInfo)
	// Renewed: an attempt to renew the lease succeeded or failed, or has had no answer when the next one was made
	// beside it: then Err says so. If that attempt succeeds after all, Renewed is called again.
	Renewed func(RenewedInfo)
	// SessionEnded is the last call about a session, apart from what becomes of its acquisitions, and from a Renewed that is under way.
	SessionEnded func(SessionEndedInfo)

	// The following hooks get the ctx of the call that asked for the lock: Lock, Try, Enqueue or Do. The ctx is there for
	// its values, and may have ended.

	// Enqueued: the entry is in the lock's queue in etcd.
	Enqueued func(ctx context.Context, info EnqueuedInfo)
	// Granted: the acquisition has the lock.
	Granted func(ctx context.Context, info GrantedInfo)
	// Abandoned: the acquisition ended without the lock. What is left of its entry is removed in the background.
	Abandoned func(ctx context.Context, info AbandonedInfo)
	// NoSession: a call of a Client got no session, as etcd was away until ctx ended, or refused to grant one.
	NoSession func(ctx context.Context, info NoSessionInfo)
	// Released: Unlock or Release has released the lock, or a Ticket its unclaimed grant: when Unlock returns, also
	// with an error of ctx. The next acquisition of the session may be Granted before that.
	Released func(ctx context.Context, info ReleasedInfo)
	// Lost: the lock was lost, which is when Held.Err or Unlock say so. A session that ends reports at once all that it held,
	// whether somebody looks or not. If somebody else removed the entry while the session lives, that is reported within an
	// instant if Context, Done or Do is used, and otherwise when the hold is used next, at Unlock at the latest.
	Lost func(ctx context.Context, info LostInfo)
}

// An Acquisition is what a hook is told about: a wait for a lock, and its hold.
type Acquisition struct {
	Session *Session // nil for NoSession
	Name    string   // of the lock; of a Multi, its names, with ", " between them
	Read    bool     // it asked only to read, beside other readers; Downgrade does not change that
	Elector bool     // it is a campaign of an Elector, whose wait may well last as long as its process
	// Key and Token are the entry in the queue, as in Held (of a Multi, the first one); empty before Enqueued.
	Key   string
	Token int64
	// Asked is when the call began, Enqueued when etcd's word came that the entry is in the queue, and Granted when
	// it had the lock; zero before.
	Asked, Enqueued, Granted time.Time
}

// SessionUpInfo is what SessionUp is told.
type SessionUpInfo struct {
	Session *Session
	At      time.Time
}

// RenewedInfo is what Renewed is told.
type RenewedInfo struct {
	Session   *Session
	RoundTrip time.Duration // from before the request was sent to the reply, the failure or now
	// Err is nil, or why this attempt failed; the session makes others until its deadline.
	Err error
	At  time.Time
}

// SessionEndedInfo is what SessionEnded is told.
type SessionEndedInfo struct {
	Session *Session
	Cause   error // ErrSessionExpired or ErrSessionClosed
	At      time.Time
}

// EnqueuedInfo is what Enqueued is told.
type EnqueuedInfo struct {
	Acquisition
}

// GrantedInfo is what Granted is told.
type GrantedInfo struct {
	Acquisition
	Wait time.Duration // from Asked to Granted
}

// AbandonedInfo is what Abandoned is told.
type AbandonedInfo struct {
	Acquisition
	Wait time.Duration // from Asked to its end
	// Err is why, as the call returns it, or Ticket.Wait: ErrLocked of a Try, ctx's error, ErrNotHeld after
	// Ticket.Cancel, ErrSessionExpired or ErrSessionClosed, ErrLost if somebody removed the entry, or etcd's refusal.
	Err error
}

// NoSessionInfo is what NoSession is told.
type NoSessionInfo struct {
	Acquisition
	Wait time.Duration // from Asked to its end
	Err  error         // as the call returns it: ctx's error, or etcd's refusal
}

// ReleasedInfo is what Released is told.
type ReleasedInfo struct {
	Acquisition
	Held time.Duration // from Granted to the call of Unlock
	// Err is nil, or why Unlock returned before etcd had confirmed: the release goes on in the background.
	Err error
}

// LostInfo is what Lost is told.
type LostInfo struct {
	Acquisition
	Held time.Duration // from Granted to when the loss was found, or Unlock was called
	// Cause is ErrLost, and also ErrSessionExpired or ErrSessionClosed if that is why; see Held.Err.
	Cause error
}

// report is what the hooks are told of an acquisition. It is nil if there are no hooks.
type report struct {
	ctx         context.Context // of the call that asked for the lock
	Acquisition                 // but for its Key and Token: see info
	story       outbox.Story
}
