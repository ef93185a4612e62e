// Package keyspacetest makes keys for tests, and says which names they have.
package keyspacetest

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// RandomKeys returns keys of nested names, keys of names that are prefixes of each other, and keys
// that are not entries. They contain all characters that sort around '/'.
func RandomKeys(r *rand.Rand) []string {
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

// NamesIn returns the names with this prefix that have entries among keys. It tries each possible
// name on each key.
func NamesIn(keys []string, prefix string) []string {
	found := map[string]bool{}
	for _, key := range keys {
		for n := range len(key) {
			if name := key[:n]; strings.HasPrefix(name, prefix) && keyspace.CheckName(name) == nil && keyspace.KindOf(name, key) != keyspace.Foreign {
				found[name] = true
			}
		}
	}
	out := []string{}
	for name := range found {
		out = append(out, name)
	}
	// Names are ordered by the ends of their ranges, so nested names are first.
	slices.SortFunc(out, func(a, b string) int {
		_, aEnd := keyspace.All(a)
		_, bEnd := keyspace.All(b)
		return strings.Compare(aEnd, bEnd)
	})
	return out
}
