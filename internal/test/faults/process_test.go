//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

// A helper is this test binary, started again as a process that can be paused and killed.

// helperEnv names the environment variable that has a helper's role and its argument.
const helperEnv = "ETCDLOCK_TEST_HELPER"

// roles are what a helper can be.
var roles = map[string]func(arg string, in *bufio.Reader) error{
	"holder":    locker(holderProcess),
	"signalled": locker(signalledProcess),
	"replica":   locker(replicaProcess),
	"multi":     locker(multiProcess),
	"adopter":   locker(adopterProcess),
	"candidate": locker(candidateProcess),
	"etcd":      etcdProcess,
}

// init runs a helper before TestMain starts a cluster.
func init() {
	role, arg, _ := strings.Cut(os.Getenv(helperEnv), " ")
	if role == "" {
		return
	}
	if err := roles[role](arg, bufio.NewReader(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A lockerArg is the argument of the helpers that take a lock.
type lockerArg struct {
	Endpoints []string
	Name      string // of the lock
	What      string // that it does; see each role
	Seconds   int    // of its TTL
}

// locker returns the role of a helper that takes a lock.
func locker(run func(ctx context.Context, a lockerArg, c *clientv3.Client, in *bufio.Reader) error) func(string, *bufio.Reader) error {
	return func(arg string, in *bufio.Reader) error {
		var a lockerArg
		if err := json.Unmarshal([]byte(arg), &a); err != nil {
			return err
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: a.Endpoints, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer c.Close()
		return run(context.Background(), a, c, in)
	}
}

// A process is a running helper.
type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startHelper(t *testing.T, role string, arg any) *process {
	t.Helper()
	a, err := json.Marshal(arg)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+role+" "+string(a), "GOMAXPROCS=1")
	return startProcess(t, cmd)
}

// startProcess starts a command whose stdin is closed when the test ends.
func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{cmd, in, bufio.NewReader(out)}
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// read decodes a line of the helper's output into v.
func (p *process) read(t *testing.T, v any) {
	t.Helper()
	line, err := p.out.ReadBytes('\n')
	require.NoError(t, err, "the helper has ended")
	require.NoError(t, json.Unmarshal(line, v))
}

// etcdArg configures a member of a cluster of processes.
type etcdArg struct{ Name, Dir, Client, Peer, Cluster string }

// etcdProcess runs a member until its stdin ends.
func etcdProcess(arg string, in *bufio.Reader) error {
	var a etcdArg
	if err := json.Unmarshal([]byte(arg), &a); err != nil {
		return err
	}
	one := func(s string) []url.URL {
		u, err := url.Parse(s)
		if err != nil {
			panic(err)
		}
		return []url.URL{*u}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = a.Name, a.Dir, a.Cluster
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = one(a.Client), one(a.Client)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = one(a.Peer), one(a.Peer)
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.UnsafeNoFsync, cfg.LogLevel = true, "fatal"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	}
	fmt.Println("true")
	_, _ = in.ReadString('\n')
	return nil
}

// startProcesses starts a cluster of three etcd processes.
func startProcesses(t *testing.T) (members []*process, endpoints []string) {
	t.Helper()
	urls, err := loopback.FreeAddrs(6)
	require.NoError(t, err)
	for i, addr := range urls {
		urls[i] = "http://" + addr
	}
	var initial []string
	for i := range 3 {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, urls[3+i]))
	}
	for i := range 3 {
		members = append(members, startHelper(t, "etcd", etcdArg{fmt.Sprintf("m%d", i), t.TempDir(), urls[i], urls[3+i], strings.Join(initial, ",")}))
	}
	for _, m := range members {
		var ready bool
		m.read(t, &ready)
	}
	return members, urls[:3]
}

// processClient returns a client of etcd processes.
func processClient(t *testing.T, endpoints []string, opts ...grpc.DialOption) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialOptions: opts})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// leaderOf waits for a leader and returns its index.
func leaderOf(t *testing.T, endpoints []string) (leader int) {
	t.Helper()
	var clients []*clientv3.Client
	for _, e := range endpoints {
		clients = append(clients, processClient(t, []string{e}))
	}
	require.Eventually(t, func() bool {
		for i, e := range endpoints {
			st, err := clients[i].Status(harness.Ctx(t), e)
			if err == nil && st.Header.MemberId == st.Leader {
				leader = i
				return true
			}
		}
		return false
	}, harness.Hang, harness.Tick, "the cluster has no leader")
	return leader
}
