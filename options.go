package etcdlock

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defaultTTL = 10 * time.Second
	minTTL     = time.Second
)

type sessionConfig struct {
	ttl   time.Duration
	owner string
	lease clientv3.LeaseID
	log   *slog.Logger
}

// configOf is what opts make of the defaults.
func configOf(opts []SessionOption) sessionConfig {
	c := sessionConfig{ttl: defaultTTL, log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o.apply(&c)
	}
	return c
}

// A SessionOption changes what NewSession makes, and the sessions that a Pool
// or an Elector makes.
type SessionOption interface {
	ElectorOption
	apply(*sessionConfig)
}

type sessionOption func(*sessionConfig)

func (f sessionOption) apply(c *sessionConfig)        { f(c) }
func (f sessionOption) applyElector(c *electorConfig) { c.session = append(c.session, f) }

// WithTTL sets for how long locks outlive a process that dies, and how long
// etcd may be away before they are lost. It is rounded up to whole seconds;
// etcd may grant more (see Session.TTL) and never less. The default is 10 s, the
// minimum 1 s.
func WithTTL(ttl time.Duration) SessionOption {
	return sessionOption(func(c *sessionConfig) { c.ttl = ttl })
}

// WithOwner sets what the session's entries say of their owner to people who
// look at the queue. The default names host and process.
func WithOwner(owner string) SessionOption {
	return sessionOption(func(c *sessionConfig) { c.owner = owner })
}

// WithLease adopts a lease that was granted elsewhere, instead of granting
// one; WithTTL has no effect then. The session keeps it alive, and Close
// revokes it. Entries that others made with it are nothing to this session.
func WithLease(id clientv3.LeaseID) SessionOption {
	return sessionOption(func(c *sessionConfig) { c.lease = id })
}

// WithLogger sets where the session tells of its beginning and end, of lost
// locks and of trouble with etcd; the default is nowhere.
func WithLogger(l *slog.Logger) SessionOption {
	return sessionOption(func(c *sessionConfig) { c.log = l })
}

type electorConfig struct {
	session []SessionOption
	grace   time.Duration
	overrun func(term *Held) // nil: nobody is told
	err     error            // of every call
}

// An ElectorOption changes what NewElector makes. Every [SessionOption] is one.
type ElectorOption interface{ applyElector(*electorConfig) }

type electorOption func(*electorConfig)

func (f electorOption) applyElector(c *electorConfig) { f(c) }

// WithOverrun has report called when lead has not returned within grace of
// hearing that its term is lost: it may go on as if it led, while somebody else
// does. It is called once for such a term, on a goroutine of its own, which Run
// waits for; it may well end the process. See also [Elector.Check].
func WithOverrun(grace time.Duration, report func(term *Held)) ElectorOption {
	return electorOption(func(c *electorConfig) {
		c.grace, c.overrun = grace, report
		if report == nil {
			c.err = errors.New("WithOverrun has no function: leave it out")
		}
	})
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s %s[%d]", host, filepath.Base(os.Args[0]), os.Getpid())
}
