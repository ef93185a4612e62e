// Package sample says how much of a test is played: all of it in CI, a sample on the way there. It is apart from package
// harness, which links a server.
package sample

import (
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
)

// Full reports whether tests run in full, as they do in CI: ETCDLOCK_FULL=1. Otherwise they play fewer rounds, seeds and
// scenes, and never fewer kinds of them.
func Full() bool { return os.Getenv("ETCDLOCK_FULL") == "1" }

// Rounds is how many rounds a test plays: full, or quick if tests don't run in full. The log of the test says so.
func Rounds(t testing.TB, quick, full int) int {
	t.Helper()
	if Full() || quick >= full {
		return full
	}
	t.Logf("%d rounds of %d (ETCDLOCK_FULL=1 plays all)", quick, full)
	return quick
}

// OnlyInFull is for a test that the quick run leaves out, since its subject does not change with this repository: what
// etcd's own packages do.
func OnlyInFull(t testing.TB) {
	t.Helper()
	if !Full() {
		t.Skip("ETCDLOCK_FULL=1 runs it")
	}
}

// Some is all of a test's variants in full, and else one of them at random.
func Some[V any](variants []V) []V {
	if Full() || len(variants) == 0 {
		return variants
	}
	i := rand.N(len(variants))
	return variants[i : i+1]
}

// Scenes are what a test plays of all scenes that there are. They are safe for concurrent use.
type Scenes struct{ played, left atomic.Int64 }

// Plays reports whether to play a scene: all are played in full, and else one in that many, at random.
func (s *Scenes) Plays(oneIn int) bool {
	if !Full() && rand.N(oneIn) > 0 {
		s.Left(1)
		return false
	}
	s.played.Add(1)
	return true
}

// Left counts n scenes that are not played.
func (s *Scenes) Left(n int) { s.left.Add(int64(n)) }

// Log has the log of the test say how many scenes were played.
func (s *Scenes) Log(t testing.TB) {
	t.Helper()
	if left := s.left.Load(); left > 0 {
		t.Logf("%d scenes of about %d (ETCDLOCK_FULL=1 plays all)", s.played.Load(), s.played.Load()+left)
	}
}
