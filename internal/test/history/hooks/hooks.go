// Package hooks records the steps of acquisitions for package history, which itself does not use the
// code that it judges.
package hooks

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/history"
)

// For returns hooks that add each step of each acquisition to r.
func For(r *history.Record) *etcdlock.Hooks {
	step := func(what history.What, at time.Time, a etcdlock.Acquisition) history.Step {
		return history.Step{What: what, At: at, Name: a.Name, Token: a.Token, Lease: int64(a.Session.Lease())}
	}
	note := func(what history.What, at time.Time, a etcdlock.Acquisition) { r.Step(step(what, at, a)) }
	return &etcdlock.Hooks{
		Enqueued: func(_ context.Context, i etcdlock.EnqueuedInfo) { note(history.Enqueued, i.Enqueued, i.Acquisition) },
		Granted:  func(_ context.Context, i etcdlock.GrantedInfo) { note(history.Granted, i.Granted, i.Acquisition) },
		Abandoned: func(_ context.Context, i etcdlock.AbandonedInfo) {
			note(history.Abandoned, i.Asked.Add(i.Wait), i.Acquisition)
		},
		Released: func(_ context.Context, i etcdlock.ReleasedInfo) {
			note(history.GaveBack, i.Granted.Add(i.Held), i.Acquisition)
		},
		Lost: func(_ context.Context, i etcdlock.LostInfo) {
			s := step(history.Lost, i.Granted.Add(i.Held), i.Acquisition)
			s.WithSession = errors.Is(i.Cause, etcdlock.ErrSessionExpired) || errors.Is(i.Cause, etcdlock.ErrSessionClosed)
			r.Step(s)
		},
		SessionEnded: func(i etcdlock.SessionEndedInfo) {
			at := i.At
			if deadline := i.Session.Deadline(); errors.Is(i.Cause, etcdlock.ErrSessionExpired) && deadline.Before(at) {
				at = deadline // it was noticed later
			}
			Ended(r, i.Session, at)
		},
	}
}

// Ended records that a session has ended, or is about to be ended: the earliest time counts.
func Ended(r *history.Record, s *etcdlock.Session, at time.Time) {
	r.Step(history.Step{What: history.Ended, At: at, Lease: int64(s.Lease())})
}
