package etcdlock

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/harness"
)

// cluster is one embedded member that the tests of this package share. Each test
// uses its own lock names. Tests that inject faults into servers start their own.
//
// If ETCDLOCK_TEST_ENDPOINTS has URLs, separated by commas, the tests use those
// servers instead; see internal/compat.
var cluster *etcdtest.Cluster

func TestMain(m *testing.M) {
	os.Exit(harness.Main(&cluster, m.Run))
}

// Short names for what the tests of several packages share.
const (
	hang = harness.Hang
	tick = harness.Tick
	told = harness.Told
)

var (
	testCtx       = harness.Ctx
	lockName      = harness.LockName
	entries       = harness.Entries
	exclusiveBase = harness.ExclusiveKey
	sharedBase    = harness.SharedKey
	queueIs       = harness.QueueIs
	requireGone   = harness.RequireGone
	revision      = harness.Revision
	leases        = harness.Leases
	wiredClient   = harness.WiredClient
	errLostReply  = harness.ErrLostReply
	rangesOf      = harness.RangesOf
	elapse        = harness.Elapse
	async         = harness.Async
	hangs         = harness.Hangs
	result        = harness.Result
	inBackground  = harness.InBackground[*Held]
	authCluster   = harness.StartWithAuth
)

func notGranted(t testing.TB, tk *Ticket, ahead int) { t.Helper(); harness.NotGranted(t, tk, ahead) }

func newTestSession(t testing.TB, client *clientv3.Client, opts ...Option) *Session {
	t.Helper()
	s, err := NewSession(testCtx(t), client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = s.Close()
	})
	return s
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
