package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/ordering"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows D4 and J14: clients whose requests pass through something else. docs/compat.md has a row for each kind, which
// internal/tool/compat writes.

// A through is a client and what is special about it.
type through struct {
	client *clientv3.Client
	prefix string             // of its keys in etcd
	used   func(t *testing.T) // says, at the end, that requests have passed through the wrapper
}

// counted are the requests that pass through a user's own wrapper.
type counted struct{ txns, grants, watches atomic.Int64 }

type countedKV struct {
	clientv3.KV
	n *counted
}

func (kv countedKV) Txn(ctx context.Context) clientv3.Txn {
	kv.n.txns.Add(1)
	return kv.KV.Txn(ctx)
}

type countedLease struct {
	clientv3.Lease
	n *counted
}

func (l countedLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	l.n.grants.Add(1)
	return l.Lease.Grant(ctx, ttl)
}

type countedWatcher struct {
	clientv3.Watcher
	n *counted
}

func (w countedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.n.watches.Add(1)
	return w.Watcher.Watch(ctx, key, opts...)
}

// withKV puts kv in the client's place for that.
func withKV(c *clientv3.Client, kv clientv3.KV) through {
	n := &counted{}
	c.KV = countedKV{kv, n}
	return through{client: c, used: func(t *testing.T) { require.NotZero(t, n.txns.Load()) }}
}

var throughs = map[string]func(t *testing.T) through{
	"namespace": func(t *testing.T) through {
		return through{client: inNamespace(cluster.Client(t), "ns/"), prefix: "ns/"}
	},
	"ordering": func(t *testing.T) through {
		c := cluster.Client(t)
		return withKV(c, ordering.NewKV(c.KV, ordering.NewOrderViolationSwitchEndpointClosure(c)))
	},
	"leasing": func(t *testing.T) through {
		c := cluster.Client(t)
		kv, closeKV, err := leasing.NewKV(c, harness.LockName(t)+"/leases/")
		require.NoError(t, err)
		t.Cleanup(closeKV)
		return withKV(c, kv)
	},
	"grpc-proxy": func(t *testing.T) through {
		return through{client: etcdtest.Attach(harness.GRPCProxy(t, cluster.Client(t))).Client(t)}
	},
	"own-wrapper": func(t *testing.T) through {
		c, n := cluster.Client(t), &counted{}
		c.KV, c.Lease, c.Watcher = countedKV{c.KV, n}, countedLease{c.Lease, n}, countedWatcher{c.Watcher, n}
		return through{client: c, used: func(t *testing.T) {
			require.NotZero(t, n.txns.Load())
			require.NotZero(t, n.watches.Load())
			require.Zero(t, n.grants.Load(), "docs/compat.md says that grants pass a Lease by")
		}}
	},
	// As in tests that put fakes in the place of all that a client does.
	"no-connection": func(t *testing.T) through {
		real, n := cluster.Client(t), &counted{}
		c := clientv3.NewCtxClient(t.Context())
		c.KV, c.Lease, c.Watcher = countedKV{real.KV, n}, countedLease{real.Lease, n}, countedWatcher{real.Watcher, n}
		return through{client: c, used: func(t *testing.T) {
			require.NotZero(t, n.txns.Load())
			require.NotZero(t, n.watches.Load())
			require.NotZero(t, n.grants.Load())
		}}
	},
}

// A client whose requests pass through something else takes locks and waits for them beside a client that is connected
// to etcd, is told of a loss, and leaves nothing behind when it closes.
func TestFault_D4_WrappedClient(t *testing.T) {
	t.Parallel()
	for kind, make := range throughs {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			locksThrough(t, make(t), cluster.Client(t))
		})
	}
}

