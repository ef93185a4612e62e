package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/history"
)

// A fault breaks something for a while, and mends it.
type fault struct {
	name   string
	weight int
	longer time.Duration // it lasts for a time below that
	// do does it: lasts is drawn for it, and pick, to choose by where there is a
	// choice. When ctx ends it mends at once.
	do func(ctx context.Context, lasts time.Duration, pick int) error
}

// A step is what a lane of the nemesis does next, after a pause.
type step struct {
	fault        int // the index of it
	pick         int
	pause, lasts time.Duration
}

// A lane draws its faults one after the other.
type lane struct {
	name   string
	pause  time.Duration // before each, at most
	faults []fault
}

// lanes are the members, the data, and each client.
func (r *run) lanes() []lane {
	all := []lane{{"members", 3 * time.Second, r.memberFaults()}, {"data", 400 * time.Millisecond, r.dataFaults()}}
	for i, c := range r.clients {
		all = append(all, lane{fmt.Sprint("client ", i), 1500 * time.Millisecond, c.faults()})
	}
	return all
}

// steps returns the function that draws the steps of a lane: each fault once, then by weight. It uses nothing but
// the random source, so that a seed gives the same steps.
func (l lane) steps(rng *rand.Rand) func() step {
	faults := l.faults
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	first := rng.Perm(len(faults))
	return func() (s step) {
		if len(first) > 0 {
			s.fault, first = first[0], first[1:]
		} else {
			for n := rng.IntN(sum); n >= faults[s.fault].weight; s.fault++ {
				n -= faults[s.fault].weight
			}
		}
		s.pick = rng.IntN(1 << 20)
		s.pause = time.Duration(rng.Int64N(int64(l.pause)))
		// Short ones are more frequent, so that in between much goes well.
		x := rng.Float64()
		s.lasts = time.Duration(x * x * x * float64(faults[s.fault].longer))
		return s
	}
}

// nemesis breaks things until ctx ends, in all lanes at once.
func (r *run) nemesis(ctx context.Context) {
	for _, l := range r.lanes() {
		next := l.steps(r.random(l.name))
		r.breaking.Go(func() {
			for {
				s := next()
				if !wait(ctx, s.pause) {
					return
				}
				f, from := l.faults[s.fault], time.Now()
				what := fmt.Sprintf("%s %d", f.name, s.pick)
				if err := f.do(ctx, s.lasts, s.pick); err != nil {
					what += ": " + err.Error()
				} else {
					r.happened(f.name)
				}
				r.counted("faults")
				r.record.Fault(history.Fault{Lane: l.name, What: what, From: from, To: time.Now()})
			}
		})
	}
}

// happened notes that a fault was done, and mended.
func (r *run) happened(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[fault]++
}

// everyFault sees to it that each kind of fault was done, but for one: in a minute there may have been no call that one of
// them could break.
func (r *run) everyFault() {
	r.mu.Lock()
	defer r.mu.Unlock()
	never := map[string]bool{}
	for _, l := range r.lanes() {
		for _, f := range l.faults {
			if r.faults[f.name] == 0 {
				never[f.name] = true
			}
		}
	}
	require.LessOrEqual(r.t, len(never), 1, "these never happened: %v", never)
	require.NotZero(r.t, r.count["too large"], "no request was over a client's limit")
	require.NotZero(r.t, r.count["by grpc-proxy"], "nobody had a lock by grpc-proxy")
}

func TestSameSeedSameFaults(t *testing.T) {
	all := func(seed uint64) (drawn []string) {
		r := &run{seed: seed, clients: []*client{{}, {}}}
		for _, l := range r.lanes() {
			next := l.steps(r.random(l.name))
			seen := map[string]bool{}
			for range 1000 {
				s := next()
				f := l.faults[s.fault]
				seen[f.name] = true
				require.LessOrEqual(t, s.lasts, f.longer)
				drawn = append(drawn, fmt.Sprint(l.name, f.name, s))
			}
			require.Len(t, seen, len(l.faults), "each is drawn")
		}
		return drawn
	}
	require.Equal(t, all(1), all(1))
	require.NotEqual(t, all(1)[:10], all(2)[:10])
}
