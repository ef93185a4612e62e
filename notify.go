// What the hooks and the log are told of a session and its locks, through the outbox: nobody here waits for them.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/outbox"
)

// trace is what the hooks are told of an entry. It is nil if there are no hooks.
type trace struct {
	ctx                      context.Context // of the call that asked for the lock
	read, elector            bool
	asked, enqueued, granted time.Time
	story                    outbox.Story
}

func (s *Session) newTrace(ctx context.Context, m mode, elector bool) *trace {
	if len(s.hooks) == 0 {
		return nil
	}
	return &trace{ctx: ctx, read: m == readMode, elector: elector, asked: time.Now()}
}

// acquisition is what the hooks are told of an entry that nobody changes: its owner does not have it yet, or not
// anymore.
func (e *entry) acquisition() Acquisition {
	t := e.trace()
	a := Acquisition{Session: e.s, Name: e.label(), Read: t.read, Elector: t.elector, Token: e.rev, Asked: t.asked, Enqueued: t.enqueued, Granted: t.granted}
	if e.rev != 0 {
		a.Key = e.key
	}
	return a
}

// trace is nil if there are no hooks.
func (e *entry) trace() *trace {
	if e.acquiring == nil {
		return nil
	}
	return e.acquiring.trace
}

// tell tells the hooks of an acquisition.
func tell[I any](e *entry, hook func(*Hooks) func(context.Context, I), info I) {
	t := e.trace()
	t.story.Tell(e.s.outbox, outbox.Each(e.s.hooks, func(h *Hooks) func(I) {
		if f := hook(h); f != nil {
			return func(info I) { f(t.ctx, info) }
		}
		return nil
	}, info))
}

func (e *entry) notifyEnqueued() {
	if t := e.trace(); t != nil {
		t.enqueued = time.Now()
		tell(e, func(h *Hooks) func(context.Context, EnqueuedInfo) { return h.Enqueued }, EnqueuedInfo{e.acquisition()})
	}
}

// notifyGranted is called when the entry is held, before its owner has it.
func (e *entry) notifyGranted() {
	if t := e.trace(); t != nil {
		t.granted = time.Now()
		tell(e, func(h *Hooks) func(context.Context, GrantedInfo) { return h.Granted }, GrantedInfo{e.acquisition(), t.granted.Sub(t.asked)})
	}
	e.trackHold()
	e.mu.Lock()
	e.announced = true
	e.unlockAndNotify() // it may be lost by now
}

// notifyAbandoned tells that the entry was given up at, which is before another one could have the lock.
func (e *entry) notifyAbandoned(at time.Time, err error) {
	if t := e.trace(); t != nil {
		tell(e, func(h *Hooks) func(context.Context, AbandonedInfo) { return h.Abandoned }, AbandonedInfo{e.acquisition(), at.Sub(t.asked), err})
	}
}

// notifyOver tells that a hold is over since at: err is what Unlock returns, or Err after a loss.
func (e *entry) notifyOver(at time.Time, err error) {
	lost := errors.Is(err, ErrLost)
	e.mu.Lock()
	listed := e.lostWithSession // in the line of notifyEnded; a release that the session's end overtakes is not
	e.mu.Unlock()
	if lost && !listed && !errors.Is(err, ErrSessionClosed) { // whose caller knows
		cause := err.Error()
		if cause == ErrLost.Error() { // of a session that lives
			cause = "its entry was removed"
		}
		e.s.log.Warn("lock lost", "lock", e.label(), "key", e.key, "token", e.rev, "cause", cause)
	}
	t := e.trace()
	switch {
	case t == nil:
	case lost:
		tell(e, func(h *Hooks) func(context.Context, LostInfo) { return h.Lost }, LostInfo{e.acquisition(), at.Sub(t.granted), err})
	default:
		tell(e, func(h *Hooks) func(context.Context, ReleasedInfo) { return h.Released }, ReleasedInfo{e.acquisition(), at.Sub(t.granted), err})
	}
}

