package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// How a session ends, and tells its hooks and its log what becomes of it and of
// its locks: never with a lock of the package taken.

// trace is what the hooks are told of an entry; nil where there are none.
type trace struct {
	ctx                      context.Context // of the call that asked for the lock
	read                     bool
	asked, enqueued, granted time.Time
}

func (s *Session) newTrace(ctx context.Context, w mode) *trace {
	if len(s.hooks) == 0 {
		return nil
	}
	return &trace{ctx: ctx, read: w == readMode, asked: time.Now()}
}

// acquisition is what the hooks are told of an entry that nobody changes: its
// owner does not have it yet, or not anymore.
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

// tellGranted is called when the entry is held, before its owner has it.
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

// tellOver tells that a hold is over since at, as Unlock says with err or, where
// it was lost, Err.
func (e *entry) notifyOver(at time.Time, err error) {
	lost := errors.Is(err, ErrLost)
	if lost && !errors.Is(err, ErrSessionClosed) { // else whoever closed it knows
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

// unlockAndTell lets go of e.mu, and tells of the loss that was found under it.
// Whatever may find one lets go in this way.
func (e *entry) unlockAndNotify() {
	untold, cause := e.lossUnreported, e.causeLocked()
	e.lossUnreported = false
	e.mu.Unlock()
	if untold {
		e.notifyOver(time.Now(), cause)
	}
}

// listen has the hold be told when the session ends, if somebody listens: its
// owner may not look for long.
func (e *entry) trackHold() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	ended := s.ctx.Err() != nil // then tellEnded may have been there before
	if !ended {
		s.holds[e] = struct{}{}
	}
	s.mu.Unlock()
	if ended {
		e.noticeSessionEnd()
	}
}

// look finds out whether the session's end has ended the hold.
func (e *entry) noticeSessionEnd() {
	e.mu.Lock()
	e.checkSessionLocked()
	e.unlockAndNotify()
}

// unlistenLocked is called with e.mu taken, when the hold has ended.
func (e *entry) untrackHoldLocked() {
	s := e.s
	if s.holds == nil {
		return
	}
	s.mu.Lock()
	delete(s.holds, e)
	s.mu.Unlock()
}

// listened reports whether there is anybody to tell of what happens to holds
// that nobody looks at.
func (c *sessionConfig) observed() bool {
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

// tellRenewed: what ends the session, or comes after its end, is no news of its
// renewal.
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

// end is the one way for a session to end; the first cause stays.
func (s *Session) terminate(cause error, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.endReason = why // run tells of it
	s.cancel(cause)
	time.AfterFunc(s.ttl, s.endLease)
	if s.expiry != nil {
		s.expiry.Stop()
	}
}

// tellEnded tells that the session has ended, and of the losses that come with
// it.
func (s *Session) notifyEnded() {
	cause := context.Cause(s.ctx)
	s.mu.Lock()
	why := s.endReason
	s.mu.Unlock()
	if errors.Is(cause, ErrSessionExpired) {
		s.log.Warn("session lost", "lease", s.leaseString(), "why", why)
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
