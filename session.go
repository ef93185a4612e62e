// A Session: a lease that is kept alive.

package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/blockers"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/holdwatch"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/outbox"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/sender"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// A Session is a lease that is kept alive, and the locks that hang on it. While it lives, its entries stay in their
// queues. When it ends, by Close, by the death of its process or by a time without etcd that is as long as its TTL,
// etcd removes them all at once. A session that ended stays ended; [New] makes locks that go on in the next session.
// A session serves any number of locks, and is safe for concurrent use.
//
// A session ends on its own clock before etcd can have given its locks to somebody else: see Deadline.
type Session struct {
	lease    *lease.Lease
	etcd     *etcd.Client
	keys     *settle.Keys
	sender   *sender.Sender
	removals *removal.Removals
	tried    sender.Recent // the names whose last Try was refused
	config   config        // which it was made with
	story    outbox.Story  // that the hooks are told of it

	mu       sync.Mutex
	lists    map[string]*waitlist.List // by name: see enlist
	waits    wait.Waits
	blockers blockers.Waits // whom a wait waits for, for its WaitError

	probes      *etcd.Prober
	holdWatches *holdwatch.Watches[*waitlist.Part]
}

// NewSession grants a lease, with one request, and keeps it alive. It blocks until etcd has answered or ctx ends; ctx
// bounds nothing else. After an error no lease is left behind: a lease that may have been granted is
// revoked in the background, if the process lives so long.
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
	take := func(ctx context.Context) error { return s.lease.Grant(ctx, c.ttl) }
	if s.lease.Adopted {
		take = s.lease.Adopt
	}
	if err := take(ctx); err != nil {
		return s, err
	}
	s.keys.SetLease(s.lease.ID)
	s.startChecks()
	s.notifyUp() // a hook may use it from here on
	s.lease.Run()
	return s, nil
}

// makeSession is newSession without requests and goroutines.
func makeSession(client *clientv3.Client, c config) *Session {
	c.outbox, c.outages = cmp.Or(c.outbox, &outbox.Outbox{}), cmp.Or(c.outages, &outage.Outages{})
	s := &Session{etcd: etcd.NewClient(client), config: c, lists: make(map[string]*waitlist.List)}
	s.lease = lease.New(s.etcd, c.lease, c.ttl, c.outages, c.log)
	s.lease.Expired, s.lease.Renewed, s.lease.Ended = ErrSessionExpired, s.notifyRenewed, s.sessionEnded
	s.keys = settle.New(s.lease.Gone, s.etcd, s.lease.ID, c.owner, s.lease.Go)
	s.lease.InTheWay = s.keys.InTheWay
	s.sender = sender.New(s.etcd, s.lease.Go)
	s.removals = removal.New(s.lease.Ctx, s.sender, s.lease.Go)
	s.probes = &etcd.Prober{Client: s.etcd, Life: s.lease.Ctx, Go: s.lease.Go, Silent: s.refreshWatches, Every: func() time.Duration { return s.TTL() / 2 }}
	s.waits = wait.Waits{
		Config: waitlist.Config{Life: s.lease.Ctx, WatchOwnAfter: 100 * time.Millisecond, Forget: s.forgetList},
		Client: s.etcd, Outages: &s.lease.Outages, Go: s.lease.Go, Opened: s.probes.Attend, Lost: markAllLost, EndError: s.lease.WaitError,
		Removed: func(own *waitlist.Part) bool { return acquisitionOf(own).anyRemoved() },
	}
	s.blockers.KV, s.blockers.Go, s.blockers.Log = client, s.lease.Go, c.log
	s.holdWatches = watchesOf(s)
	return s
}

// Client is the client that the session was made with.
func (s *Session) Client() *clientv3.Client { return s.etcd.Client }

// Lease is the ID of the session's lease.
func (s *Session) Lease() clientv3.LeaseID { return s.lease.ID }

// TTL is the time to live that etcd granted, at least that of WithTTL.
func (s *Session) TTL() time.Duration { return s.lease.TTL }

// Context ends with the session. Its cause is ErrSessionExpired or ErrSessionClosed.
func (s *Session) Context() context.Context { return s.lease.Ctx }

// Done is closed when the session ends, at its deadline at the latest.
func (s *Session) Done() <-chan struct{} { return s.lease.Ctx.Done() }

