package keyspace

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomKeys are keys of nested names, of names that are prefixes of each other,
// and stray ones, in which all characters that sort around '/' occur.
func randomKeys(r *rand.Rand) []string {
	segments := []string{"a", "b", "ab", "r", "r1", "1", "10", "1-1", "-", "a-b", "a.b", "0", "z", "", "a!"}
	var keys []string
	for range 1 + r.IntN(30) {
		var path []string
		for range 1 + r.IntN(4) {
			path = append(path, segments[r.IntN(len(segments))])
		}
		keys = append(keys, strings.Join(path, "/"))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// namesIn is what Names is to yield, by trying each possible name on each key.
func namesIn(keys []string, prefix string) []string {
	found := map[string]bool{}
	for _, key := range keys {
		for n := range len(key) {
			if name := key[:n]; strings.HasPrefix(name, prefix) && CheckName(name) == nil && KindOf(name, key) != Foreign {
				found[name] = true
			}
		}
	}
	out := []string{}
	for name := range found {
		out = append(out, name)
	}
	// The order of the ends of their ranges: what is nested comes first.
	slices.SortFunc(out, func(a, b string) int {
		_, aEnd := All(a)
		_, bEnd := All(b)
		return strings.Compare(aEnd, bEnd)
	})
	return out
}

// Each name comes once and in order, wherever its keys lie, and no more names
// are open than are nested in each other.
func TestScan_Property(t *testing.T) {
	t.Parallel()
	nested, apart := 0, 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 2))
		keys := randomKeys(r)
		var s Scan
		got := []string{}
		yield := func(name string) bool { got = append(got, name); return true }
		last := ""
		for _, key := range keys {
			require.True(t, s.leave(key, yield))
			if name, ok := NameOf(key); ok {
				if slices.Contains(s.open, name) && last != name {
					apart++
				}
				s.enter(name)
				last = name
			}
			require.LessOrEqual(t, len(s.open), strings.Count(key, "/"))
			nested = max(nested, len(s.open))
		}
		s.leave("", yield)
		require.Equal(t, namesIn(keys, ""), got, "seed %d: %q", seed, keys)
	}
	require.Greater(t, nested, 1, "no names were nested")
	require.Positive(t, apart, "no name's keys were apart")
}
