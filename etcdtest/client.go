package etcdtest

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A ClientOption changes how a client is made.
type ClientOption interface{ applyClient(*clientv3.Config) }

type clientOptionFunc func(*clientv3.Config)

func (f clientOptionFunc) applyClient(c *clientv3.Config) { f(c) }

// WithClientConfig passes the client's configuration to f, which may set
// endpoints, credentials, TLS, dial options or anything else. If f leaves the
// endpoints empty, the client gets those of all members.
func WithClientConfig(f func(*clientv3.Config)) ClientOption {
	return clientOptionFunc(f)
}

// Client returns a new client connected to all members. It has the default
// configuration, except that it logs nothing. It is closed when the test ends.
func (c *Cluster) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	client, err := c.NewClient(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	// The test may have closed it itself, which makes this an error.
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// NewClient is [Cluster.Client] for code that has no [testing.TB]. The caller must
// close the client.
func (c *Cluster) NewClient(opts ...ClientOption) (*clientv3.Client, error) {
	cfg := clientv3.Config{Logger: zap.NewNop()}
	for _, o := range opts {
		o.applyClient(&cfg)
	}
	if len(cfg.Endpoints) == 0 {
		cfg.Endpoints = c.Endpoints()
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcdtest: client: %w", err)
	}
	return client, nil
}
