package soak

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/history"
)

// hooks note each step of each acquisition: history follows them through the model.
func (r *run) hooks() *etcdlock.Hooks {
	note := func(what history.What, at time.Time, a etcdlock.Acquisition) {
		r.record.Step(history.Step{What: what, At: at, Name: a.Name, Token: a.Token, Lease: int64(a.Session.Lease())})
	}
	return &etcdlock.Hooks{
		Enqueued: func(_ context.Context, i etcdlock.EnqueuedInfo) { note(history.Enqueued, i.Enqueued, i.Acquisition) },
		Granted:  func(_ context.Context, i etcdlock.GrantedInfo) { note(history.Granted, i.Granted, i.Acquisition) },
		Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
			note(history.Abandoned, i.Asked.Add(i.Wait), i.Acquisition)
		},
		Released: func(_ context.Context, i etcdlock.ReleasedInfo) {
			note(history.GaveBack, i.Granted.Add(i.Held), i.Acquisition)
		},
		Lost: func(_ context.Context, i etcdlock.LostInfo) { note(history.Lost, i.Granted.Add(i.Held), i.Acquisition) },
		SessionEnded: func(i etcdlock.SessionEndedInfo) {
			at := time.Now()
			if deadline := i.Session.Deadline(); errors.Is(i.Cause, etcdlock.ErrSessionExpired) && deadline.Before(at) {
				at = deadline // the hook may come later
			}
			r.ended(i.Session, at)
		},
	}
}

// ended notes that a session has ended, or is about to be ended: the earliest time counts.
func (r *run) ended(s *etcdlock.Session, at time.Time) {
	r.record.Step(history.Step{What: history.Ended, At: at, Lease: int64(s.Lease())})
}

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
