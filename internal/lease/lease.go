// Package lease keeps a lease of etcd alive, and knows until when it can be vouched for. It knows nothing of locks:
// what hangs on the lease is its user's.
package lease

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
)

// A Lease is a lease that is kept alive. It has one user, a session: Grant or Adopt it, then Run. It is safe for
// concurrent use. Its fields are set before Run.
type Lease struct {
	Client *etcd.Client
	ID     clientv3.LeaseID
	// Adopted: another process has had the lease before.
	Adopted bool
	TTL     time.Duration // that etcd has granted; before the grant, the one to ask for
	// Expired is the cause of Ctx if the lease was lost.
	Expired error
	Outages outage.Source
	// Renewed is told how an attempt to renew went, and how long it took. It must not block: the renewals wait for it.
	Renewed func(took time.Duration, err error)
	// Ended is called when the goroutine of Run ends, after the end of Ctx. reason says why the lease is not used any more, and unrenewed why
	// the last attempt to renew failed, nil if it did not.
	Ended func(reason string, unrenewed error)
	// KeepAlive renews the lease once and returns the TTL that etcd granted anew, which is not positive if the
	// lease is gone.
	KeepAlive func(ctx context.Context) (ttl int64, err error)
	// Shared reports whether etcd's answer to a call of KeepAlive may be the answer to an earlier call: see attempts.
	Shared func() bool
	// Relayed reports whether calls of KeepAlive are known to go to a proxy, which takes up to RelayTime for an answer.
	Relayed func() bool
	// Stream is the number of the stream on which etcd answers, 0 if the stream may change unseen: see etcd.KeepAlive.
	Stream func() int
	// Broken has a value when a stream on which etcd answered has ended.
	Broken    <-chan struct{}
	WallClock func() time.Time
	// InTheWay is a key that hangs on the lease and that the client has no right to write, "" if it finds none.
	InTheWay func(ctx context.Context) (key string)

	// Ctx ends with the use of the lease, at its deadline at the latest. Its cause is the one that End was given.
	Ctx    context.Context
	cancel context.CancelCauseFunc
	// Gone ends when there is no use any more in removing what hangs on the lease: etcd has said that the lease is gone,
	// Close has done what it can, Orphan was called, or a TTL has passed since the end of Ctx.
	Gone context.Context
	gone context.CancelFunc

	stream *etcd.KeepAlive
	checks *checks // nil without
	// renewals has the outcomes of the attempts to renew, for Run.
	renewals  chan renewal
	closeOnce sync.Once
	closing   chan struct{} // closed, under mu, when Close begins: from then on Go starts nothing
	revoked   chan struct{} // closed after the revocation, whose error is revokeErr
	// confirmTurn lets one goroutine at a time ask after the lease: 10,000 holds that are lost together ask once.
	confirmTurn chan struct{}
	confirmedAt time.Time // when the last request of Confirm was sent that etcd has answered with "the lease exists"

	mu        sync.Mutex
	revokeErr error
	deadline  time.Time
	sent      time.Time // from which the last renewal that succeeded counts
	attempts  attempts
	// refusedSince is when etcd has refused the first of the last renewals, zero if it has refused none of them.
	refusedSince time.Time
	manyKeys     sync.Once
	expiry       *time.Timer
	endReason    string        // why Ctx has ended
	told         chan struct{} // closed when Ended has returned, nil before Run
	// lates are the leases that revokeLates revokes, which is at work if revokesLate. lateCame tells it of another one.
	lates       []late
	revokesLate bool
	lateCame    chan struct{}
	// doubted has a value when Valid has found that the wall clock alone has passed the deadline, for Run.
	doubted chan struct{}

	// wg counts the goroutines of Run and Go. All of them end with Ctx or Gone.
	wg sync.WaitGroup
}

// New makes a Lease for that client, without a request. id is that of a lease to adopt, or NoLease.
func New(client *etcd.Client, id clientv3.LeaseID, ttl time.Duration, all *outage.Outages, log *slog.Logger) *Lease {
	l := &Lease{
		Client: client, ID: id, Adopted: id != clientv3.NoLease, TTL: ttl,
		WallClock:   func() time.Time { return time.Now().Round(0) },
		renewals:    make(chan renewal, 64),
		closing:     make(chan struct{}),
		revoked:     make(chan struct{}),
		confirmTurn: make(chan struct{}, 1),
		lateCame:    make(chan struct{}, 1),
		doubted:     make(chan struct{}, 1),
	}
	if id == clientv3.NoLease {
		l.ID = newID()
	}
	l.Ctx, l.cancel = context.WithCancelCause(context.Background())
	l.Gone, l.gone = context.WithCancel(context.Background())
	l.Outages = outage.Source{All: all, Client: client, Life: l.Ctx, Log: log, Lease: l}
	l.stream = etcd.NewKeepAlive(l.Ctx, client)
	l.KeepAlive = func(ctx context.Context) (int64, error) { return l.stream.Renew(ctx, l.ID) }
	l.Shared, l.Relayed, l.Stream, l.Broken = l.stream.Shared, l.stream.Relayed, l.stream.Stream, l.stream.Broken
	client.Deadline, client.Background, client.Life = l.Deadline, l.Go, l.Ctx
	client.Restored = func(err error) { l.End(fmt.Errorf("%w: %w", l.Expired, err), err.Error()) }
	return l
}

