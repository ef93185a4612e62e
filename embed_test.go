package etcdlock

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// cluster is one embedded member that the tests of this package share. Each test
// uses its own lock names. Tests that inject faults into servers start their own.
//
// If ETCDLOCK_TEST_ENDPOINTS has URLs, separated by commas, the tests use those
// servers instead; see internal/tool/compat.
var cluster *etcdtest.Cluster

func TestMain(m *testing.M) {
	os.Exit(harness.Main(&cluster, m.Run))
}

// Short names for what the tests of several packages share.
const (
	hang = harness.Hang
	tick = harness.Tick
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

// liveSession is the Client's current session, if it lives.
func (c *Client) liveSession() *Session {
	if s, lives := c.sessions.Last(); lives {
		return s
	}
	return nil
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
	queueIs(t, c, name, 0)
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

var discard = slog.New(slog.DiscardHandler)

// fakeEtcd is a fake of etcd with sessions on it, for tests in a synctest bubble.
type fakeEtcd struct{ *fakeetcd.Server }

func newFakeEtcd() *fakeEtcd { return &fakeEtcd{fakeetcd.New()} }

// session is a session on the fake, without the goroutine that renews.
func (f *fakeEtcd) session(id clientv3.LeaseID) *Session {
	s := f.bareSession(id)
	s.startChecks()
	return s
}

// bareSession is a session that does not check its entries either.
func (f *fakeEtcd) bareSession(id clientv3.LeaseID) *Session {
	var s *Session
	client := f.Client(func(ctx context.Context) (int64, error) { return s.lease.KeepAlive(ctx) })
	s = makeSession(client, config{lease: id, ttl: 10 * time.Second, log: discard, owner: "o"})
	s.lease.KeepAlive = func(context.Context) (int64, error) { return 10, nil }
	s.lease.Record(time.Now(), 3600)
	s.lease.TTL = 10 * time.Second
	return s
}

// entries are the keys below prefix now.
func (f *fakeEtcd) entries(prefix string) []queue.Entry { return queue.Entries(f.Keys(prefix)) }

// writeAll writes the keys, separated by spaces, in one revision.
func (f *fakeEtcd) writeAll(keys string) {
	var ops []*pb.RequestOp
	for _, key := range strings.Fields(keys) {
		ops = append(ops, fakeetcd.PutOp(key, "", 0))
	}
	f.Do(ops...)
}

// entitled is the definition of who may hold the lock.
func entitled(kind keyspace.Kind, rev int64, entries []queue.Entry) bool {
	return !slices.ContainsFunc(entries, func(e queue.Entry) bool {
		k := keyspace.KindOf("a", e.Key)
		return e.Rev < rev && (k == keyspace.Exclusive || k == keyspace.Shared && kind == keyspace.Exclusive)
	})
}
