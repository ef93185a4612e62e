package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// startAttempts is how many times New tries new ports before it gives up because a
// port was taken.
const startAttempts = 20

// A Cluster is an etcd cluster that runs inside this process, or one that was
// attached with [Attach]. It is safe for concurrent use.
type Cluster struct {
	members []*Member
	tempDir string // removed by Close, unless empty
	release func() // lets others have the members' addresses; nil before there are any

	mu        sync.Mutex // guards Member.isolated and the cuts between members
	closeOnce sync.Once
	closed    atomic.Bool // set before Close stops the members; no member starts after that
}

// Start starts a cluster with its data in tb's temporary directory, waits until all
// members serve, and closes the cluster when the test ends. It fails the test if the
// cluster can't start.
func Start(tb testing.TB, opts ...Option) *Cluster {
	tb.Helper()
	c, err := New(tb.TempDir(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// New is [Start] for code that has no [testing.TB]. The data goes to dir, which must
// not hold the data of an earlier cluster. If dir is empty, New makes a temporary
// directory, and Close removes it. The caller must call Close.
func New(dir string, opts ...Option) (*Cluster, error) {
	cfg := config{members: 1}
	for _, o := range opts {
		o.apply(&cfg)
	}
	if cfg.members < 1 {
		return nil, fmt.Errorf("etcdtest: a cluster of %d members", cfg.members)
	}
	c := &Cluster{}
	if dir == "" {
		var err error
		if c.tempDir, err = os.MkdirTemp("", "etcdtest-"); err != nil {
			return nil, fmt.Errorf("etcdtest: %w", err)
		}
		dir = c.tempDir
	}
	if err := c.start(dir, cfg); err != nil {
		c.Close()
		return nil, fmt.Errorf("etcdtest: start: %w", err)
	}
	return c, nil
}

// errAttached is returned for operations that need a server of this process.
var errAttached = errors.New("etcdtest: not possible on an attached cluster: its servers run elsewhere")

// errClosed is returned when a member is started after Close.
var errClosed = errors.New("the cluster is closed")

// Attach returns a Cluster for servers that run elsewhere, such as etcd processes of
// another version. The endpoints are the URLs at which the servers accept clients.
// Attach makes no request.
//
// Clients, proxies and taps work as with any other Cluster. Methods that need a server
// in this process do not: Stop, Kill, Isolate and Heal panic; Restart, Leader,
// MoveLeader and Compact return an error; Etcd returns nil. Close does not stop the
// servers.
func Attach(endpoints ...string) *Cluster {
	c := &Cluster{}
	for i, e := range endpoints {
		c.members = append(c.members, &Member{cluster: c, index: i, endpoint: e})
	}
	return c
}

// start starts the members. Another process may take a port after it was chosen and
// before the member listens on it, above all when packages are tested in parallel;
// start then tries again with other ports.
func (c *Cluster) start(dir string, cfg config) error {
	for i := range cfg.members {
		d := filepath.Join(dir, memberName(i))
		if _, err := os.Stat(d); err == nil {
			return fmt.Errorf("%s: %w", d, os.ErrExist)
		}
	}
	var err error
	for range startAttempts {
		if err = c.startOnce(dir, cfg); err == nil {
			return nil
		}
		for i, m := range c.members {
			m.Kill()
			if rerr := os.RemoveAll(filepath.Join(dir, memberName(i))); rerr != nil {
				return errors.Join(err, rerr)
			}
		}
		c.members = nil
		c.releaseAddrs()
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return err
}

func (c *Cluster) startOnce(dir string, cfg config) error {
	addrs, err := loopback.FreeAddrs(2 * cfg.members)
	if err != nil {
		return err
	}
	c.release = loopback.Keep(addrs) // also while a member is stopped
	for i, ec := range memberConfigs(dir, cfg, addrs) {
		c.members = append(c.members, &Member{cluster: c, index: i, endpoint: ec.ListenClientUrls[0].String(), config: ec})
	}
	// A member becomes ready only when a majority runs, so start all of them first.
	for _, m := range c.members {
		if err := m.start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for _, m := range c.members {
		if err := m.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Member returns the i-th member, counted from 0.
func (c *Cluster) Member(i int) *Member { return c.members[i] }

// Endpoints returns the client URLs of all members, in the order of the members.
func (c *Cluster) Endpoints() []string {
	eps := make([]string, len(c.members))
	for i, m := range c.members {
		eps[i] = m.Endpoint()
	}
	return eps
}

// Close stops all members at once, even while clients are connected. It is
// idempotent.
func (c *Cluster) Close() {
	c.closeOnce.Do(func() {
		c.closed.Store(true)
		var wg sync.WaitGroup
		for _, m := range c.members {
			if m.config != nil {
				wg.Go(m.Kill)
			}
		}
		wg.Wait()
		c.releaseAddrs()
		if c.tempDir != "" {
			_ = os.RemoveAll(c.tempDir) // a leftover in the temporary directory does no harm
		}
	})
}

func (c *Cluster) releaseAddrs() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

func memberName(i int) string { return fmt.Sprintf("m%d", i) }
