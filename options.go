package etcdlock

import (
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
// makes.
type SessionOption interface{ apply(*sessionConfig) }

type sessionOption func(*sessionConfig)

func (f sessionOption) apply(c *sessionConfig) { f(c) }

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

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s %s[%d]", host, filepath.Base(os.Args[0]), os.Getpid())
}
