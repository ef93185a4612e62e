package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

const (
	// readyTimeout is how long a new cluster may take until it serves. It usually
	// takes milliseconds, but machines that run tests stall.
	readyTimeout = 60 * time.Second

	// drainTimeout is how long Stop waits for requests and streams to end by themselves.
	drainTimeout = 500 * time.Millisecond

	// rebindInterval is the pause between two attempts to listen on a port that
	// another process took while the member was stopped.
	rebindInterval = 20 * time.Millisecond

	// lockLimit is how long a member that starts waits for others' locks on its data, and lockInterval how often it looks.
	lockLimit    = 10 * time.Second
	lockInterval = time.Millisecond

	// stopInterval is how often a member that stops cuts its remaining streams.
	stopInterval = 20 * time.Millisecond
)

// A Member is one etcd server of a [Cluster]. It is safe for concurrent use.
type Member struct {
	cluster  *Cluster
	index    int
	endpoint string        // its client URL
	config   *embed.Config // nil if the cluster is attached

	lifecycle sync.Mutex // held while the member is started or stopped

	mu      sync.Mutex
	running *server // nil while stopped

	isolated bool // guarded by cluster.mu
}

// A server is one run of a member, from its start to its stop.
type server struct {
	etcd *embed.Etcd

	mu   sync.Mutex
	grpc []*grpc.Server
}

// Index returns the index i for which [Cluster.Member](i) returns m.
func (m *Member) Index() int { return m.index }

// Endpoint returns the member's client URL. It stays the same after a restart.
func (m *Member) Endpoint() string { return m.endpoint }

// Etcd returns the running server, for operations that this package has no method for.
// It returns nil while the member is stopped, and always for an attached one. A restart
// makes a new server.
func (m *Member) Etcd() *embed.Etcd {
	if s := m.current(); s != nil {
		return s.etcd
	}
	return nil
}

// Stop stops the member as an operator would. It asks the clients to disconnect, waits
// half a second, and then cuts their streams. A leader hands its leadership over to
// another member. Stop does nothing to a stopped member.
func (m *Member) Stop() { m.shut((*server).drain) }

// Kill stops the member as a crash would: all its connections break, and the other
// members are not told. The data stays. Kill does nothing to a stopped member.
func (m *Member) Kill() { m.shut((*server).kill) }

// Restart starts the member with its old data, and waits until the member serves or
// ctx ends. It first kills a running member, and heals an isolated one. A member serves
// only when a majority runs: if more than a minority was stopped, restart the members
// concurrently. If ctx ends before the member serves, Restart returns an error, but the
// member stays started. After [Cluster.Close], Restart fails.
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
	// The member has opened new connections, even to isolated members: cut those.
	m.cluster.applyIsolation()
	return m.waitReady(ctx)
}

// Isolate cuts the member off from all other members, in both directions. Clients still
// reach it. An isolated leader believes that it leads for up to an election timeout;
// after that it has no leader, like an isolated follower.
func (m *Member) Isolate() { m.cluster.setIsolated(m, true) }

// Heal undoes Isolate. It returns at once; [Cluster.Leader] waits for a leader.
func (m *Member) Heal() { m.cluster.setIsolated(m, false) }

func (m *Member) current() *server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// start launches the member if it does not run. It does not wait until the member serves.
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
	// Only this hook gives access to the gRPC servers, and only through them can a
	// member be stopped without waiting for its clients.
	cfg.ServiceRegister = func(g *grpc.Server) {
		s.mu.Lock()
		s.grpc = append(s.grpc, g)
		s.mu.Unlock()
		if m.config.ServiceRegister != nil {
			m.config.ServiceRegister(g)
		}
	}
	var err error
	s.etcd, err = startAlone(&cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", cfg.Name, err)
	}
	m.mu.Lock()
	m.running = s
	m.mu.Unlock()
	return nil
}

// startAlone starts etcd once nobody has locks on its data. A process that is being started elsewhere in the program has, for
// a moment, the files of the server before, and with them the locks; etcd would end the program for that.
func startAlone(cfg *embed.Config) (*embed.Etcd, error) {
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "member", "wal", "*.wal"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		for deadline := time.Now().Add(lockLimit); locked(file) && time.Now().Before(deadline); {
			<-time.After(lockInterval)
		}
	}
	return embed.StartEtcd(cfg)
}

// locked reports whether somebody has a lock on a file. No process begins with the lock that is tried.
func locked(file string) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := fileutil.TryLockFile(file, os.O_WRONLY, fileutil.PrivateFileMode)
	if err == nil {
		_ = l.Close() // which unlocks it
	}
	return errors.Is(err, fileutil.ErrLocked)
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
	how(s)
	// Only now does the member count as stopped: until here it may have been the leader.
	m.mu.Lock()
	m.running = nil
	m.mu.Unlock()
}

func (s *server) drain() {
	select {
	case <-s.etcd.Server.ReadyNotify():
	default:
		// The server is not ready yet. Close would wait until it is, which without a
		// majority is forever.
		s.kill()
		return
	}
	cut := time.AfterFunc(drainTimeout, s.cutClients)
	defer cut.Stop()
	// Close drains the gRPC servers, then hands the leadership over, then stops.
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

// stop cuts all requests and streams of g. Over TLS, g does not own its connections: Stop
// closes only the streams that exist at that moment, and waits until all streams have
// ended. A client that opens its watch again meanwhile would make it wait forever, so
// stop calls Stop again and again.
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
