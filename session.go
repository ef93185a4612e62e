package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Session is a lease kept alive: what its locks hang on. While it lives, its
// entries stay in their queues; when it ends, by Close, by the death of its
// process or by a time without etcd that is as long as its TTL, etcd removes
// them all at once. One session serves a whole process and any number of
// locks; it is safe for concurrent use.
//
// A session ends on its own clock before etcd can have given its locks to
// somebody else: see Deadline.
type Session struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	owner  string // in JSON
	nonce  string // begins the nonce of every entry of this session
	log    *slog.Logger
	hooks  []*Hooks
	// keepAlive renews the lease once and returns the TTL etcd granted anew,
	// not positive if the lease is gone.
	keepAlive func(ctx context.Context) (ttl int64, err error)

	ctx      context.Context // ends with the session
	cancel   context.CancelCauseFunc
	watchCtx context.Context // ctx for watches
	// lease ends when the lease is known to be gone, a TTL after the session at
	// the latest: until then entries are worth removing.
	leaseCtx context.Context
	endLease context.CancelFunc
	pace     pace // of its requests
	// renewed tells run how the attempts to renew end.
	renewals chan renewal
	revoke   sync.Once
	revoked  chan struct{} // closed after the revocation, whose error is revokeErr
	// confirming serializes confirm: 10,000 holds that are lost together ask once.
	confirmTurn chan struct{} // of one
	confirmedAt time.Time     // when etcd was last asked that still had the lease

	mu             sync.Mutex
	watcher        *watcher // for new watches
	watcherSuspect bool     // a watch could not be opened with it
	revokeErr      error
	deadline       time.Time
	sent           time.Time // when the last renewal that succeeded was sent
	expiry         *time.Timer
	inUse          keysInUse
	skipped        map[string]struct{} // keys in use that no entry has, see passOver
	seq            uint64              // of the last nonce
	closing        bool                // Close waits: start nothing anymore
	endReason      string              // the session has ended
	// holds are told when the session ends; nil if nobody listens.
	holds   map[*entry]struct{}
	outages outages
	settler settler

	// wg counts the session's goroutines: run, its attempts to renew, the
	// waiting of tickets, the guards of holds, and clean-up. All of them end
	// with s.ctx or s.lease.
	wg sync.WaitGroup
}

// NewSession grants a lease (one request) and keeps it alive. It blocks until
// etcd has answered or ctx ends; ctx bounds nothing else. After an error no
// lease is left behind: where it is not known whether one was granted, it is
// revoked in the background.
//
// The client must stay open for as long as the session is used; closing it
// ends the session.
func NewSession(ctx context.Context, client *clientv3.Client, opts ...SessionOption) (*Session, error) {
	s, err := newSession(ctx, client, configOf(opts))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: new session: %w", err)
	}
	return s, nil
}

func newSession(ctx context.Context, client *clientv3.Client, c sessionConfig) (*Session, error) {
	switch {
	case client == nil:
		return nil, errors.New("the client is nil: make one with clientv3.New")
	case c.ttl < minTTL:
		return nil, fmt.Errorf("TTL %v: etcd's leases last %v at least", c.ttl, minTTL)
	case c.log == nil:
		return nil, errors.New("the logger is nil: leave WithLogger out for silence")
	case slices.Contains(c.hooks, nil):
		return nil, errors.New("the hooks are nil: leave WithHooks out for none")
	}
	if c.owner == "" {
		c.owner = defaultOwner()
	}
	s := makeSession(client, c)
	if s.id == clientv3.NoLease {
		s.id = clientv3.LeaseID(rand.Int64N(1<<63-1) + 1)
		if err := s.grantLease(ctx, c.ttl); err != nil {
			return nil, err
		}
	} else if err := s.adoptLease(ctx); err != nil {
		return nil, err
	}
	s.notifyUp()
	s.wg.Add(1)
	go s.run()
	return s, nil
}

// makeSession is NewSession without requests and goroutines.
func makeSession(client *clientv3.Client, c sessionConfig) *Session {
	owner, err := json.Marshal(c.owner)
	if err != nil {
		panic("bug: " + err.Error())
	}
	s := &Session{
		client: client, watcher: newWatcher(client, client.Watcher), id: c.lease, ttl: c.ttl, owner: string(owner), log: c.log, hooks: c.hooks,
		nonce:       strconv.FormatUint(rand.Uint64(), 16) + ".",
		renewals:    make(chan renewal, 64),
		revoked:     make(chan struct{}),
		confirmTurn: make(chan struct{}, 1),
		inUse:       make(keysInUse),
		skipped:     make(map[string]struct{}),
	}
	if c.observed() {
		s.holds = make(map[*entry]struct{})
	}
	s.keepAlive = s.keepAliveOnce
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.watchCtx = clientv3.WithRequireLeader(s.ctx)
	s.leaseCtx, s.endLease = context.WithCancel(context.Background())
	return s
}

