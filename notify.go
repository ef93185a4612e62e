// What the hooks and the log are told of a session and its locks, through the outbox: nobody here waits for them.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/outbox"
)

// newReport begins the report of an acquisition, which is nil without hooks. ctx is that of the call.
func (s *Session) newReport(ctx context.Context, l *lock, asked time.Time) *report {
	if len(s.config.hooks) == 0 {
		return nil
	}
	return &report{ctx: ctx, Acquisition: l.about(s, asked)}
}

// info is what the hooks are told of an acquisition that nobody changes: its owner does not have it yet, or not anymore.
func (a *acquisition) info() Acquisition {
	i := a.report.Acquisition
	if i.Token = a.rev; a.rev != 0 {
		i.Key = a.parts()[0].Key()
	}
	return i
}

// tell tells the hooks of an acquisition.
func tell[I any](a *acquisition, hook func(*Hooks) func(context.Context, I), info I) {
	a.report.story.Tell(a.s.config.outbox, outbox.Each(a.s.config.hooks, outbox.In(a.report.ctx, hook), info))
}

func (a *acquisition) notifyEnqueued() {
	if t := a.report; t != nil {
		t.Enqueued = time.Now()
		tell(a, func(h *Hooks) func(context.Context, EnqueuedInfo) { return h.Enqueued }, EnqueuedInfo{a.info()})
	}
}

func (a *acquisition) notifyGranted() {
	if t := a.report; t != nil {
		t.Granted = time.Now()
		tell(a, func(h *Hooks) func(context.Context, GrantedInfo) { return h.Granted }, GrantedInfo{a.info(), t.Granted.Sub(t.Asked)})
	}
}

// notifyAbandoned tells that the acquisition was given up at, which is before another one could have the lock.
func (a *acquisition) notifyAbandoned(at time.Time, err error) {
	if err != nil { // a.wrap is an allocation
		a.s.lease.Outages.Refused("take", err, a.wrap)
	}
	if t := a.report; t != nil {
		tell(a, func(h *Hooks) func(context.Context, AbandonedInfo) { return h.Abandoned }, AbandonedInfo{a.info(), at.Sub(t.Asked), err})
	}
}

// notifyOver tells that a hold is over since at: err is what Unlock returns, or Err after a loss. listed: the line of
// notifyEnded has it. A release that the session's end overtakes is not listed there.
func (a *acquisition) notifyOver(at time.Time, err error, listed bool) {
	lost := errors.Is(err, ErrLost)
	if lost && !listed && !errors.Is(err, ErrSessionClosed) { // whose caller knows
		cause := err.Error()
		if cause == ErrLost.Error() { // of a session that lives
			cause = "its entry was removed"
		}
		a.s.config.log.Warn("lock lost", "lock", a.label(), "key", a.parts()[0].Key(), "token", a.rev, "cause", cause)
	}
	t := a.report
	switch {
	case t == nil:
	case lost:
		tell(a, func(h *Hooks) func(context.Context, LostInfo) { return h.Lost }, LostInfo{a.info(), at.Sub(t.Granted), err})
	default:
		tell(a, func(h *Hooks) func(context.Context, ReleasedInfo) { return h.Released }, ReleasedInfo{a.info(), at.Sub(t.Granted), err})
	}
}

func (s *Session) notifyUp() {
	args := []any{"lease", s.lease.String(), "ttl", s.TTL()}
	if lasted := s.lease.Outages.All.Up(); lasted > 0 {
		args = append(args, "outage", lasted)
	}
	s.config.log.Info("session up", args...)
	s.story.Tell(s.config.outbox, outbox.Each(s.config.hooks, func(h *Hooks) func(SessionUpInfo) { return h.SessionUp }, SessionUpInfo{s, time.Now()}))
}

// notifyRenewed tells of an attempt to renew.
func (s *Session) notifyRenewed(took time.Duration, err error) {
	s.config.outbox.Tell(outbox.Each(s.config.hooks, func(h *Hooks) func(RenewedInfo) { return h.Renewed }, RenewedInfo{s, took, err, time.Now()}))
}

// notifyEnded tells that the session has ended, and these holds with it. unrenewed is why the last renewal failed, if it did.
func (s *Session) notifyEnded(reason string, unrenewed error, holds []*acquisition) {
	cause := s.Err()
	if errors.Is(cause, ErrSessionExpired) {
		args := []any{"lease", s.lease.String(), "why", reason}
		if unrenewed != nil && reason == "deadline passed" { // else that attempt is not why
			args = append(args, "error", unrenewed)
		}
		args = append(args, "locks", len(holds))
		var first []string
		for _, a := range holds[:min(len(holds), 5)] {
			first = append(first, fmt.Sprintf("%s (token %d)", a.parts()[0].Name, a.rev))
		}
		if len(first) > 0 {
			args = append(args, "lost", strings.Join(first, ", "))
		}
		s.config.log.Warn("session lost", args...)
	}
	s.story.Tell(s.config.outbox, outbox.Each(s.config.hooks, func(h *Hooks) func(SessionEndedInfo) { return h.SessionEnded }, SessionEndedInfo{s, cause, time.Now()}))
}
