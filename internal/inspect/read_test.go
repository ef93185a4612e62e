package inspect

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// cluster is one member that the tests share.
var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

func read(t *testing.T, c *clientv3.Client, name string) *queue.Snapshot {
	t.Helper()
	client := etcd.NewClient(c)
	client.NeverHedge() // a test counts requests, and the machine may stall
	s, err := Read(harness.Ctx(t), client, name)
	require.NoError(t, err)
	return s
}

// deepQueue puts n entries without a lease into the queue of name.
func deepQueue(t *testing.T, c *clientv3.Client, name string, n int) {
	t.Helper()
	for from := 1; from <= n; from += 100 {
		var ops []clientv3.Op
		for i := from; i < from+100 && i <= n; i++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/%x", name, i), ""))
		}
		_, err := c.Txn(harness.Ctx(t)).Then(ops...).Commit()
		require.NoError(t, err)
	}
}

// tapped is an etcd of the test's own, a client, and another client whose calls tap sees.
func tapped(t *testing.T) (own *etcdtest.Cluster, direct, c *clientv3.Client, tap *etcdtest.Tap) {
	own, tap = etcdtest.Start(t), etcdtest.NewTap()
	return own, own.Client(t), own.Client(t, tap), tap
}

// A queue of many pages is read at one revision, even if it changes between the reads. If
// that revision is compacted, the queue is read again at another one.
func TestReadOneRevision(t *testing.T) {
	t.Parallel()
	own, direct, c, tap := tapped(t)
	const n = 2*Page + 5
	deepQueue(t, direct, "a", n)

	var rev int64 // the revision before the change
	change := func(key string) func() {
		return func() {
			rev = harness.Revision(t, direct)
			_, err := direct.Txn(harness.Ctx(t)).Then(clientv3.OpPut("a/"+key, ""), clientv3.OpDelete("a/1")).Commit()
			require.NoError(t, err)
		}
	}
	// In key order, "fffffff" is after the first page.
	tap.Next("Txn", etcdtest.After(change("fffffff")))
	q := read(t, c, "a")
	require.Len(t, q.Keys, n)
	require.Equal(t, rev, q.Rev)
	require.Equal(t, 3, tap.Calls("Txn"))
	require.Zero(t, tap.Calls("LeaseTimeToLive"))

	tap.Next("Txn", etcdtest.After(func() {
		change("ffffffff")()
		_, err := own.Compact(harness.Ctx(t))
		require.NoError(t, err)
	}))
	q = read(t, c, "a")
	require.Len(t, q.Keys, n+1) // a/1 was deleted, two keys were added
	require.Greater(t, q.Rev, rev)
}

// A restore that comes between two pages takes their revision away. The queue is read again, as it is then.
func TestReadWhileRestored(t *testing.T) {
	t.Parallel()
	own, direct, c, tap := tapped(t)
	const n = Page + 5
	deepQueue(t, direct, "a", n)
	restore := harness.Snapshot(t, own)
	deepQueue(t, direct, "b", 1)
	tap.Next("Txn", etcdtest.After(func() { restore(0) }))
	q := read(t, c, "a")
	require.Len(t, q.Keys, n)
	require.Equal(t, harness.Revision(t, direct), q.Rev)
}
