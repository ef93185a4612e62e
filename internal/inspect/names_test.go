package inspect

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace/keyspacetest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// The names of keys in etcd, for all prefixes and for pages of all sizes.
func TestNamesInEtcd(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	for seed := range uint64(10) {
		keys := keyspacetest.RandomKeys(rand.New(rand.NewPCG(seed, 3)))
		_, err := c.Delete(harness.Ctx(t), "", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, key := range keys {
			if key != "" {
				_, err := c.Put(harness.Ctx(t), key, "")
				require.NoError(t, err)
			}
		}
		for _, prefix := range []string{"", "a", "a/", "a/b", "1", "r1/", "nothing", keys[len(keys)/2]} {
			want := keyspacetest.NamesIn(keys, prefix)
			for _, page := range []int64{1, 3, 1000} {
				got := []string{}
				require.NoError(t, Names(harness.Ctx(t), etcd.NewClient(c), prefix, page, func(name string) bool {
					got = append(got, name)
					return true
				}))
				require.Equal(t, want, got, "seed %d, prefix %q, page %d: %q", seed, prefix, page, keys)
			}
		}
	}
}

// Pages are read as the loop advances, and not after it has ended. Names that exist all the
// time are yielded, even if the history is compacted.
func TestNamesPages(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	c, direct := own.Client(t, tap), own.Client(t)
	for i := range 10 {
		_, err := direct.Put(harness.Ctx(t), fmt.Sprintf("name-%d/1f", i), "")
		require.NoError(t, err)
	}
	client := etcd.NewClient(c)
	client.NeverHedge() // the machine may stall
	var got []string
	err := Names(harness.Ctx(t), client, "name-", 2, func(name string) bool {
		got = append(got, name)
		// The last name of a page may have more keys on the next page.
		require.Equal(t, len(got)/2+1, tap.Calls("Txn"))
		_, err := direct.Put(harness.Ctx(t), "name-0/2f", "")
		require.NoError(t, err)
		_, err = own.Compact(harness.Ctx(t))
		require.NoError(t, err)
		return len(got) < 7
	})
	require.NoError(t, err)
	require.Equal(t, []string{"name-0", "name-1", "name-2", "name-3", "name-4", "name-5", "name-6"}, got)
	require.Equal(t, 4, tap.Calls())
}
