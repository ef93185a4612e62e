// The options of New and NewSession, and their defaults.

package etcdlock

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/outbox"
	"github.com/etcdlock/etcdlock/internal/settle"
)

const (
	defaultTTL = 10 * time.Second
	minTTL     = time.Second
	closeLimit = 5 * time.Second // bounds what Close takes, beside the TTL
)

// maxParts is how many names a Multi may have: with a read and a write for each, and as much again to spare, its
// requests keep within the 128 operations that etcd allows in a transaction by default.
const maxParts = 32

type config struct {
	ttl     time.Duration
	owner   string
	lease   clientv3.LeaseID
	log     *slog.Logger
	hooks   []*Hooks
	slash   bool            // see WithTrailingSlash
	outages *outage.Outages // of all sessions of a Client
	outbox  *outbox.Outbox  // of all sessions, for log and hooks
	client  any             // the Client whose sessions they are; nil of NewSession's
	err     error           // of an option
}

// newConfig is what opts make of the defaults.
func newConfig(opts []Option) config {
	c := config{ttl: defaultTTL, log: slog.New(slog.DiscardHandler), outbox: &outbox.Outbox{}, outages: &outage.Outages{Blip: outage.Blip}}
	for _, o := range opts {
		if o == nil {
			o = option(func(c *config) { c.err = errNilOption })
		}
		o.apply(&c)
	}
	if c.owner == "" {
		c.owner = settle.DefaultOwner()
	}
	c.log = c.outbox.Logger(c.log)
	return c
}

// check says what is wrong with the configuration of a session of that client.
func (c config) check(client *clientv3.Client) error {
	switch {
	case client == nil:
		return errNilClient
	case client.KV == nil, client.Lease == nil, client.Watcher == nil: // of NewCtxClient, which leaves them to its caller
		return errors.New("the client has no KV, Lease or Watcher: make one with clientv3.New")
	case c.err != nil:
		return c.err
	case c.lease < 0:
		// Its keys are none of the grammar: others would pass them over, and so be holders beside this session.
		return fmt.Errorf("lease %d: its ID is negative, and so it can't have locks: let etcd choose the ID", c.lease)
	case c.ttl < minTTL:
		return fmt.Errorf("TTL %v: etcd's leases last %v at least", c.ttl, minTTL)
	case c.log == nil, c.log.Handler() == nil:
		return errors.New("the logger is nil: leave WithLogger out for silence")
	case slices.Contains(c.hooks, nil):
		return errors.New("the hooks are nil: leave WithHooks out for none")
	}
	return nil
}

// An Option changes the sessions that New and NewSession make.
type Option interface{ apply(*config) }

type option func(*config)

func (f option) apply(c *config) { f(c) }

// WithTTL sets how long locks outlive a process that dies, and how long etcd may be away before they are lost. The TTL is
// rounded up to whole seconds; etcd may grant more (see [Session.TTL]) and never less. The default is 10 s, the minimum 1 s.
func WithTTL(ttl time.Duration) Option { return option(func(c *config) { c.ttl = ttl }) }

// WithOwner sets what the session's entries say of their owner to people who look at the queue. The default names host and process.
func WithOwner(owner string) Option { return option(func(c *config) { c.owner = owner }) }

// WithLease adopts a lease that was granted elsewhere, instead of granting one. WithTTL has no effect then. The
// session keeps the lease alive, and Close revokes it. Entries that others made with the lease are theirs, until
// [Session.Adopt]. If the lease is gone, the error is etcd's rpctypes.ErrLeaseNotFound. An ID that is negative, which etcd never
// chooses by itself, is an error, and clientv3.NoLease is no lease to adopt: one is granted. WithLease is for NewSession only.
func WithLease(id clientv3.LeaseID) Option { return option(func(c *config) { c.lease = id }) }

// WithLogger sets where sessions log; the default is nowhere. In good times a session logs one line, when it is up. It logs one
// line when it is lost, which names the first of the locks that are lost with it, and one for a lock that is lost alone. When
// etcd is away for a second, also from the start, the session logs one line, with the cause and what to check, and one when
// etcd is back; the same, at once, when etcd refuses all locks (full, CORRUPT). What Close and Orphan end is not logged.
func WithLogger(l *slog.Logger) Option { return option(func(c *config) { c.log = l }) }

// WithHooks sets functions to be called when something happens to a session or to its locks. If WithHooks is given more than once,
// all hooks are called, in the order given. Hooks must not be changed afterwards. A session without hooks pays nothing for them.
func WithHooks(hooks ...*Hooks) Option {
	return option(func(c *config) { c.hooks = append(c.hooks, hooks...) })
}

// WithTrailingSlash accepts names that end in "/", but not in a [Multi], to share them with programs that use etcd's own concurrency
// package. [Client.ListNames] passes such names over.
func WithTrailingSlash() Option { return option(func(c *config) { c.slash = true }) }

// published is what an acquisition says to programs: in a field of its value or, if it is raw, as the value itself. The
// zero value is nothing.
type published struct {
	value string
	raw   bool
}
