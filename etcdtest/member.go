package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

const (
	// readyTimeout bounds the time in which a new cluster must serve. It takes
	// milliseconds, but machines that run tests stall.
	readyTimeout = 60 * time.Second

	// drainTimeout is how long Stop lets requests and streams end by themselves.
	drainTimeout = 500 * time.Millisecond

	// rebindInterval is the pause between two tries to listen on a port that
	// somebody else took while the member was stopped.
	rebindInterval = 20 * time.Millisecond

	// stopInterval is the pause between two cuts of the streams of a member that stops.
	stopInterval = 20 * time.Millisecond
)

// A Member is one etcd server of a [Cluster]. It is safe for concurrent use.
type Member struct {
	cluster  *Cluster
	index    int
	endpoint string        // its client URL
	config   *embed.Config // nil where the cluster is attached

	lifecycle sync.Mutex // held while the member is started or stopped

	mu      sync.Mutex
	running *server // nil while stopped

	isolated bool // guarded by cluster.mu
}

// A server is one run of a member, from a start to the next stop.
type server struct {
	etcd *embed.Etcd

	mu   sync.Mutex
	grpc []*grpc.Server
}

// Index returns the i with which [Cluster.Member] returns m.
func (m *Member) Index() int { return m.index }

// Endpoint returns the member's client URL. It stays the same over a restart.
func (m *Member) Endpoint() string { return m.endpoint }

// Etcd returns the running server, for what this package has no method for, or nil
// while the member is stopped or where it is attached. After a restart it is another one.
func (m *Member) Etcd() *embed.Etcd {
	if s := m.current(); s != nil {
		return s.etcd
	}
	return nil
}

// Stop stops the member as an operator would: clients are asked to leave and get
// half a second for it, after which their streams are cut; a leader hands over to
// another member. It does nothing to a stopped member.
func (m *Member) Stop() { m.shut((*server).drain) }

// Kill stops the member as a crash would: all connections break, nobody is told,
// and the others have to find out. The data stay. It does nothing to a stopped
// member.
func (m *Member) Kill() { m.shut((*server).kill) }

// Restart starts the member with the data that it had, and waits until it serves or
// ctx ends. It kills a running member first and heals an isolated one. A
// member serves only once a majority runs: after more than a minority was
// stopped, restart them concurrently. When ctx ends while the member waits for that,
// Restart returns an error, but the member stays started. Nothing starts after
// [Cluster.Close].
func (m *Member) Restart(ctx context.Context) error {
	if m.config == nil {
		return errAttached
	}
	m.Kill()
	m.cluster.setIsolated(m, false)
	if err := m.restart(ctx); err != nil {
		return fmt.Errorf("etcdtest: restart: %w", err)
	}
	return nil
}

func (m *Member) restart(ctx context.Context) error {
	for {
		err := m.start()
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		select {
		case <-time.After(rebindInterval):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
	// Its connections to the others are new, also those to an isolated member.
	m.cluster.applyIsolation()
	return m.waitReady(ctx)
}

// Isolate cuts the member off from all other members, in both directions. Clients
// still reach it: an isolated leader believes that it leads for up to an
// election timeout, then it has no leader, like an isolated follower.
func (m *Member) Isolate() { m.cluster.setIsolated(m, true) }

// Heal undoes Isolate. It returns at once; [Cluster.Leader] waits for a leader.
func (m *Member) Heal() { m.cluster.setIsolated(m, false) }

func (m *Member) current() *server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// start launches the member unless it runs, without waiting until it serves.
func (m *Member) start() error {
	m.lifecycle.Lock()
	defer m.lifecycle.Unlock()
	if m.cluster.closed.Load() {
		return errClosed
	}
	if m.current() != nil {
		return nil
	}
	s := &server{}
	cfg := *m.config
	// This hook is the one way to get hold of the gRPC servers, and these are the one
	// way to stop a member without waiting for its clients.
	cfg.ServiceRegister = func(g *grpc.Server) {
		s.mu.Lock()
		s.grpc = append(s.grpc, g)
		s.mu.Unlock()
		if m.config.ServiceRegister != nil {
			m.config.ServiceRegister(g)
		}
	}
	var err error
	if s.etcd, err = embed.StartEtcd(&cfg); err != nil {
		return fmt.Errorf("%s: %w", cfg.Name, err)
	}
	m.mu.Lock()
	m.running = s
	m.mu.Unlock()
	return nil
}

func (m *Member) waitReady(ctx context.Context) error {
	s := m.current()
	if s == nil {
		return fmt.Errorf("%s: stopped", m.config.Name)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case <-s.etcd.Server.StopNotify():
		return fmt.Errorf("%s: stopped before it was ready", m.config.Name)
	case err := <-s.etcd.Err():
		return fmt.Errorf("%s: stopped before it was ready: %w", m.config.Name, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: not ready: %w", m.config.Name, ctx.Err())
	}
}

func (m *Member) shut(how func(*server)) {
	if m.config == nil {
		panic(errAttached)
	}
	m.lifecycle.Lock()
	defer m.lifecycle.Unlock()
	s := m.current()
	if s == nil {
		return
	}
	// Only afterwards is the member a stopped one: until then it may be the leader.
	how(s)
	m.mu.Lock()
	m.running = nil
	m.mu.Unlock()
}

func (s *server) drain() {
	select {
	case <-s.etcd.Server.ReadyNotify():
	default:
		// It serves nobody yet. Close would wait until it does, without a majority for good.
		s.kill()
		return
	}
	cut := time.AfterFunc(drainTimeout, s.cutClients)
	defer cut.Stop()
	// It drains the gRPC servers first, then hands over, then stops.
	s.etcd.Close()
}

func (s *server) kill() {
	s.cutClients()
	s.etcd.Server.HardStop()
	s.etcd.Close()
}

func (s *server) cutClients() {
	s.mu.Lock()
	servers := s.grpc
	s.mu.Unlock()
	for _, g := range servers {
		stop(g)
	}
}

// stop cuts all that g serves. Over TLS g has streams only, on connections that
// are not its own: Stop closes those that it sees and waits for the last to end, and
// a client that opens its watch again in the meantime would keep it waiting for good.
func stop(g *grpc.Server) {
	stopped := make(chan struct{})
	done := sync.OnceFunc(func() { close(stopped) })
	again := time.NewTicker(stopInterval)
	defer again.Stop()
	for {
		go func() {
			defer done()
			g.Stop()
		}()
		select {
		case <-stopped:
			return
		case <-again.C:
		}
	}
}
