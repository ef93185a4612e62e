package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// What hooks and log are told of a session and its locks: never with a mutex of the package taken.

// trace is what the hooks are told of an entry. It is nil if there are no hooks.
type trace struct {
	ctx                      context.Context // of the call that asked for the lock
	read                     bool
	asked, enqueued, granted time.Time
}

func (s *Session) newTrace(ctx context.Context, m mode) *trace {
	if len(s.hooks) == 0 {
		return nil
	}
	return &trace{ctx: ctx, read: m == readMode, asked: time.Now()}
}

// acquisition is what the hooks are told of an entry that nobody changes: its owner does not have it
// yet, or not anymore.
func (e *entry) acquisition() Acquisition {
	t := e.trace()
	a := Acquisition{Session: e.s, Name: e.name, Read: t.read, Token: e.rev, Asked: t.asked, Enqueued: t.enqueued, Granted: t.granted}
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

func (e *entry) notifyEnqueued() {
	t := e.trace()
	if t == nil {
		return
	}
	t.enqueued = time.Now()
	for _, h := range e.s.hooks {
		if h.Enqueued != nil {
			h.Enqueued(t.ctx, EnqueuedInfo{e.acquisition()})
		}
	}
}

// notifyGranted is called when the entry is held, before its owner has it.
func (e *entry) notifyGranted() {
	if t := e.trace(); t != nil {
		t.granted = time.Now()
		for _, h := range e.s.hooks {
			if h.Granted != nil {
				h.Granted(t.ctx, GrantedInfo{e.acquisition(), t.granted.Sub(t.asked)})
			}
		}
	}
	e.trackHold()
}

func (e *entry) notifyAbandoned(err error) {
	t := e.trace()
	if t == nil {
		return
	}
	info := AbandonedInfo{e.acquisition(), time.Since(t.asked), err}
	for _, h := range e.s.hooks {
		if h.Abandoned != nil {
			h.Abandoned(t.ctx, info)
		}
	}
}

// notifyOver tells that a hold is over since at: err is what Unlock returns, or Err after a loss.
func (e *entry) notifyOver(at time.Time, err error) {
	lost := errors.Is(err, ErrLost)
	if lost && !errors.Is(err, ErrSessionClosed) { // else the caller of Close knows
		e.s.log.Warn("lock lost", "lock", e.name, "key", e.key, "token", e.rev, "cause", err)
	}
	t := e.trace()
	if t == nil {
		return
	}
	a := e.acquisition()
	for _, h := range e.s.hooks {
		switch {
		case lost && h.Lost != nil:
			h.Lost(t.ctx, LostInfo{a, at.Sub(a.Granted), err})
		case !lost && h.Released != nil:
			h.Released(t.ctx, ReleasedInfo{a, at.Sub(a.Granted), err})
		}
	}
}

// unlockAndNotify unlocks e.mu, and tells of the loss that was found under it. All code that may find
// a loss unlocks in this way.
func (e *entry) unlockAndNotify() {
	unreported, cause := e.lossUnreported, e.causeLocked()
	e.lossUnreported = false
	e.mu.Unlock()
	if unreported {
		e.notifyOver(time.Now(), cause)
	}
}

// trackHold has the hold notified when the session ends, if somebody observes that: its owner may not
// look for long.
func (e *entry) trackHold() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	ended := s.ctx.Err() != nil // then notifyEnded may have been there before
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

// untrackHoldLocked is called when the hold has ended. The caller holds e.mu.
func (e *entry) untrackHoldLocked() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	delete(s.holds, e)
	s.mu.Unlock()
}

// observed reports whether there is anybody to tell of what happens to holds that nobody looks at.
func (c *config) observed() bool {
	return len(c.hooks) > 0 || c.log.Handler() != slog.DiscardHandler
}

func (s *Session) notifyUp() {
	s.log.Info("session up", "lease", s.leaseString(), "ttl", s.ttl)
	for _, h := range s.hooks {
		if h.SessionUp != nil {
			h.SessionUp(SessionUpInfo{s})
		}
	}
}

// notifyRenewed tells of an attempt to renew, but not of one that ends the session or comes after its
// end.
func (s *Session) notifyRenewed(info RenewedInfo) {
	if len(s.hooks) == 0 || s.ctx.Err() != nil {
		return
	}
	for _, h := range s.hooks {
		if h.Renewed != nil {
			h.Renewed(info)
		}
	}
}

// notifyEnded tells that the session has ended, and of the losses that come with it.
func (s *Session) notifyEnded() {
	cause := context.Cause(s.ctx)
	s.mu.Lock()
	reason := s.endReason
	s.mu.Unlock()
	if errors.Is(cause, ErrSessionExpired) {
		s.log.Warn("session lost", "lease", s.leaseString(), "why", reason)
	}
	for _, h := range s.hooks {
		if h.SessionEnded != nil {
			h.SessionEnded(SessionEndedInfo{s, cause})
		}
	}
	s.mu.Lock()
	holds := make([]*entry, 0, len(s.holds))
	for e := range s.holds {
		holds = append(holds, e)
	}
	s.mu.Unlock()
	for _, e := range holds {
		e.noticeSessionEnd()
	}
}

// outages are those of all waits and watched holds of a session together. The log gets a line when the
// first of them can't get on, and another when the last of them can again: not one for each, and not
// one for each attempt. The session's s.mu guards them.
type outages struct {
	count     int // of waits and holds that can't get on
	since     time.Time
	recovered bool // at least one of them since then
}

// outage is the part of one wait or hold. It is used by one goroutine.
type outage struct {
	e    *entry
	open bool
}

// start is called for each attempt that fails: etcd can't be asked, or a watch can't be had, and the
// entry keeps trying. That ctx, the session or the client has ended is no outage.
func (o *outage) start(ctx context.Context, err error) {
	s := o.e.s
	if o.open || ctx.Err() != nil || s.ctx.Err() != nil || s.etcd.Ctx().Err() != nil {
		return
	}
	o.open = true
	s.mu.Lock()
	s.outages.count++
	first := s.outages.count == 1
	if first {
		s.outages.since, s.outages.recovered = time.Now(), false
	}
	s.mu.Unlock()
	if first {
		s.log.Warn("etcd outage: waits and watched holds keep trying", "lease", s.leaseString(), "lock", o.e.name, "error", err)
	}
}

// stop is called when the entry gets on again, or leaves without having recovered.
func (o *outage) stop(recovered bool) {
	if !o.open {
		return
	}
	o.open = false
	s := o.e.s
	s.mu.Lock()
	s.outages.count--
	s.outages.recovered = s.outages.recovered || recovered
	last, now := s.outages.count == 0, s.outages
	s.mu.Unlock()
	switch {
	case !last:
	case now.recovered:
		s.log.Info("etcd outage is over", "lease", s.leaseString(), "lasted", time.Since(now.since))
	case s.ctx.Err() == nil: // else the session's end is the line
		s.log.Info("etcd outage concerns nobody anymore", "lease", s.leaseString(), "lasted", time.Since(now.since))
	}
}
