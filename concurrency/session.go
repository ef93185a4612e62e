// A Session: a lease that is kept alive.

package concurrency

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

const defaultSessionTTL = 60 // seconds

// A Session is a lease that is kept alive, and the locks and candidacies that hang on it. It is safe for concurrent
// use.
type Session struct {
	inner  *etcdlock.Session
	looks  *etcdlock.Client // for queues; it has no session
	parent context.Context  // of WithContext
	ctx    context.Context
	cancel context.CancelFunc
	// adopted: the lease was granted elsewhere, so there may be entries to adopt.
	adopted bool

	mu          sync.Mutex
	dropped     dropped
	candidacies map[string]*candidacy             // by name
	kept        int                               // how many of them the last look at all has kept
	calls       map[chan struct{}]context.Context // the ctx of each call that is inQueue, by what is closed when the call has returned
}

var errNilSession = errors.New("the session is nil: make one with NewSession, and the Mutex or Election with it")

// NewSession grants a lease and keeps it alive. It blocks until etcd has answered, or the ctx of WithContext or of the
// client ends.
func NewSession(client *clientv3.Client, opts ...SessionOption) (*Session, error) {
	if client == nil {
		return nil, errors.New("the client is nil: make one with clientv3.New")
	}
	o := sessionOptions{ttl: defaultSessionTTL, ctx: client.Ctx()}
	for _, opt := range opts {
		opt(&o)
	}
	inner, err := etcdlock.NewSession(o.ctx, client,
		etcdlock.WithTTL(seconds(o.ttl)), etcdlock.WithLease(o.lease), etcdlock.WithTrailingSlash())
	if err != nil {
		return nil, plain(o.ctx, err)
	}
	s := &Session{
		inner: inner, looks: etcdlock.New(client, etcdlock.WithTrailingSlash()),
		parent: o.ctx, adopted: o.lease != clientv3.NoLease, candidacies: make(map[string]*candidacy),
		calls: make(map[chan struct{}]context.Context),
	}
	s.ctx, s.cancel = context.WithCancel(o.ctx)
	follow := context.AfterFunc(o.ctx, s.abandon)
	context.AfterFunc(inner.Context(), func() {
		follow()
		s.cancel()
	})
	return s, nil
}

// seconds is that many seconds, or the most that a Duration holds, which is more than etcd grants: a lease of the rest that
// an overflow leaves would be a surprise.
func seconds(n int) time.Duration {
	return time.Duration(min(int64(n), int64(math.MaxInt64/time.Second))) * time.Second
}

// Client is the client that the session was made with.
func (s *Session) Client() *clientv3.Client { return s.inner.Client() }

// Lease is the ID of the session's lease.
func (s *Session) Lease() clientv3.LeaseID { return s.inner.Lease() }

// Ctx ends with the session: when the lease is orphaned or closed, when it is lost, and when the ctx of WithContext
// ends, whose values it has.
func (s *Session) Ctx() context.Context { return s.ctx }

// Done is closed when the session ends: before etcd can have given its locks to somebody else because the lease was
// not renewed. If somebody else revokes the lease, Done is closed at the next renewal: a third of the TTL later at the most.
// When the ctx of WithContext ends, Ctx ends at once, and Done is closed when the session has been orphaned: see Orphan.
func (s *Session) Done() <-chan struct{} { return s.inner.Done() }

// Orphan ends the session and leaves its lease until its TTL has passed. It blocks until etcd has answered the
// requests that are on their way, and has confirmed what was released before, for 5 s or the TTL at the most.
func (s *Session) Orphan() {
	s.inner.Orphan()
	s.cancel()
}

// Close ends the session and revokes its lease. It blocks until etcd has confirmed that, for 5 s or the TTL at the
// most, or until the ctx of WithContext ends; the revocation goes on in the background then.
func (s *Session) Close() error {
	closed := make(chan error, 1)
	go func() { closed <- s.inner.Close() }() // ends after 5 s at the latest, and the session at once
	<-s.inner.Done()
	s.cancel()
	select {
	case err := <-closed:
		return err
	case <-s.parent.Done():
		return s.parent.Err()
	}
}

type sessionOptions struct {
	ttl   int
	lease clientv3.LeaseID
	ctx   context.Context
}

// A SessionOption changes a session that NewSession makes.
type SessionOption func(*sessionOptions)

// WithTTL sets the TTL in seconds. The default is 60 s, which 0 and negative numbers leave as it is.
func WithTTL(ttl int) SessionOption {
	return func(o *sessionOptions) {
		if ttl > 0 {
			o.ttl = ttl
		}
	}
}

// WithLease takes a lease that was granted elsewhere, for example to this process before it was restarted. A Lock then
// takes up the entry that hangs on the lease, and a Campaign the candidacy, with what the process before had. If that process was one
// of etcdlock, and had the lock for reading or in a Multi, they release it and return an error.
// An entry that nobody takes up blocks other sessions for as long as this session lives. If the lease is gone, NewSession
// returns etcd's error, where etcd's package returns a session that ends at once.
func WithLease(id clientv3.LeaseID) SessionOption {
	return func(o *sessionOptions) { o.lease = id }
}

// WithContext sets the ctx of the session in the place of the client's. When ctx ends, so do NewSession, Close and the
// session. The lease stays until its TTL has passed, or Close has revoked it.
func WithContext(ctx context.Context) SessionOption {
	return func(o *sessionOptions) { o.ctx = ctx }
}

// adopt takes up what the process before had or waited for, if that excludes all others.
func (s *Session) adopt(ctx context.Context, name string) (*etcdlock.Held, error) {
	h, err := s.inner.Adopt(ctx, name)
	if err == nil && (len(h.Keys()) > 1 || strings.HasPrefix(h.Key(), name+"/r")) {
		h.Release()
		return nil, fmt.Errorf("etcdlock: adopt %q: the process before had the lock for reading, or in a Multi", name)
	}
	return h, err
}

// plain is an error as etcd's package has it: callers compare the errors of their ctx and of this package with ==.
func plain(ctx context.Context, err error) error {
	switch cause := ctx.Err(); {
	case err == nil:
		return nil
	case cause != nil && errors.Is(err, cause):
		return cause
	case errors.Is(err, etcdlock.ErrLocked):
		return ErrLocked
	case errors.Is(err, etcdlock.ErrSessionExpired), errors.Is(err, etcdlock.ErrSessionClosed), errors.Is(err, etcdlock.ErrLost):
		return ErrSessionExpired
	}
	return err
}
