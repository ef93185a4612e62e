// A Client: the locks of one etcd, and the session that it keeps for them.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keep"
	"github.com/etcdlock/etcdlock/internal/outbox"
)

// A Client makes the locks of one etcd, for as long as the process lives. It keeps one session at a time: it grants
// one when the first lock needs it, and another one when a lock is wanted and the last session was lost. It is
// safe for concurrent use, and must not be copied.
//
// What was held in a lost session is lost: the holders are told, by [Held.Context] and [Held.Err], and a Client never takes
// such a lock anew. But a Lock that waits when the session is lost goes on by itself: it enters
// the queue again in the next session, at the end, since etcd removed its place. So do calls of Try and Enqueue that
// find the session gone. A [Ticket] does not go on: its place was in that session, and Wait returns the loss.
//
// While etcd is away, such calls wait until it is back or their ctx ends. They return ErrSessionClosed after Close,
// and etcd's error if it refuses to grant a lease.
type Client struct {
	etcd     *clientv3.Client
	config   config
	err      error                  // of every call
	sessions *keep.Keeper[*Session] // nil if it was not made with New
}

// New makes a Client. It makes no request: the first lock grants the first session. A client or an option that is not
// valid is an error of every call. So is WithLease, since a lease that was granted elsewhere can't be granted anew.
//
// The etcd client must stay open for as long as the Client is used.
func New(client *clientv3.Client, opts ...Option) *Client {
	c := &Client{etcd: client, config: newConfig(opts)}
	c.config.client = c
	c.err = c.config.check(client)
	if c.config.lease != clientv3.NoLease {
		c.err = errors.New("WithLease is for NewSession: New grants a lease whenever the last one is lost")
	}
	c.sessions = keep.New(keep.Config[*Session]{
		Grant: c.grantSession, Lives: func(s *Session) bool { return s.Err() == nil }, Finish: (*Session).finish,
		End: func(s *Session) { s.lease.End(ErrSessionClosed, "closed") }, Closed: ErrSessionClosed,
		CtxError: func(ctx context.Context) error { return etcd.CtxError(ctx, c.config.outages.Why()) },
	})
	return c
}

// Mutex is the mutex of that name. It makes no request. A name that is not valid is an error of every call.
func (c *Client) Mutex(name string) *Mutex { return &Mutex{newLock(c, name, writing)} }

// RWMutex is the read-write mutex of that name. It makes no request. A name that is not valid is an error of every call.
func (c *Client) RWMutex(name string) *RWMutex { return newRWMutex(c, name) }

// Session is the current session, or a new one if there is none. It blocks only to grant one: until etcd has answered, or ctx ends.
func (c *Client) Session(ctx context.Context) (*Session, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: session: %w", err)
	}
	return s, nil
}

// Ready is nil if the Client has a session that lives, and so can take locks. If it has none, Ready grants one, which costs a
// request, and blocks until etcd has answered or ctx ends. Ready is for readiness checks, and needs a ctx with a deadline
// within the check's time: without a session, it blocks for as long as etcd is away. The error says if there
// ever was a session, and what is wrong. An etcd that is full (alarm NOSPACE) or CORRUPT lets sessions live and refuses new
// locks, and so it may if the password of the client's user was changed. Ready is nil until a lock was refused; then each Ready
// asks etcd, writing nothing, until etcd takes locks.
func (c *Client) Ready(ctx context.Context) error {
	s, err := c.session(ctx)
	if err == nil {
		return s.lease.Outages.Ready(ctx)
	}
	had := "no session yet"
	if c.usable() == nil {
		if last, lives := c.sessions.Last(); lives {
			had = "no session in time"
		} else if last != nil {
			had = "the last session is lost"
		}
	}
	return fmt.Errorf("etcdlock: not ready, %s: %w", had, err)
}

// usable is the error of every call, if there is one.
func (c *Client) usable() error {
	switch {
	case c == nil:
		return errors.New("the client is nil: make one with New")
	case c.sessions == nil:
		return errors.New("the client was not made with New")
	}
	return c.err
}

// session returns the current session, or grants one.
func (c *Client) session(ctx context.Context) (*Session, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	return c.sessions.Session(ctx)
}

// grantSession grants a session for the Client.
func (c *Client) grantSession(ctx context.Context) (_ *Session, left func(closed context.Context), err error) {
	s, err := newSession(ctx, c.etcd, c.config)
	switch {
	case err == nil:
		return s, nil, nil
	case s != nil: // it may have to revoke the lease
		left = func(closed context.Context) {
			defer context.AfterFunc(closed, func() { s.lease.Close(ErrSessionClosed) })()
			s.lease.Wait()
		}
	}
	return nil, left, fmt.Errorf("new session: %w", err)
}

// sessionFor is session for an acquisition. The hooks are told if there is none, but not if the Client is closed, no call can
// be made with it, or ctx had ended before.
func (c *Client) sessionFor(ctx context.Context, l *lock, asked time.Time) (*Session, error) {
	ended := ctx.Err() != nil
	s, err := c.session(ctx)
	if err != nil && !ended && c.usable() == nil && !errors.Is(err, ErrSessionClosed) {
		hook := outbox.In(ctx, func(h *Hooks) func(context.Context, NoSessionInfo) { return h.NoSession })
		c.config.outbox.Tell(outbox.Each(c.config.hooks, hook, NoSessionInfo{l.about(nil, asked), time.Since(asked), err}))
	}
	return s, err
}

func (c *Client) slash() bool { return c != nil && c.config.slash }

// finish revokes the session's lease, for the Client that made it, unless Orphan leaves that to a successor, or is about to.
func (s *Session) finish() error {
	if s.removals.Drains.Load() {
		s.lease.Wait()
	} else {
		<-s.lease.Close(ErrSessionClosed)
	}
	return s.closeError()
}

// goesOn reports whether an acquisition that failed in s with err, and left nothing, begins anew in another
// session: only the session failed it, because it has expired, or because its clock said so for a moment. The end of ctx,
// and Close, are for session to see.
func (c *Client) goesOn(ctx context.Context, s *Session, err error) bool {
	if !errors.Is(err, ErrSessionExpired) {
		return errors.Is(err, ErrLost) && (s.Err() != nil || ctx.Err() != nil)
	}
	return s.Err() != nil || s.Refresh(ctx) == nil || s.Err() != nil || ctx.Err() != nil
}

// Close ends the session at once and revokes its lease, which removes all its entries in one commit. Calls that wait
// return ErrSessionClosed. It is an io.Closer: it blocks until etcd has confirmed the revocation, all goroutines have
// ended, and the hooks and the log have been told, for 5 s or the TTL at the most, whichever is less. Then it returns
// an error and goes on in the background, until the lease must have expired by itself. Further calls wait for the same.
func (c *Client) Close() error {
	if c == nil || c.sessions == nil {
		return nil // nothing was ever granted
	}
	return c.config.outbox.AwaitAfter(c.sessions.Close(), min(closeLimit, max(c.config.ttl, minTTL)), c.sessions.Err,
		errors.New("etcdlock: close: the lease is not known to be revoked, etcd lets it expire"))
}
