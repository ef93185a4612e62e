package keyspace

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/sample"
)

func TestKeyGrammar(t *testing.T) {
	for key, want := range map[string]Kind{
		"a/1":                 Exclusive,
		"a/7fffffffffffffff":  Exclusive,
		"a/deadbeef":          Exclusive,
		"a/deadbeef-1":        Exclusive,
		"a/deadbeef-1f":       Exclusive,
		"a/r1":                Shared,
		"a/rdeadbeef-a":       Shared,
		"a/":                  Foreign,
		"a":                   Foreign,
		"b/1":                 Foreign,
		"a/r":                 Foreign,
		"a/0":                 Foreign,
		"a/01":                Foreign,
		"a/8000000000000000":  Foreign, // no int64
		"a/fffffffffffffffff": Foreign,
		"a/DEADBEEF":          Foreign,
		"a/1-":                Foreign,
		"a/1-0":               Foreign,
		"a/1-01":              Foreign,
		"a/1-1-1":             Foreign,
		"a/rr1":               Foreign,
		"a/-1":                Foreign,
		"a/b/1":               Foreign, // an entry of the lock a/b
		"a/1/1":               Foreign,
		"a/config":            Foreign,
		"a/1 ":                Foreign,
		"a//1":                Foreign,
	} {
		require.Equal(t, want, KindOf("a", key), key)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "a/b", "/a", "a//b", "..", "../x", " ", "ä/ö", "日本", "😀", strings.Repeat("n", 4096), "a/r1", "\u200d"} {
		require.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{"", "/", "a/", "a//", "a\x00b", "a\n", "\x7f", "\u0085", "\xff", "a\xc3"} {
		require.Error(t, CheckName(name), name)
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
	for range sample.Rounds(t, 20_000, 200_000) {
		a, b := randomName(r), randomName(r)
		if CheckName(a) != nil || CheckName(b) != nil || a == b {
			continue
		}
		id := r.Int64N(1<<62) + 1
		for _, base := range []string{Base(a, Exclusive, id), Base(a, Shared, id)} {
			for _, key := range []string{base, base + "-1", base + "-" + strconv.FormatInt(r.Int64N(1000)+1, 16)} {
				require.NotEqual(t, Foreign, KindOf(a, key), key)
				require.Equal(t, Foreign, KindOf(b, key), "%q is an entry of %q and of %q", key, a, b)
			}
		}
	}
}

func FuzzKindOf(f *testing.F) {
	f.Add("a", "a/1")
	f.Add("a", "a/r1-f")
	f.Add("a", "a/8000000000000000")
	f.Fuzz(func(t *testing.T, name, key string) {
		k := KindOf(name, key)
		if CheckName(name) != nil || !utf8.ValidString(key) {
			return
		}
		// The same by parsing and writing again.
		want := Foreign
		if s, ok := strings.CutPrefix(key, name+"/"); ok {
			k := Exclusive
			if c, ok := strings.CutPrefix(s, "r"); ok {
				s, k = c, Shared
			}
			lease, n, numbered := strings.Cut(s, "-")
			id, err := strconv.ParseInt(lease, 16, 64)
			again := Base(name, k, id)
			if i, nerr := strconv.ParseInt(n, 16, 64); numbered && nerr == nil && i > 0 {
				again += "-" + strconv.FormatInt(i, 16)
			}
			if err == nil && id > 0 && again == key {
				want = k
			}
		}
		if k != want {
			t.Fatalf("KindOf(%q, %q) = %v, want %v", name, key, k, want)
		}
		from, to := All(name)
		if k != Foreign && (key < from || key >= to) {
			t.Fatalf("%q lies outside of %q..%q", key, from, to)
		}
		if from, to = Exclusives(name); k == Exclusive && (key < from || key >= to) || k == Shared && key >= from && key < to {
			t.Fatalf("%q: Exclusive range", key)
		}
		if from, to = Shareds(name); k == Shared && (key < from || key >= to) || k == Exclusive && key >= from && key < to {
			t.Fatalf("%q: Shared range", key)
		}
	})
}

func TestIsKeyOf(t *testing.T) {
	for key, want := range map[string]bool{
		"a/5": true, "a/r5": true, "a/5-1": true, "a/b-1/r5-ff": true, "a-1/5": true,
		"a/6": false, "a/5-0": false, "a/5-": false, "a/5-80000000": false, "a/r5/x": false, "a": false, "": false,
	} {
		require.Equal(t, want, IsKeyOf(key, 5), key)
	}
}

// Own has all keys that a session makes, and none of another session, of a lock below the name, or of another name.
func TestOwn(t *testing.T) {
	in := func(key string, k Kind) bool {
		from, to := Own(Base("a", k, 0x5c))
		return from <= key && key < to
	}
	for key, want := range map[string]Kind{
		"a/5c": Exclusive, "a/5c-1": Exclusive, "a/5c-ffff": Exclusive, "a/r5c": Shared, "a/r5c-1": Shared,
		"a/5": Foreign, "a/5c0": Foreign, "a/5cc": Foreign, "a/5d": Foreign, "a/5c/5c": Foreign, "a/5c/r5c": Foreign, "a/r5": Foreign,
		"a/r5c0": Foreign, "a/r5c/5c": Foreign, "a5c": Foreign, "b/5c": Foreign,
	} {
		require.Equal(t, want == Exclusive, in(key, Exclusive), key)
		require.Equal(t, want == Shared, in(key, Shared), key)
	}
}

func TestSplitKey(t *testing.T) {
	for _, base := range []string{"a/5", "a/r5", "a-1/5", "a-b/c-d/r7fffffffffffffff"} {
		for _, n := range []int{0, 1, 10, 63, 64, 255, 4096} {
			b, i, ok := split(join(base, n))
			require.True(t, ok)
			require.Equal(t, base, b)
			require.Equal(t, n, i)
		}
	}
}

func TestInvariant_I6_KeysAreReusedOnlyWhenFree(t *testing.T) {
	u := InUse{}
	var taken []string
	for range 200 {
		key := u.Take("a/1")
		require.NotContains(t, taken, key)
		require.Equal(t, Exclusive, KindOf("a", key))
		require.True(t, u.Has(key))
		taken = append(taken, key)
	}
	require.Equal(t, "a/1", taken[0])
	require.Equal(t, "a/1-1", taken[1])
	require.Equal(t, "a/1-c7", taken[199])
	u.Free(taken[70])
	u.Free(taken[3])
	require.False(t, u.Has(taken[3]))
	require.Equal(t, taken[3], u.Take("a/1"), "the lowest first")
	require.Equal(t, taken[70], u.Take("a/1"))
	require.Equal(t, "a/1-c8", u.Take("a/1"))
	require.True(t, u.Has(taken[3]))
	require.False(t, u.Has("a/1-1000"))
	require.Panics(t, func() { u.Free("a/2") })
	for _, key := range taken {
		u.Free(key)
	}
	require.Panics(t, func() { u.Free(taken[0]) })
	u.Free("a/1-c8")
	require.Empty(t, u, "a name that is not used costs nothing")
}

// Some names few keys of a base, however many are in use.
func TestInUse_Some(t *testing.T) {
	u := make(InUse)
	for range 130 {
		u.Take("a/5")
	}
	u.Take("b/5")
	u.Free("a/5")
	require.ElementsMatch(t, []string{"a/5-2", "a/5-40", "a/5-80", "b/5"}, u.Some(func(key string) bool { return key != "a/5-1" }))
	require.Empty(t, u.Some(func(string) bool { return false }))
}
