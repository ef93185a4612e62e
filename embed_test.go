package etcdlock

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/leaks"
)

// cluster is one embedded member that the tests of this package share. Each test
// uses its own lock names. Tests that inject faults into servers start their own.
//
// If ETCDLOCK_TEST_ENDPOINTS has URLs, separated by commas, the tests use those
// servers instead; see internal/compat.
var cluster *etcdtest.Cluster

// parallel is the minimum number of tests that run at the same time; see norace_test.go.
var parallel int

func TestMain(m *testing.M) {
	os.Exit(runMain(m))
}

func runMain(m *testing.M) int {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(parallel, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "etcdlock-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if endpoints := os.Getenv("ETCDLOCK_TEST_ENDPOINTS"); endpoints != "" {
		cluster = etcdtest.Attach(strings.Split(endpoints, ",")...)
	} else if cluster, err = etcdtest.New(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := runTests(m)
	cluster.Close()
	if code == 0 {
		// Neither the library nor the etcd clients that it uses may leave a goroutine.
		if err := leaks.FindBesidePeers(hang); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// runTests runs the tests, and follows those of faults through the model.
func runTests(m *testing.M) (code int) {
	if os.Getenv("ETCDLOCK_TEST_ENDPOINTS") != "" {
		return m.Run()
	}
	c, err := cluster.NewClient()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	defer followFaults(c)()
	if code = m.Run(); code == 0 {
		if err := checkFaults(c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// hang is a generous bound on the time of operations that must not hang.
const hang = 30 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

var nameSeq atomic.Int64

// lockName returns a name that no other test uses.
func lockName(t testing.TB) string {
	return fmt.Sprintf("test/%s/%d", strings.ReplaceAll(t.Name(), "/", "-"), nameSeq.Add(1))
}

func newTestSession(t testing.TB, client *clientv3.Client, opts ...Option) *Session {
	t.Helper()
	s, err := NewSession(testCtx(t), client, append(traced(t), opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = s.Close()
	})
	return s
}

// exclusiveBase and sharedBase are the first keys of a lease's entries.
func exclusiveBase(name string, id clientv3.LeaseID) string {
	return keyspace.Base(name, keyspace.Exclusive, int64(id))
}

func sharedBase(name string, id clientv3.LeaseID) string {
	return keyspace.Base(name, keyspace.Shared, int64(id))
}

// entries lists the keys below name, oldest first.
func entries(t testing.TB, client *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := client.Get(testCtx(t), name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	require.NoError(t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func TestSmoke(t *testing.T) {
	c := cluster.Client(t)
	s1, s2 := newTestSession(t, c), newTestSession(t, c)
	name := lockName(t)
	m1, m2 := NewMutex(s1, name), NewMutex(s2, name)
	h1, err := m1.Lock(testCtx(t))
	require.NoError(t, err)
	_, err = m2.TryLock(testCtx(t))
	require.ErrorIs(t, err, ErrLocked)
	tk, err := m2.Enqueue(testCtx(t))
	require.NoError(t, err)
	n, err := tk.Ahead(testCtx(t))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, h1.Unlock(testCtx(t)))
	h2, err := tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.Greater(t, h2.Token(), h1.Token())
	require.NoError(t, h2.Check(testCtx(t)))
	resp, err := h2.Txn(testCtx(t)).Then(clientv3.OpPut(name+"-x", "1")).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
	require.NotNil(t, resp.Responses[0].GetResponsePut())
	require.NoError(t, h2.Unlock(testCtx(t)))
	require.ErrorIs(t, h2.Unlock(testCtx(t)), ErrNotHeld)
	require.Empty(t, entries(t, c, name))
}

func BenchmarkUncontended(b *testing.B) {
	s := newTestSession(b, cluster.Client(b))
	m := NewMutex(s, lockName(b))
	for b.Loop() {
		h, err := m.Lock(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Unlock(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// tick is the interval at which a test checks a condition.
const tick = 5 * time.Millisecond

func revision(t testing.TB, c *clientv3.Client) int64 {
	t.Helper()
	resp, err := c.Get(testCtx(t), "nothing")
	require.NoError(t, err)
	return resp.Header.Revision
}

// keepBusy writes to etcd until the returned function is called, so that the revision
// always advances.
func keepBusy(t testing.TB) (stop func()) {
	c := cluster.Client(t)
	ctx, cancel := context.WithCancel(testCtx(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := c.Put(ctx, "busy", "x"); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// permutation returns a random order of 0..n-1.
func permutation(n int) []int { return rand.Perm(n) }

func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}
