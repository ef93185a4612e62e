package soak

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/history"
)

// tight sees to it that the trace of this run would not do as well with a step less, or with two of an
// acquisition swapped: of both, it tries as many as tries.
func (r *run) tight(tries int) {
	steps, claims := r.record.Trace()
	rng := r.random("tight")
	missing, swapped := 0, 0
	for _, i := range rng.Perm(len(steps)) {
		if steps[i].Token == 0 {
			continue // a session's end, or of one that never knew its entry
		}
		if missing < tries {
			missing++
			without := slices.Delete(slices.Clone(steps), i, i+1)
			require.NotEmpty(r.t, r.log.CheckTrace(without, claims), "without this one: %s", steps[i])
		}
		j := slices.IndexFunc(steps, func(s history.Step) bool {
			return s.Name == steps[i].Name && s.Token == steps[i].Token && s.What != steps[i].What && !s.At.Equal(steps[i].At)
		})
		if j >= 0 && swapped < tries {
			swapped++
			swap := slices.Clone(steps)
			swap[i].At, swap[j].At = swap[j].At, swap[i].At
			require.NotEmpty(r.t, r.log.CheckTrace(swap, claims), "swapped: %s, and %s", steps[i], steps[j])
		}
	}
	require.NotZero(r.t, missing, "no steps")
	require.NotZero(r.t, swapped, "no two steps of one acquisition")
}
