package etcdtest

import (
	"go.etcd.io/etcd/server/v3/embed"
)

// An Option changes how a cluster is started.
type Option interface{ apply(*config) }

type config struct {
	members   int
	fsync     bool
	configure []func(*embed.Config)
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithMembers sets the number of members; the default is 1.
func WithMembers(n int) Option {
	return optionFunc(func(c *config) { c.members = n })
}

// WithFsync makes the members call fsync as in production: a commit then costs
// what the disk costs. The default is not to.
func WithFsync() Option {
	return optionFunc(func(c *config) { c.fsync = true })
}

// WithConfig passes the configuration of each member to f, after everything else
// was filled in, and again with other ports when a port turns out to be taken.
// The members are named m0, m1 and so on. Setting ClientTLSInfo or
// ClientAutoTLS turns the client URLs into https ones. The URLs are otherwise
// to be left alone.
func WithConfig(f func(*embed.Config)) Option {
	return optionFunc(func(c *config) { c.configure = append(c.configure, f) })
}