// The KV of clientv3/leasing answers reads of one key from a cache: with the revision of that time, which is no sign of an
// etcd that has gone back; and, of a key that somebody deletes without it, with what was. So nothing is read that way.
func TestFault_D4_CacheInTheClient(t *testing.T) {
	t.Parallel()
	w, outside := throughs["leasing"](t), cluster.Client(t)
	s, name := newSession(t, w.client, etcdlock.WithTTL(time.Minute)), harness.LockName(t)
	lock := func(name string) *etcdlock.Held {
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		require.NoError(t, err)
		return h
	}
	removed := func(h *etcdlock.Held) {
		_, err := outside.Delete(harness.Ctx(t), h.Key())
		require.NoError(t, err)
		require.ErrorIs(t, h.Check(harness.Ctx(t)), etcdlock.ErrLost)
	}
	h := lock(name)
	key := h.Key()
	removed(h) // the cache would have it now that there is no such key, and hear of the next hold's put
	for h = lock(name); h.Key() != key; h = lock(name) {
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	later := lock(name + "-2")
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, later.Unlock(harness.Ctx(t)))
	removed(h)
	leases, err := outside.Get(harness.Ctx(t), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range leases.Kvs {
		require.False(t, strings.HasSuffix(string(kv.Key), "/leases/"+key), "a key of the cache's for %s", key)
	}
}

// A service that has etcd in its own process uses it without a connection.
func TestFault_J14_EtcdInTheProcess(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	client := v3client.New(own.Member(0).Etcd().Server)
	defer client.Close()
	require.Nil(t, client.ActiveConnection())
	locksThrough(t, through{client: client}, own.Client(t))

	// The grant of another session, whose ctx has ended.
	locks := newClient(t, client)
	h, err := locks.Mutex("b").Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = client.Revoke(harness.Ctx(t), h.Session().Lease())
	require.NoError(t, err)
	<-h.Done()
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	_, err = locks.Mutex("b").Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = locks.Mutex("b").Lock(harness.Ctx(t))
	require.NoError(t, err)
}

func locksThrough(t *testing.T, w through, outside *clientv3.Client) {
	name := harness.LockName(t)
	there := w.prefix + name // as outside sees it
	locks, others := newClient(t, w.client, etcdlock.WithTTL(10*time.Second)), newClient(t, outside)
	queued := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(harness.Entries(t, outside, there)) == n }, harness.Hang, harness.Tick)
	}
	told := func(done <-chan struct{}) {
		t.Helper()
		select {
		case <-done:
		case <-time.After(harness.Hang):
			require.Fail(t, "the holder is not told of the loss")
		}
	}
	require.NoError(t, locks.Ready(harness.Ctx(t)))
	h, err := locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = others.Mutex(there).TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	contended := h.Contended()
	theirs := harness.InBackground(t, others.Mutex(there).Lock)
	queued(2)
	told(contended)
	was := h.Deadline()
	require.Eventually(t, func() bool { return h.Deadline().After(was) }, harness.Hang, harness.Tick, "the lease must be renewed")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	other := <-theirs
	require.NotNil(t, other)

	mine := harness.InBackground(t, locks.Mutex(name).Lock)
	queued(2)
	q, err := locks.Inspect(harness.Ctx(t), name)
	require.NoError(t, err)
	require.Len(t, q.Entries, 2)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	givenUp := harness.Async(func() error { _, err := locks.Mutex(name).Lock(ctx); return err })
	queued(3)
	cancel()
	require.ErrorIs(t, harness.Result(t, givenUp), context.Canceled)
	queued(2)
	require.NoError(t, other.Unlock(harness.Ctx(t)))
	h = <-mine
	require.NotNil(t, h)
	require.NoError(t, h.Check(harness.Ctx(t)))
	data := name + ".data"
	_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(data, "held")).Commit()
	require.NoError(t, err)

	guard := h.IsOwner()
	_, err = outside.Delete(harness.Ctx(t), w.prefix+h.Key())
	require.NoError(t, err)
	told(h.Done())
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	reply, err := w.client.Txn(harness.Ctx(t)).If(guard).Then(clientv3.OpPut(data, "late")).Commit()
	require.NoError(t, err)
	require.False(t, reply.Succeeded, "the guard of a lost hold")

	h, err = locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = outside.Revoke(harness.Ctx(t), h.Session().Lease())
	require.NoError(t, err)
	told(h.Done())
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	told(h.Session().Done())
	require.ErrorIs(t, h.Session().Err(), etcdlock.ErrSessionExpired)
	h, err = locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(h.Key(), name+"/"), h.Key())
	require.Equal(t, []string{w.prefix + h.Key()}, harness.Entries(t, outside, there))
	require.NoError(t, locks.Close())
	require.Empty(t, harness.Entries(t, outside, there))
	if w.used != nil {
		w.used(t)
	}
}