// grant asks for a lease under an ID of the session's own choice. That makes
// the request safe to repeat, and lets a lease be found again whose reply was
// lost; with an ID of etcd's choice, every lost reply leaks a lease.
func (s *Session) grantLease(ctx context.Context, ttl time.Duration) error {
	seconds := int64((ttl-1)/time.Second + 1) // rounded up
	doubt := false
	err := s.retry(ctx, func(ctx context.Context) error {
		sent := time.Now()
		// Not the client's own LeaseClient: it repeats until ctx ends, and hides why.
		resp, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds, ID: int64(s.id)})
		granted := resp.GetTTL()
		if err = clientv3.ContextError(ctx, err); errors.Is(err, rpctypes.ErrLeaseExist) {
			sent = time.Now() // an earlier attempt's, its reply was lost
			granted, err = s.keepAlive(ctx)
		}
		switch {
		case err != nil:
			doubt = doubt || !refused(err)
		case !time.Now().Before(trustedUntil(sent, granted)):
			doubt, err = true, errTooLate
		default:
			s.record(sent, granted)
		}
		return err
	})
	if err != nil {
		s.terminate(ErrSessionExpired, "not granted")
		if doubt {
			s.background(s.revokeUngranted)
		}
		return err
	}
	return nil
}

// adopt renews a lease that was granted elsewhere, which tells its TTL too.
func (s *Session) adoptLease(ctx context.Context) error {
	ctx, stop := s.bind(ctx)
	defer stop()
	err := s.retry(ctx, func(ctx context.Context) error { return s.sendRenewal(ctx).Err })
	if err == nil && s.Err() != nil {
		err = errTooLate
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrSessionExpired):
		err = rpctypes.ErrLeaseNotFound
	default:
		s.terminate(ErrSessionExpired, "not adopted")
		s.endLease()
	}
	return fmt.Errorf("adopt lease %s: %w", s.leaseString(), err)
}

// Client is the client that the session was made with.
func (s *Session) Client() *clientv3.Client { return s.client }

// Lease is the ID of the session's lease.
func (s *Session) Lease() clientv3.LeaseID { return s.id }

// TTL is the time to live that etcd granted, at least that of WithTTL.
func (s *Session) TTL() time.Duration { return s.ttl }

// Context ends with the session; its cause is ErrSessionExpired or
// ErrSessionClosed.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the session ends, at its deadline at the latest.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err is nil while the session lives, then ErrSessionExpired or
// ErrSessionClosed.
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

// Deadline is the time up to which the session's locks can be vouched for
// without hearing of etcd again: the last renewal that etcd confirmed, counted
// from before it was sent, plus the TTL, less a margin of a tenth (50 ms to
// 1 s) for clocks that drift and timers that are late. Each renewal moves it on;
// at the deadline the session ends.
func (s *Session) Deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

// Refresh renews the lease now and waits for etcd's confirmation, one request
// if all is well; it repeats the request until ctx or the session ends. After
// nil, Deadline is nearly a TTL away. An error of ctx leaves the session as it
// was.
func (s *Session) Refresh(ctx context.Context) error {
	ctx, stop := s.bind(ctx)
	defer stop()
	if err := s.retry(ctx, s.renew); err != nil {
		return fmt.Errorf("etcdlock: refresh session: %w", err)
	}
	return nil
}

// Orphan ends the session and leaves its lease, with all entries, until the
// TTL has passed: for a process that hands its locks to a successor, which
// adopts them with WithLease. It makes no request. Close after it still revokes.
func (s *Session) Orphan() { s.terminate(ErrSessionClosed, "orphaned") }

// Close ends the session at once and revokes its lease, which removes all its
// entries in one commit. It blocks until etcd has confirmed that and the
// session's goroutines have ended, or ctx ends; then it returns ctx's error and
// goes on in the background until the lease must have expired by itself.
// Further calls wait for the same and return the same.
func (s *Session) Close(ctx context.Context) error {
	s.terminate(ErrSessionClosed, "closed")
	s.revoke.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		go func() { // ends with revoked, a TTL from now at the latest
			defer close(s.revoked)
			err := s.revokeLease()
			s.endLease() // or given up: nothing goes on after Close
			s.wg.Wait()
			s.mu.Lock()
			s.revokeErr = err
			s.mu.Unlock()
		}()
	})
	select {
	case <-s.revoked:
	case <-ctx.Done():
	}
	var err error
	select {
	case <-s.revoked: // whatever became of ctx
		s.mu.Lock()
		err = s.revokeErr
		s.mu.Unlock()
	default:
		err = ctxError(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("etcdlock: close session: lease %s is not known to be revoked, etcd lets it expire: %w", s.leaseString(), err)
	}
	return nil
}
