package keyspace_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/keyspace/keyspacetest"
)

// Each name comes once and in order, wherever its keys lie, and no more names
// are open than are nested in each other.
func TestScan_Property(t *testing.T) {
	t.Parallel()
	nested, apart := 0, 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 2))
		keys := keyspacetest.RandomKeys(r)
		var s keyspace.Scan
		got := []string{}
		yield := func(name string) bool { got = append(got, name); return true }
		last := ""
		for _, key := range keys {
			name, ok := keyspace.NameOf(key)
			if ok && slices.Contains(s.Open(), name) && last != name {
				apart++
			}
			require.True(t, s.Next(key, yield))
			if ok {
				last = name
			}
			require.LessOrEqual(t, len(s.Open()), strings.Count(key, "/"))
			nested = max(nested, len(s.Open()))
		}
		s.End(yield)
		require.Equal(t, keyspacetest.NamesIn(keys, ""), got, "seed %d: %q", seed, keys)
	}
	require.Greater(t, nested, 1, "no names were nested")
	require.Positive(t, apart, "no name's keys were apart")
}
