//go:build unix

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// begin starts `etcdlock run` with a standard input that end closes.
func begin(t *testing.T, endpoints []string, args ...string) (r *invocation, end func()) {
	t.Helper()
	return beginAs(t, "run", endpoints, args...)
}

func beginAs(t *testing.T, subcommand string, endpoints []string, args ...string) (r *invocation, end func()) {
	t.Helper()
	r = command(t, []string{"ETCDCTL_ENDPOINTS=" + strings.Join(endpoints, ",")}, append([]string{subcommand}, args...)...)
	in, err := r.cmd.StdinPipe()
	require.NoError(t, err)
	r.launch(t)
	return r, func() { require.NoError(t, in.Close()) }
}

// section is a command that prints its process and its token, and runs until its input
// ends.
var section = []string{"sh", "-c", "echo in $$ $ETCDLOCK_TOKEN; read line; echo out"}

// inSection waits until that command runs.
func (r *invocation) inSection(t *testing.T) (pid int, token int64) {
	t.Helper()
	m := r.until(t, `^in (\d+) (\d+)$`)
	return int(mustInt(m[1])), mustInt(m[2])
}

// stop stops the command, and returns when it has stopped: a process with several
// threads continues for a moment.
func (r *invocation) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	var ws syscall.WaitStatus
	err := error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		_, err = syscall.Wait4(r.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil)
	}
	require.NoError(t, err)
	require.True(t, ws.Stopped())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// waiters waits until n entries are in the queue of a lock. It returns their keys in the
// order of their revisions.
func waiters(t *testing.T, client *clientv3.Client, name string, n int) (keys []string) {
	t.Helper()
	ctx := bounded(t)
	events := client.Watch(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	for {
		wr, ok := <-events
		require.True(t, ok && wr.Err() == nil, "waiting for %d entries", n)
		got, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		require.NoError(t, err)
		if len(got.Kvs) == n {
			for _, kv := range got.Kvs {
				keys = append(keys, string(kv.Key))
			}
			return keys
		}
	}
}

// contend queues for the lock. outlived waits for it, and reports whether any of the
// processes is alive at that moment.
func contend(t *testing.T, client *clientv3.Client, name string) (outlived func(pids ...int) bool, free func()) {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client)
	require.NoError(t, err)
	ticket, err := etcdlock.NewMutex(s, name).Enqueue(bounded(t))
	require.NoError(t, err)
	outlived = func(pids ...int) bool {
		_, err := ticket.Wait(bounded(t))
		require.NoError(t, err)
		return slices.ContainsFunc(pids, alive)
	}
	return outlived, func() { require.NoError(t, s.Close()) }
}

// intercepted makes each member call f with each request before it handles the request.
func intercepted(f func(ctx context.Context, req any)) etcdtest.Option {
	return etcdtest.WithConfig(func(c *embed.Config) {
		c.GRPCAdditionalServerOptions = append(c.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				f(ctx, req)
				return handler(ctx, req)
			}))
	})
}

// stubborn is a command that ignores SIGTERM, but prints a line when it gets one. Its
// child ignores SIGTERM too.
const stubborn = `trap "echo TERM" TERM; sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' & echo $$; while :; do wait; done`

func (r *invocation) stubbornPids(t *testing.T) []int {
	t.Helper()
	return []int{int(mustInt(r.until(t, `^(\d+)$`)[1])), int(mustInt(r.until(t, `^(\d+)$`)[1]))}
}

func requireDead(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !alive(pid) }, hang, 5*time.Millisecond)
	}
}

// enqueued puts an entry into a queue. Its session is closed at the end of the test.
func enqueued(t *testing.T, client *clientv3.Client, owner, name string, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(bounded(t), client, append(opts, etcdlock.WithOwner(owner))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	_, err = etcdlock.NewMutex(s, name).Enqueue(bounded(t))
	require.NoError(t, err)
	return s
}

// ask runs a command to its end.
func ask(t *testing.T, cluster *etcdtest.Cluster, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return askAt(t, strings.Join(cluster.Endpoints(), ","), args...)
}

func askAt(t *testing.T, endpoints string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	r := start(t, []string{"ETCDCTL_ENDPOINTS=" + endpoints}, args...)
	status = r.wait(t)
	return status, r.output(), r.stderr.String()
}

func revision(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	got, err := client.Get(bounded(t), key)
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	return got.Kvs[0].CreateRevision
}
