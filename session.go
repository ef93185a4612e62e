// A Session: a lease that is kept alive.

package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/holdwatch"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/waitlist"
	"github.com/etcdlock/etcdlock/internal/whom"
)

// A Session is a lease that is kept alive, and the locks that hang on it. While it lives, its
// entries stay in their queues. When it ends, by Close, by the death of its process or by a time
// without etcd that is as long as its TTL, etcd removes them all at once. A session that ended
// stays ended; [New] makes locks that go on in the next session. It serves any number of locks
// and is safe for concurrent use.
//
// A session ends on its own clock before etcd can have given its locks to somebody else: see
// Deadline.
type Session struct {
	etcd    *etcd.Client
	id      clientv3.LeaseID
	ttl     time.Duration
	owner   string // in JSON
	nonce   string // begins the nonce of every entry of this session
	log     *slog.Logger
	hooks   []*Hooks
	outages *etcd.Outages // the Client's, or the session's own
	// keepAlive renews the lease once and returns the TTL that etcd granted anew, which is not
	// positive if the lease is gone.
	keepAlive func(ctx context.Context) (ttl int64, err error)
	wallClock func() time.Time

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	// leaseCtx ends when the lease is known to be gone, a TTL after the session at the latest.
	// Until then it is worth while to remove entries.
	leaseCtx context.Context
	endLease context.CancelFunc
	// renewals tells run how the attempts to renew end.
	renewals  chan renewal
	closeOnce sync.Once
	revoked   chan struct{} // closed after the revocation, whose error is revokeErr
	// confirmTurn lets one goroutine at a time ask after the lease: 10,000 holds that are lost
	// together ask once.
	confirmTurn chan struct{}
	confirmedAt time.Time // when etcd was last asked that still had the lease

	mu        sync.Mutex
	revokeErr error
	deadline  time.Time
	sent      time.Time // when the last renewal that succeeded was sent
	expiry    *time.Timer
	inUse     keyspace.InUse
	skipped   map[string]struct{} // keys in use that no entry has, see skipKeys
	// only are the entries that are alone in the session with their name, and lists the waitlists
	// of the other names: see enlist.
	only       map[string]*entry
	lists      map[string]*waitlist.List
	guardAfter time.Duration // see waitlist.Entry.Guard
	seq        uint64        // of the last nonce
	closing    bool          // Close waits: start nothing anymore
	endReason  string        // why the session has ended
	// holds are those to notify when the session ends; nil if nobody observes that.
	holds       map[*entry]struct{}
	settler     settler
	whom        whom.Waits // what a Lock says that ends with its ctx
	attending   bool       // see attend
	holdWatches *holdwatch.Watches[*entry]

	// wg counts the session's goroutines. All of them end with ctx or leaseCtx.
	wg sync.WaitGroup
}

// NewSession grants a lease, with one request, and keeps it alive. It blocks until etcd has
// answered or ctx ends; ctx bounds nothing else. After an error no lease is left behind: if it is
// not known whether one was granted, it is revoked in the background, if the process lives so long.
//
// The client must stay open for as long as the session is used; closing it ends the session.
func NewSession(ctx context.Context, client *clientv3.Client, opts ...Option) (*Session, error) {
	s, err := newSession(ctx, client, newConfig(opts))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: new session: %w", err)
	}
	return s, nil
}

func newSession(ctx context.Context, client *clientv3.Client, c config) (*Session, error) {
	if err := c.check(client); err != nil {
		return nil, err
	}
	s := makeSession(client, c)
	if s.id == clientv3.NoLease {
		s.id = clientv3.LeaseID(rand.Int64N(1<<63-1) + 1)
		if err := s.grantLease(ctx, c.ttl); err != nil {
			return s, err
		}
	} else if err := s.adoptLease(ctx); err != nil {
		return s, err
	}
	s.notifyUp()
	s.startInspect()
	s.wg.Add(1)
	go s.run()
	return s, nil
}

// makeSession is newSession without requests and goroutines.
func makeSession(client *clientv3.Client, c config) *Session {
	owner, err := json.Marshal(c.owner)
	if err != nil {
		panic("bug: " + err.Error())
	}
	s := &Session{
		etcd: etcd.NewClient(client), id: c.lease, ttl: c.ttl, owner: string(owner), log: c.log, hooks: c.hooks, outages: cmp.Or(c.outages, &etcd.Outages{}),
		nonce:       strconv.FormatUint(rand.Uint64(), 16) + ".",
		renewals:    make(chan renewal, 64),
		revoked:     make(chan struct{}),
		confirmTurn: make(chan struct{}, 1),
		inUse:       make(keyspace.InUse),
		skipped:     make(map[string]struct{}),
		only:        make(map[string]*entry),
		lists:       make(map[string]*waitlist.List),
		guardAfter:  100 * time.Millisecond,
		wallClock:   func() time.Time { return time.Now().Round(0) },
	}
	if c.observed() {
		s.holds = make(map[*entry]struct{})
	}
	s.keepAlive = func(ctx context.Context) (int64, error) { return s.etcd.RenewOnce(ctx, s.id) }
	s.etcd.Deadline = s.Deadline
	s.whom.KV, s.whom.Go = client, s.background
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.leaseCtx, s.endLease = context.WithCancel(context.Background())
	s.holdWatches = watchesOf(s)
	return s
}

