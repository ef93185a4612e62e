package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A SessionSource is what a lock takes its sessions from: a *Session, for locks
// that end with it, or a *Pool, for locks that are to be had as long as the
// process lives.
type SessionSource interface {
	// session is the one to begin an acquisition in.
	session(ctx context.Context) (*Session, error)
	// again reports whether an acquisition that failed in s with err, and left
	// nothing, is to be begun anew.
	retryable(ctx context.Context, s *Session, err error) bool
}

// errNilSession is an error of every call.
var errNilSession = errors.New("the session is nil: make one with NewSession")

// session is s itself as long as it lives.
func (s *Session) session(context.Context) (*Session, error) {
	if s == nil {
		return nil, errNilSession
	}
	return s, s.Err()
}

func (s *Session) retryable(context.Context, *Session, error) bool { return false }

// A Pool is a source of sessions for locks that live as long as their process.
// It has one session at a time: it grants one when the first lock needs it, and
// another one when a lock is to be taken and the last one was lost. It is safe
// for concurrent use, and must not be copied.
//
// What was held in a lost session is lost, as ever: its holders are told, by
// Held.Context and Held.Err, and a pool never takes a lock anew that somebody
// held. But a Lock that waits when the session is lost goes on by itself: it
// enters the queue again in the next session, at the end, since etcd removed its
// place. So do Try and Enqueue calls that find the session gone. A [Ticket] does
// not: its place was in that session, and Wait tells that it is lost.
//
// While etcd is away, such calls wait until it is back or their ctx ends. They
// return ErrSessionClosed after Close, and etcd's error where it refuses to
// grant a lease.
type Pool struct {
	client *clientv3.Client
	config sessionConfig
	err    error // of every call

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	// turn is held by whoever grants, so that all who wait for a session share
	// one, and for good by Close.
	granting chan struct{}
	close    sync.Once
	closed   chan struct{} // closed when Close has done all; then closeErr is set
	// lost counts the goroutines that revoke the leases of lost sessions, each
	// for a TTL at the most.
	revoking sync.WaitGroup

	mu       sync.Mutex
	current  *Session // nil before the first; may have ended
	closeErr error
}

// NewPool makes a Pool, whose sessions NewSession would make of the same client
// and options. It makes no request: the first lock grants the first session. A
// client or an option that is not valid is an error of every call, and so is
// WithLease, since a lease that was granted elsewhere can't be granted anew.
func NewPool(client *clientv3.Client, opts ...SessionOption) *Pool {
	p := &Pool{client: client, config: configOf(opts), granting: make(chan struct{}, 1), closed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if p.config.lease != clientv3.NoLease {
		p.err = errors.New("WithLease is for NewSession: here a lease is granted when the last one is lost")
	}
	return p
}

// session returns the current session, or grants one. Only its caller's ctx
// bounds that: the others that wait try then themselves.
func (p *Pool) session(ctx context.Context) (*Session, error) {
	switch {
	case p == nil:
		return nil, errors.New("the pool is nil: make one with NewPool")
	case p.granting == nil:
		return nil, errors.New("the pool was not made with NewPool")
	case p.err != nil:
		return nil, p.err
	}
	if s := p.liveSession(); s != nil {
		return s, nil
	}
	granting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	select {
	case p.granting <- struct{}{}:
		defer func() { <-p.granting }()
	case <-granting.Done():
		return nil, p.closedError(ctxError(ctx, nil))
	}
	if s := p.liveSession(); s != nil {
		return s, nil // while this one waited for its turn
	}
	s, err := newSession(granting, p.client, p.config)
	if err != nil {
		return nil, p.closedError(fmt.Errorf("new session: %w", err))
	}
	p.setCurrent(s)
	return s, nil
}

// closedOr is the error of a call that Close, or else err, has ended.
func (p *Pool) closedError(err error) error {
	if p.ctx.Err() != nil {
		return ErrSessionClosed
	}
	return err
}

// live is the current session, nil if there is none.
func (p *Pool) liveSession() *Session {
	p.mu.Lock()
	s := p.current
	p.mu.Unlock()
	if s == nil || s.Err() != nil {
		return nil
	}
	return s
}

// put makes s the current session. The lease of the one before, if it should
// live yet, is revoked: its entries are only in the way.
func (p *Pool) setCurrent(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.current; old != nil {
		p.revoking.Go(func() { _ = old.Close(context.Background()) }) // or it expires by itself
	}
	p.current = s
	if p.ctx.Err() != nil {
		s.terminate(ErrSessionClosed, "closed") // Close came meanwhile, and takes it next
	}
}

// again is true if only the session failed the acquisition: it has expired, or
// its clock said so for a moment. An entry that is gone may have gone with the
// lease or not; where confirm had no answer in time, etcd is asked until there
// is one. The end of ctx, and Close, are for session to see.
func (p *Pool) retryable(ctx context.Context, s *Session, err error) bool {
	removed := errors.Is(err, ErrLost)
	switch {
	case !removed && !errors.Is(err, ErrSessionExpired):
		return false
	case s.Err() != nil:
		return true
	}
	rerr := s.Refresh(ctx)
	return s.Err() != nil || ctx.Err() != nil || rerr == nil && !removed
}

// Close ends the session at once and revokes its lease, as Session.Close does;
// waiting calls return ErrSessionClosed. It blocks until etcd has confirmed that
// and all goroutines have ended, or ctx ends; then it returns ctx's error and
// goes on in the background until the lease must have expired by itself.
// Further calls wait for the same and return the same.
func (p *Pool) Close(ctx context.Context) error {
	if p.granting == nil {
		return nil // nothing was ever granted
	}
	p.cancel()
	p.mu.Lock()
	if p.current != nil {
		p.current.terminate(ErrSessionClosed, "closed")
	}
	p.mu.Unlock()
	p.close.Do(func() {
		go func() { // ends with closed, a TTL from now at the latest
			defer close(p.closed)
			p.granting <- struct{}{} // a grant under way ends with p.ctx
			p.revoking.Wait()
			if p.current != nil {
				p.closeErr = p.current.Close(context.Background())
			}
		}()
	})
	select {
	case <-p.closed:
		return p.closeErr
	case <-ctx.Done():
		return fmt.Errorf("etcdlock: close pool: its lease is not known to be revoked, etcd lets it expire: %w", ctxError(ctx, nil))
	}
}
