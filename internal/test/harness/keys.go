package harness

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// ExclusiveKey and SharedKey return the first keys of a lease's entries.
func ExclusiveKey(name string, id clientv3.LeaseID) string {
	return keyspace.Base(name, keyspace.Exclusive, int64(id))
}

// SharedKey is like ExclusiveKey, for a read lock.
func SharedKey(name string, id clientv3.LeaseID) string {
	return keyspace.Base(name, keyspace.Shared, int64(id))
}

// Entries lists the keys below name, oldest first.
func Entries(t testing.TB, client *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := client.Get(Ctx(t), name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	require.NoError(t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// QueueIs waits until n keys are below name and returns them. After an Unlock the entry may be there once more, for some
// milliseconds: if etcd answered the enqueue so late that the session sent a second one beside it, etcd may carry that out
// after the removal, and the session removes it (see TestFault_A1_LateRequestAfterUnlock). So a test that looks only once
// needs a session that hedges nothing.
func QueueIs(t testing.TB, c *clientv3.Client, name string, n int) []string {
	t.Helper()
	require.Eventually(t, func() bool { return len(Entries(t, c, name)) == n }, Hang, Tick)
	return Entries(t, c, name)
}

// RequireGone waits until no key is below name.
func RequireGone(t testing.TB, c *clientv3.Client, name string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(Entries(t, c, name)) == 0 }, Hang, Tick, "entries are left")
}

// RequireReleased requires that no entry of those tokens is left below prefix. An entry that a late copy of a request has
// written anew, on a machine that stalls, is removed soon.
func RequireReleased(t testing.TB, c *clientv3.Client, prefix string, tokens ...int64) {
	t.Helper()
	left := func() []*mvccpb.KeyValue {
		resp, err := c.Get(Ctx(t), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		return resp.Kvs
	}
	for _, kv := range left() {
		require.NotContains(t, tokens, kv.CreateRevision, "it was released: %s", kv.Key)
	}
	require.Eventually(t, func() bool { return len(left()) == 0 }, Hang, Tick, "entries are left")
}

// Revision returns etcd's current revision.
func Revision(t testing.TB, c *clientv3.Client) int64 {
	t.Helper()
	resp, err := c.Get(Ctx(t), "nothing")
	require.NoError(t, err)
	return resp.Header.Revision
}

// Leases returns all leases except those given. A member lists the leases that it knows itself, so
// the member that is asked must first have applied all that is committed.
func Leases(t testing.TB, c *clientv3.Client, but ...clientv3.LeaseID) (ids []clientv3.LeaseID) {
	t.Helper()
	one, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints()[:1], Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { _ = one.Close() }()
	Revision(t, one)
	resp, err := one.Leases(Ctx(t))
	require.NoError(t, err)
	for _, l := range resp.Leases {
		if !slices.Contains(but, l.ID) {
			ids = append(ids, l.ID)
		}
	}
	return ids
}