// Client is the client that the session was made with.
func (s *Session) Client() *clientv3.Client { return s.etcd.Client }

// Lease is the ID of the session's lease.
func (s *Session) Lease() clientv3.LeaseID { return s.id }

// TTL is the time to live that etcd granted, at least that of WithTTL.
func (s *Session) TTL() time.Duration { return s.ttl }

// Context ends with the session. Its cause is ErrSessionExpired or ErrSessionClosed.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the session ends, at its deadline at the latest.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err is nil while the session lives, then ErrSessionExpired or ErrSessionClosed.
func (s *Session) Err() error {
	if s.ctx.Err() == nil {
		if d := s.Deadline(); d.IsZero() || time.Now().Before(d) {
			return nil
		}
		// The timer is late: the process may just have been woken.
		s.terminate(ErrSessionExpired, "deadline passed")
	}
	return context.Cause(s.ctx)
}

// Deadline is the time up to which the session's locks can be vouched for without hearing of etcd
// again: the last renewal that etcd confirmed, counted from before it was sent, plus the TTL,
// less a margin of a tenth (50 ms to 1 s) for clocks that drift and timers that are late. Each
// renewal moves it on; at the deadline the session ends.
func (s *Session) Deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

// Refresh renews the lease now and waits for etcd's confirmation: one request if all is well. It
// repeats the request until ctx or the session ends. After nil, Deadline is nearly a TTL away.
// An error of ctx leaves the session as it was.
func (s *Session) Refresh(ctx context.Context) error {
	if err := s.renewUntil(ctx, s.renew); err != nil {
		return fmt.Errorf("etcdlock: refresh session: %w", err)
	}
	return nil
}

// Orphan ends the session and leaves its lease, with all entries, until the TTL has passed. It is
// for a process that hands its locks to a successor, which adopts the lease with WithLease. It
// makes no request. Close after it still revokes.
func (s *Session) Orphan() { s.terminate(ErrSessionClosed, "orphaned") }

// terminate is the one way for a session to end. The first cause stays.
func (s *Session) terminate(cause error, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.endReason = reason // run tells of it
	s.cancel(cause)
	time.AfterFunc(s.ttl, s.endLease)
	if s.expiry != nil {
		s.expiry.Stop()
	}
}

// Close ends the session at once and revokes its lease, which removes all its entries in one
// commit. It is an io.Closer: it blocks until etcd has confirmed the revocation and the session's
// goroutines have ended, for 5 s or the TTL at the most, whichever is less. Then it returns an
// error and goes on in the background, until the lease must have expired by itself. Further calls
// wait for the same.
func (s *Session) Close() error {
	s.startClose()
	limit := time.NewTimer(min(closeLimit, s.ttl))
	defer limit.Stop()
	select {
	case <-s.revoked:
		return s.closeError()
	case <-limit.C:
		return fmt.Errorf("etcdlock: close session: lease %s is not known to be revoked, etcd lets it expire", s.leaseString())
	}
}

// startClose begins what Close waits for; s.revoked is closed at its end.
func (s *Session) startClose() {
	s.terminate(ErrSessionClosed, "closed")
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		go func() { // ends with revoked, a TTL from now at the latest
			defer close(s.revoked)
			_, err := s.revokeLease()
			s.endLease() // or given up: nothing goes on after Close
			s.wg.Wait()
			s.mu.Lock()
			s.revokeErr = err
			s.mu.Unlock()
		}()
	})
}

// closeError is the error of Close, once s.revoked is closed.
func (s *Session) closeError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revokeErr == nil {
		return nil
	}
	return fmt.Errorf("etcdlock: close session: lease %s is not known to be revoked, etcd lets it expire: %w", s.leaseString(), s.revokeErr)
}

// A source is what a lock takes its sessions from: a *Session, for locks that end with it, or a
// *Client, for locks that can be had for as long as the process lives.
type source interface {
	// session is the one to begin an acquisition in.
	session(ctx context.Context) (*Session, error)
	// retryable reports whether an acquisition that failed in s with err, and left nothing, is
	// to begin anew.
	retryable(ctx context.Context, s *Session, err error) bool
}

// session is s itself as long as it lives.
func (s *Session) session(context.Context) (*Session, error) {
	if s == nil {
		return nil, errors.New("the session is nil: make one with NewSession")
	}
	return s, s.Err()
}

func (s *Session) retryable(context.Context, *Session, error) bool { return false }

// background runs f, until the lease is gone at the latest; Close waits for it. It returns false,
// and does not run f, if the lease is gone or about to go.
func (s *Session) background(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.leaseCtx.Err() != nil || s.etcd.Ctx().Err() != nil {
		return false
	}
	s.wg.Go(func() {
		ctx, cancel := etcd.Bind(s.leaseCtx, s.etcd.Ctx())
		defer cancel()
		f(ctx)
	})
	return true
}
