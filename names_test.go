package etcdlock

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/keyspace/keyspacetest"
)

func collect(t *testing.T, names func(yield func(string, error) bool)) []string {
	t.Helper()
	out := []string{}
	for name, err := range names {
		require.NoError(t, err)
		out = append(out, name)
	}
	return out
}

// The same with etcd, for all prefixes and for pages of all sizes.
func TestNamesInEtcd(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	for seed := range uint64(10) {
		keys := keyspacetest.RandomKeys(rand.New(rand.NewPCG(seed, 3)))
		_, err := c.Delete(testCtx(t), "", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, key := range keys {
			if key != "" {
				_, err := c.Put(testCtx(t), key, "")
				require.NoError(t, err)
			}
		}
		for _, prefix := range []string{"", "a", "a/", "a/b", "1", "r1/", "nothing", keys[len(keys)/2]} {
			want := keyspacetest.NamesIn(keys, prefix)
			require.Equal(t, want, collect(t, New(c).ListNames(testCtx(t), prefix)), "seed %d, prefix %q: %q", seed, prefix, keys)
			for _, page := range []int64{1, 3} {
				got := []string{}
				require.NoError(t, inspect.Names(testCtx(t), etcd.NewClient(c), prefix, page, func(name string) bool {
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
		_, err := direct.Put(testCtx(t), fmt.Sprintf("name-%d/1f", i), "")
		require.NoError(t, err)
	}
	var got []string
	err := inspect.Names(testCtx(t), etcd.NewClient(c), "name-", 2, func(name string) bool {
		got = append(got, name)
		// The last name of a page may have more keys on the next page.
		require.Equal(t, len(got)/2+1, tap.Calls("Range"))
		_, err := direct.Put(testCtx(t), "name-0/2f", "")
		require.NoError(t, err)
		_, err = own.Compact(testCtx(t))
		require.NoError(t, err)
		return len(got) < 7
	})
	require.NoError(t, err)
	require.Equal(t, []string{"name-0", "name-1", "name-2", "name-3", "name-4", "name-5", "name-6"}, got)
	require.Equal(t, 4, tap.Calls())

	for name, err := range New(c).ListNames(testCtx(t), "name-") {
		require.NoError(t, err)
		require.Equal(t, "name-0", name)
		break
	}
	require.Equal(t, 5, tap.Calls())
}
