package etcdlock

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestKeyGrammar(t *testing.T) {
	for key, want := range map[string]kind{
		"a/1":                 exclusive,
		"a/7fffffffffffffff":  exclusive,
		"a/deadbeef":          exclusive,
		"a/deadbeef-1":        exclusive,
		"a/deadbeef-1f":       exclusive,
		"a/r1":                shared,
		"a/rdeadbeef-a":       shared,
		"a/":                  foreign,
		"a":                   foreign,
		"b/1":                 foreign,
		"a/r":                 foreign,
		"a/0":                 foreign,
		"a/01":                foreign,
		"a/8000000000000000":  foreign, // no int64
		"a/fffffffffffffffff": foreign,
		"a/DEADBEEF":          foreign,
		"a/1-":                foreign,
		"a/1-0":               foreign,
		"a/1-01":              foreign,
		"a/1-1-1":             foreign,
		"a/rr1":               foreign,
		"a/-1":                foreign,
		"a/b/1":               foreign, // an entry of the lock a/b
		"a/1/1":               foreign,
		"a/config":            foreign,
		"a/1 ":                foreign,
		"a//1":                foreign,
	} {
		require.Equal(t, want, kindOf("a", key), key)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "a/b", "/a", "a//b", "..", "../x", " ", "ä/ö", "日本", "😀", strings.Repeat("n", 4096), "a/r1", "\u200d"} {
		require.NoError(t, checkName(name), name)
	}
	for _, name := range []string{"", "/", "a/", "a//", "a\x00b", "a\n", "\x7f", "\u0085", "\xff", "a\xc3"} {
		require.ErrorIs(t, checkName(name), ErrInvalidName, name)
	}
}

// randomName is a name made of the pieces that could make two names collide.
func randomName(r *rand.Rand) string {
	pieces := []string{"a", "b", "/", "r", "0", "1", "f", "g", "-", "..", "r1", "a/", "é", "\u00ff", "s"}
	var b strings.Builder
	for range 1 + r.IntN(6) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// Entries of one name are never entries of another, whatever the names.
func TestFault_D4_NamesNeverCollide(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		a, b := randomName(r), randomName(r)
		if checkName(a) != nil || checkName(b) != nil || a == b {
			continue
		}
		id := clientv3.LeaseID(r.Int64N(1<<62) + 1)
		for _, base := range []string{exclusiveBase(a, id), sharedBase(a, id)} {
			for _, key := range []string{base, base + "-1", base + "-" + strconv.FormatInt(r.Int64N(1000)+1, 16)} {
				require.NotEqual(t, foreign, kindOf(a, key), key)
				require.Equal(t, foreign, kindOf(b, key), "%q is an entry of %q and of %q", key, a, b)
			}
		}
	}
}

func FuzzKindOf(f *testing.F) {
	f.Add("a", "a/1")
	f.Add("a", "a/r1-f")
	f.Add("a", "a/8000000000000000")
	f.Fuzz(func(t *testing.T, name, key string) {
		k := kindOf(name, key)
		if checkName(name) != nil || !utf8.ValidString(key) {
			return
		}
		// The same by parsing and writing again.
		want := foreign
		if s, ok := strings.CutPrefix(key, name+"/"); ok {
			base, k := exclusiveBase, exclusive
			if c, ok := strings.CutPrefix(s, "r"); ok {
				s, base, k = c, sharedBase, shared
			}
			lease, n, numbered := strings.Cut(s, "-")
			id, err := strconv.ParseInt(lease, 16, 64)
			again := base(name, clientv3.LeaseID(id))
			if i, nerr := strconv.ParseInt(n, 16, 64); numbered && nerr == nil && i > 0 {
				again += "-" + strconv.FormatInt(i, 16)
			}
			if err == nil && id > 0 && again == key {
				want = k
			}
		}
		if k != want {
			t.Fatalf("kindOf(%q, %q) = %v, want %v", name, key, k, want)
		}
		from, to := prefixRange(name)
		if k != foreign && (key < from || key >= to) {
			t.Fatalf("%q lies outside of %q..%q", key, from, to)
		}
		if from, to = exclusiveRange(name); k == exclusive && (key < from || key >= to) || k == shared && key >= from && key < to {
			t.Fatalf("%q: exclusive range", key)
		}
		if from, to = sharedRange(name); k == shared && (key < from || key >= to) || k == exclusive && key >= from && key < to {
			t.Fatalf("%q: shared range", key)
		}
	})
}

func TestIsKeyOf(t *testing.T) {
	for key, want := range map[string]bool{
		"a/5": true, "a/r5": true, "a/5-1": true, "a/b-1/r5-ff": true, "a-1/5": true,
		"a/6": false, "a/5-0": false, "a/5-": false, "a/5-80000000": false, "a/r5/x": false, "a": false, "": false,
	} {
		require.Equal(t, want, isKeyOf(key, 5), key)
	}
}

func TestSplitKey(t *testing.T) {
	for _, base := range []string{"a/5", "a/r5", "a-1/5", "a-b/c-d/r7fffffffffffffff"} {
		for _, n := range []int{0, 1, 10, 63, 64, 255, 4096} {
			b, i, ok := splitKey(nthKey(base, n))
			require.True(t, ok)
			require.Equal(t, base, b)
			require.Equal(t, n, i)
		}
	}
}

func TestInvariant_I6_KeysAreReusedOnlyWhenFree(t *testing.T) {
	u := keysInUse{}
	var taken []string
	for range 200 {
		key := u.take("a/1")
		require.NotContains(t, taken, key)
		require.Equal(t, exclusive, kindOf("a", key))
		require.True(t, u.uses(key))
		taken = append(taken, key)
	}
	require.Equal(t, "a/1", taken[0])
	require.Equal(t, "a/1-1", taken[1])
	require.Equal(t, "a/1-c7", taken[199])
	u.free(taken[70])
	u.free(taken[3])
	require.False(t, u.uses(taken[3]))
	require.Equal(t, taken[3], u.take("a/1"), "the lowest first")
	require.Equal(t, taken[70], u.take("a/1"))
	require.Equal(t, "a/1-c8", u.take("a/1"))
	require.True(t, u.uses(taken[3]))
	require.False(t, u.uses("a/1-1000"))
	require.Panics(t, func() { u.free("a/2") })
	for _, key := range taken {
		u.free(key)
	}
	require.Panics(t, func() { u.free(taken[0]) })
	u.free("a/1-c8")
	require.Empty(t, u, "a name that is not used costs nothing")
}