// String is the ID as etcd's tools write it.
func (l *Lease) String() string { return strconv.FormatInt(int64(l.ID), 16) }

// Err is nil while the lease is used and can be vouched for, then the cause of Ctx.
func (l *Lease) Err() error {
	if l.Ctx.Err() != nil {
		return context.Cause(l.Ctx)
	}
	d := l.Deadline()
	switch {
	case l.Client.Ctx().Err() != nil: // Run may not have seen it yet, but Go starts nothing anymore
		l.End(l.Expired, "client closed")
	case d.IsZero() || time.Now().Before(d):
		return nil
	default: // the timer is late: the process may just have been woken
		l.End(l.Expired, "deadline passed")
	}
	return context.Cause(l.Ctx)
}

// Deadline is the time up to which the lease can be vouched for.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// SetDeadline moves the deadline. It is for tests in which the deadline has passed and no timer has fired yet.
func (l *Lease) SetDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
}

// Valid reports whether the lease can be vouched for now. It looks at both clocks: the monotonic clock stands still
// while a machine is suspended, and the wall clock may be set. If the wall clock alone has passed the deadline, Run asks etcd.
func (l *Lease) Valid() bool {
	now, deadline := time.Now(), l.Deadline()
	if l.Err() != nil || !now.Before(deadline) {
		return false
	}
	if l.WallClock().Before(deadline.Round(0)) {
		return true
	}
	select {
	case l.doubted <- struct{}{}:
	default:
	}
	return false
}

// End is the one way for the use of the lease to end. The first cause stays.
func (l *Lease) End(cause error, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ctx.Err() != nil {
		return
	}
	l.endReason = reason // which Run tells
	l.cancel(cause)
	time.AfterFunc(l.TTL, l.gone)
	if l.expiry != nil {
		l.expiry.Stop()
	}
}

// Orphan ends the use of the lease with that cause, and leaves the keys that hang on it to a successor, which may have
// taken them over by now: from now on none of them is removed. When it returns, Ended has told of the end.
func (l *Lease) Orphan(cause error) {
	l.End(cause, "orphaned")
	l.gone()
	l.awaitTold()
}

// awaitTold waits until Ended has told of the end of Ctx: from then on others may have what hung on the lease. Before Run nobody
// has anything.
func (l *Lease) awaitTold() {
	l.mu.Lock()
	told := l.told
	l.mu.Unlock()
	if told != nil {
		<-told
	}
}

// NotFound is called when etcd has answered that the lease is gone.
func (l *Lease) NotFound() {
	l.End(l.Expired, "lease not found")
	l.gone()
}

// Close ends the use of the lease with that cause and begins to revoke the lease, which removes all keys that hang on it in
// one commit. done is closed when the revocation is over and all goroutines have ended. It is over when etcd has confirmed or
// refused it, the client was closed, or a TTL has passed; CloseError says which.
func (l *Lease) Close(cause error) (done <-chan struct{}) {
	l.End(cause, "closed")
	l.closeOnce.Do(func() {
		l.mu.Lock()
		close(l.closing)
		granted := !l.sent.IsZero()
		l.mu.Unlock()
		go func() { // ends with revoked, a TTL from now at the latest
			defer close(l.revoked)
			var err error
			l.awaitTold()
			if granted { // for a TTL at most: it can't live longer
				ctx, cancel := context.WithTimeout(l.Client.Ctx(), l.TTL)
				_, err = l.revoke(ctx, l.ID)
				err = l.explained(ctx, err)
				cancel()
			}
			l.gone() // or given up: nothing goes on after Close
			l.Wait()
			l.mu.Lock()
			l.revokeErr = err
			l.mu.Unlock()
		}()
	})
	return l.revoked
}

// CloseError is why the lease is not known to be revoked, nil if the lease is revoked.
func (l *Lease) CloseError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revokeErr
}

// Go runs f, until the lease is gone at the latest; Close waits for it. It returns false, and does not run f, if the
// lease is gone or about to go.
func (l *Lease) Go(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosing() || l.Gone.Err() != nil || l.Client.Ctx().Err() != nil {
		return false
	}
	l.wg.Go(func() {
		ctx, cancel := etcd.Bind(l.Gone, l.Client.Ctx())
		defer cancel()
		f(ctx)
	})
	return true
}

// isClosing reports whether Close was called. The caller holds l.mu.
func (l *Lease) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// Wait waits for the goroutines of Run and Go, once Ctx has ended.
func (l *Lease) Wait() {
	l.wg.Wait()
	l.stream.Close()
}
