package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Control tests of rows C: watches and compaction.

func TestControl_C1_IsolatedMember(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := own.Leader(harness.Ctx(t))
	require.NoError(t, err)
	x, y := own.Member((leader.Index()+1)%3), own.Member((leader.Index()+2)%3)
	only := func(m *etcdtest.Member) etcdtest.ClientOption {
		return etcdtest.WithClientConfig(func(cfg *clientv3.Config) { cfg.Endpoints = []string{m.Endpoint()} })
	}
	holder := concurrency.NewMutex(incumbent(t, own.Client(t, only(y))), "a")
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	tap := etcdtest.NewTap()
	c := own.Client(t, tap, only(x))
	s := incumbent(t, c)
	locking := harness.Async(func() error { return concurrency.NewMutex(s, "a").Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	c.SetEndpoints(own.Endpoints()...)
	x.Isolate()
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	harness.Hangs(t, locking, 5*time.Second)
	x.Heal()
	require.NoError(t, harness.Result(t, locking))
	seen(t, "a waiter whose watch is on a member that is cut off hangs until the cluster heals")
}

// compactPast writes other keys and compacts their history.
func compactPast(t *testing.T, c *clientv3.Client) {
	t.Helper()
	var rev int64
	for i := range 5 {
		put, err := c.Put(harness.Ctx(t), fmt.Sprint("elsewhere", i), "")
		require.NoError(t, err)
		rev = put.Header.Revision
	}
	_, err := c.Compact(harness.Ctx(t), rev)
	require.NoError(t, err)
}

func TestControl_C2_CompactionThenReconnect(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	own := etcdtest.Start(t)
	tap, proxy := etcdtest.NewTap(), own.Proxy(t)
	holder := concurrency.NewMutex(incumbent(t, own.Client(t)), "a")
	require.NoError(t, holder.Lock(harness.Ctx(t)))
	s := incumbent(t, own.Client(t, tap, proxy))
	locking := harness.Async(func() error { return concurrency.NewMutex(s, "a").Lock(harness.Ctx(t)) })
	waitsOn(t, tap, 1)
	compactPast(t, own.Client(t))
	proxy.Reset()
	require.ErrorIs(t, harness.Result(t, locking), rpctypes.ErrCompacted)
	seen(t, "a waiter that reconnects after a compaction gets an error and loses its place")
}

// This is also row C3: the compaction happens between the read and the watch.
func TestControl_C4_CompactionMakesReadersSpin(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	own := etcdtest.Start(t)
	c, tap := own.Client(t), etcdtest.NewTap()
	holder := recipe.NewRWMutex(incumbent(t, c), "a")
	require.NoError(t, holder.Lock())
	m := recipe.NewRWMutex(incumbent(t, own.Client(t, tap)), "a")
	tap.Next("Range", etcdtest.After(func() { compactPast(t, c) }))
	locking := harness.Async(m.Lock)
	waitsOn(t, tap, 1)
	before, began := tap.Calls("Range"), time.Now()
	const reads = 10
	require.Eventually(t, func() bool { return tap.Calls("Range")-before >= reads }, harness.Hang, harness.Tick)
	took := time.Since(began)
	require.Empty(t, locking)
	require.NoError(t, holder.Unlock())
	require.NoError(t, harness.Result(t, locking))
	seen(t, "RWMutex: a waiter reads %.0f times a second until the holder unlocks", reads/took.Seconds())
}