// unlockAndNotify unlocks e.mu, and tells of the loss that was found under it. All code that may find a loss unlocks
// in this way. A loss that comes before the hooks were told of the grant is told after it.
func (e *entry) unlockAndNotify() {
	unreported, cause := e.lossUnreported && e.announced, e.causeLocked()
	e.lossUnreported = e.lossUnreported && !unreported
	e.mu.Unlock()
	if unreported {
		e.notifyOver(time.Now(), cause)
	}
}

// trackHold has the hold notified when the session ends, if somebody observes that: its owner may not look for long.
func (e *entry) trackHold() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	ended := s.lease.Ctx.Err() != nil // then notifyEnded may have been there before
	if !ended {
		s.holds[e] = struct{}{}
	}
	s.mu.Unlock()
	if ended {
		e.noticeSessionEnd()
	}
}

// noticeSessionEnd ends the hold if the session has ended.
func (e *entry) noticeSessionEnd() {
	e.mu.Lock()
	e.checkSessionLocked()
	e.unlockAndNotify()
}

// untrackHoldLocked is called when the hold has ended: what the session's end has taken is for notifyEnded. The
// caller holds e.mu.
func (e *entry) untrackHoldLocked() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	if s.lease.Ctx.Err() == nil {
		delete(s.holds, e)
	}
	s.mu.Unlock()
}

// observed reports whether there is anybody to tell of what happens to holds that nobody looks at.
func (c *config) observed() bool {
	return len(c.hooks) > 0 || c.log.Handler() != slog.DiscardHandler
}

func (s *Session) notifyUp() {
	args := []any{"lease", s.lease.String(), "ttl", s.TTL()}
	if lasted := s.lease.Outages.All.Up(); lasted > 0 {
		args = append(args, "outage", lasted)
	}
	s.log.Info("session up", args...)
	s.story.Tell(s.outbox, outbox.Each(s.hooks, func(h *Hooks) func(SessionUpInfo) { return h.SessionUp }, SessionUpInfo{s, time.Now()}))
}

// notifyRenewed tells of an attempt to renew.
func (s *Session) notifyRenewed(took time.Duration, err error) {
	s.outbox.Tell(outbox.Each(s.hooks, func(h *Hooks) func(RenewedInfo) { return h.Renewed }, RenewedInfo{s, took, err, time.Now()}))
}

// notifyEnded tells that the session has ended, and of the losses that come with it. unrenewed is why the last
// attempt to renew failed, nil if it did not.
func (s *Session) notifyEnded(reason string, unrenewed error) {
	cause := s.Err()
	s.mu.Lock()
	holds := slices.SortedFunc(maps.Keys(s.holds), func(a, b *entry) int { return cmp.Compare(a.rev, b.rev) })
	clear(s.holds)
	s.mu.Unlock()
	if errors.Is(cause, ErrSessionExpired) {
		args := []any{"lease", s.lease.String(), "why", reason}
		if unrenewed != nil && reason == "deadline passed" { // else that attempt is not why
			args = append(args, "error", unrenewed)
		}
		args = append(args, "locks", len(holds))
		if len(holds) > 0 {
			args = append(args, "lost", listHolds(holds))
		}
		s.log.Warn("session lost", args...)
	}
	s.story.Tell(s.outbox, outbox.Each(s.hooks, func(h *Hooks) func(SessionEndedInfo) { return h.SessionEnded }, SessionEndedInfo{s, cause, time.Now()}))
	for _, e := range holds {
		e.noticeSessionEnd()
	}
}

// listHolds names the first of them for the log.
func listHolds(holds []*entry) string {
	text := ""
	for i, e := range holds {
		if i == 5 {
			text += fmt.Sprintf(", %d more", len(holds)-i)
			break
		}
		text += fmt.Sprintf(", %s (token %d)", e.name, e.rev)
	}
	return strings.TrimPrefix(text, ", ")
}