// Err is nil while the session lives, then ErrSessionExpired or ErrSessionClosed.
func (s *Session) Err() error { return s.lease.Err() }

// Deadline is the time up to which the session's locks can be vouched for without hearing of etcd again: 0.9 TTL after the
// session sent the last renewal that etcd confirmed. The tenth is for clocks that drift and timers that are late. Each renewal
// moves the deadline on; at the deadline the session ends.
func (s *Session) Deadline() time.Time { return s.lease.Deadline() }

// Refresh renews the lease now and waits for etcd's confirmation: one request if all is well. It repeats the request until ctx or
// the session ends. After nil, Deadline is nearly a TTL away, or less if an attempt before had no answer. An error of ctx changes nothing.
func (s *Session) Refresh(ctx context.Context) error {
	if err := s.lease.Refresh(ctx); err != nil {
		return fmt.Errorf("etcdlock: refresh session: %w", err)
	}
	return nil
}

// Orphan ends the session and leaves its lease, with the entries on it, until the TTL has passed. It is for a process that
// hands its locks to a successor, which takes the lease over with WithLease, and the holds with Adopt. Orphan sends
// nothing new, but blocks until what was released before is removed, and etcd has answered what is on its way: for 5 s or
// the TTL at the most, whichever is less. So tell the successor when Orphan has returned. Then two kinds of requests may
// still be carried out: those that had no answer in this time, and those of calls whose ctx ended before their answer.
// The session's own Close still revokes the lease, its [Client]'s Close does not.
func (s *Session) Orphan() {
	s.removals.Drains.Store(true)
	_ = inQueue(s.parts())                                                       // whoever is handing a lock over adds the removal first
	defer s.etcd.Drain(min(closeLimit, s.TTL()), s.removals.Drain(), s.Done())() // what waits for that finds the session ended
	s.lease.Orphan(ErrSessionClosed)
	s.keys.Orphan()
}

// forgetList forgets the list of a name, if nobody needs it any more.
func (s *Session) forgetList(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lists[name]; l != nil && l.Empty() {
		delete(s.lists, name)
	}
}

// allLists are the waitlists of the session, in any order.
func (s *Session) allLists() []*waitlist.List {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.lists))
}

// parts are those that the waitlists of the session have in their queues.
func (s *Session) parts() (all []*waitlist.Part) {
	for _, l := range s.allLists() {
		all = append(all, l.Parts()...)
	}
	return all
}

// Close ends the session at once and revokes its lease, which removes all its entries in one commit. It is an
// io.Closer: it blocks until etcd has confirmed the revocation, the session's goroutines have ended, and the hooks and
// the log have been told, for 5 s or the TTL at the most, whichever is less. Then it returns an error and goes on in
// the background, until the lease must have expired by itself. Further calls wait for the same.
func (s *Session) Close() error {
	return s.config.outbox.AwaitAfter(s.lease.Close(ErrSessionClosed), min(closeLimit, s.TTL()), s.closeError,
		fmt.Errorf("etcdlock: close session: lease %s is not known to be revoked, etcd lets it expire", s.lease))
}

// closeError is the error of Close, once that has done all.
func (s *Session) closeError() error {
	if err := s.lease.CloseError(); err != nil {
		return fmt.Errorf("etcdlock: close session: lease %s is not known to be revoked, etcd lets it expire: %w", s.lease, err)
	}
	return nil
}

// A source is what a lock takes its sessions from: a *Session, for locks that end with it, or a *Client, for locks
// that can be had for as long as the process lives.
type source interface {
	// sessionFor is the session to begin an acquisition of l in.
	sessionFor(ctx context.Context, l *lock, asked time.Time) (*Session, error)
	slash() bool // see WithTrailingSlash
	// goesOn reports whether an acquisition that failed in s with err, and left nothing, begins anew.
	goesOn(ctx context.Context, s *Session, err error) bool
}

// sessionFor is s itself as long as it lives.
func (s *Session) sessionFor(context.Context, *lock, time.Time) (*Session, error) {
	if s == nil {
		return nil, errNilSession
	}
	return s, s.Err()
}

func (s *Session) slash() bool { return s != nil && s.config.slash }

func (s *Session) goesOn(context.Context, *Session, error) bool { return false }
