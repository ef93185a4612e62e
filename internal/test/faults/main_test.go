package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// cluster is one member that the tests share. Each test uses its own lock names. Tests that inject
// faults into servers start their own.
var cluster *etcdtest.Cluster

func TestMain(m *testing.M) {
	os.Exit(harness.Main(&cluster, func() int { return followed(m.Run) }))
}

// followed runs the tests and then follows what they did through the model.
func followed(run func() int) int {
	if err := harness.ParallelWaits(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !harness.OwnServers() {
		return run()
	}
	c, err := cluster.NewClient()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	defer followFaults(c)()
	code := run()
	if code == 0 {
		if err := checkFaults(c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// seconds is the duration of tests that can run for any time: ETCDLOCK_SECONDS, by
// default 5 in full.
func seconds(t testing.TB) time.Duration {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("ETCDLOCK_SECONDS"), strconv.Itoa(sample.Rounds(t, 3, 5))))
	require.NoError(t, err, "ETCDLOCK_SECONDS")
	return time.Duration(n) * time.Second
}

// newSession makes a session that a machine which stalls does not lose, unless the options give it another TTL.
func newSession(t testing.TB, client *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	opts = slices.Concat([]etcdlock.Option{etcdlock.WithTTL(2 * harness.Hang)}, traced(t), opts)
	s, err := etcdlock.NewSession(harness.Ctx(t), client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newClient(t testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Client {
	t.Helper()
	locks := etcdlock.New(c, opts...)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

func mustLock(t testing.TB, s *etcdlock.Session, name string) *etcdlock.Held {
	t.Helper()
	return harness.Take(t, etcdlock.NewMutex(s, name).Lock)
}

// unhedged takes a lock by a request that was not sent again beside itself, as a machine that stalls may bring about: nobody
// expects a late write of it, so its key is free at once after it, and its hold has no fence.
func unhedged(t testing.TB, lock harness.Lock[*etcdlock.Held]) *etcdlock.Held {
	t.Helper()
	return harness.Quickly(t, lock, (*etcdlock.Held).Unlock)
}

// unhedgedTicket is a place in the queue that was taken like that: its grant needs no request to learn what etcd wrote.
func unhedgedTicket(t testing.TB, enqueue harness.Lock[*etcdlock.Ticket]) *etcdlock.Ticket {
	t.Helper()
	return harness.Quickly(t, enqueue, (*etcdlock.Ticket).Cancel)
}

// lockFuncs are the ways to take a lock of this name.
func lockFuncs(s *etcdlock.Session, name string) map[string]func(context.Context) (*etcdlock.Held, error) {
	return harness.Ways(etcdlock.NewMutex(s, name), etcdlock.NewRWMutex(s, name))
}

// withMultis are lockFuncs, and the ways to take a Multi of that name and of two names below it.
func withMultis(s *etcdlock.Session, name string) map[string]func(context.Context) (*etcdlock.Held, error) {
	m := etcdlock.NewMulti(s, etcdlock.Write(name), etcdlock.Write(name+"/1"), etcdlock.Read(name+"/2"))
	all := lockFuncs(s, name)
	all["Multi"], all["Multi try"] = m.Lock, m.TryLock
	all["Multi ticket"] = func(ctx context.Context) (*etcdlock.Held, error) {
		tk, err := m.Enqueue(ctx)
		if err != nil {
			return nil, err
		}
		h, err := tk.Wait(ctx)
		if err != nil {
			err = errors.Join(err, tk.Cancel(context.WithoutCancel(ctx))) // the place outlasts ctx
		}
		return h, err
	}
	return all
}

// requireAllGone requires that etcd has no entry of the names of withMultis, and that another session gets the lock.
func requireAllGone(t *testing.T, c *clientv3.Client, name string) {
	t.Helper()
	for _, name := range []string{name, name + "/1", name + "/2"} {
		harness.RequireGone(t, c, name)
		requireFree(t, name)
	}
}

// rest has whoever takes a lock over and over leave the processor to the other tests: in the quick run these need the time.
func rest() {
	if !sample.Full() {
		harness.Elapse(harness.Tick)
	}
}

// requireFree requires that another session gets the lock.
func requireFree(t *testing.T, name string) {
	t.Helper()
	h, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}
