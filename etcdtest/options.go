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

// WithFsync makes the members call fsync, as in production. A commit then takes as long
// as the disk takes. By default, members do not call fsync.
func WithFsync() Option {
	return optionFunc(func(c *config) { c.fsync = true })
}

// WithConfig passes the configuration of each member to f after all other fields were
// set. It calls f again, with other ports, if a port turns out to be taken. The members
// are named m0, m1 and so on. If f sets ClientTLSInfo or ClientAutoTLS, the client URLs
// become https URLs. f should not change the URLs in other ways.
func WithConfig(f func(*embed.Config)) Option {
	return optionFunc(func(c *config) { c.configure = append(c.configure, f) })
}
