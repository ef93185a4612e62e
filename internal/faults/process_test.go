//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A helper is this test binary, started again as a process that can be paused and killed.

// helperEnv names the environment variable that has a helper's role and its argument.
const helperEnv = "ETCDLOCK_TEST_HELPER"

// roles are what a helper can be.
var roles = map[string]func(arg string, in *bufio.Reader) error{
	"holder":    locker(holderProcess),
	"signalled": locker(signalledProcess),
	"replica":   locker(replicaProcess),
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
