package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the seed of the first round; 0 for a random one")
	forFlag   = flag.Duration("for", 2*time.Second, "how long to break things, in all")
	roundFlag = flag.Duration("round", time.Minute, "how long to break things in one round, at most")
)

// hang is a generous bound on what must not hang; above patience.
const hang = 2 * time.Minute

func TestMain(m *testing.M) {
	if err := harness.Parallel(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := leaks.FindBesidePeers(hang); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestSoak(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(rand.Uint32()) + 1
	}
	for left := *forFlag; left > 0 && !t.Failed(); left -= *roundFlag {
		d := min(left, *roundFlag)
		fmt.Printf("soak: make soak SEED=%d T=%v\n", seed, d) // seen also where the test hangs
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { soak(t, seed, d) })
		seed++
	}
}

// soak is one round: things are broken for d, mended, and judged.
func soak(t *testing.T, seed uint64, d time.Duration) {
	r := newRun(t, seed)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r.nemesis(ctx)
	r.work(ctx)
	<-ctx.Done()
	r.calm()
	v := r.judge()
	t.Logf("seed %d: %s; %d steps as the model has them; valid after interference for %v at most", seed, r.counts(), v.Steps, v.Excused)
	if len(v.Problems) > 0 {
		dir := artifacts(t, fmt.Sprintf("seed-%d", seed))
		require.NoError(t, v.Save(dir))
		for _, p := range v.Problems[:min(len(v.Problems), 20)] {
			t.Error(p)
		}
		t.Fatalf("seed %d: %d problems; the history is in %s", seed, len(v.Problems), dir)
	}
	require.NotZero(t, r.count["add"]+r.count["read"], "nobody did anything")
	if d >= 20*time.Second {
		require.NotZero(t, r.count["packed"], "no entry has shared a request")
	}
	if d >= 50*time.Second { // each lane has had the time for all of its faults
		r.everyFault()
	}
	r.tight(20)
}

// artifacts is a directory for what a failure leaves; it stays.
func artifacts(t *testing.T, name string) string {
	if dir := os.Getenv("ETCDLOCK_ARTIFACTS"); dir != "" {
		return filepath.Join(dir, name)
	}
	dir, err := os.MkdirTemp("", "etcdlock-")
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// wait waits for d, and returns false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
