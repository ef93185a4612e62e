package etcdlock

import (
	"context"
	"time"
)

// troubles are what a session has with etcd in its waits and its watched holds,
// all together. The log gets a line when the first of them gets into trouble, and
// another when the last of them is out of it: not one for each, and not one for
// each attempt. The session's s.mu guards them.
type outages struct {
	count     int // so many waits and holds
	since     time.Time
	recovered bool // at least one of them since then
}

// trouble is the part of one wait or hold. It is used by one goroutine.
type outage struct {
	e    *entry
	open bool
}

// begin is called for each attempt that fails: etcd, or a watch, can't be had, and
// the entry keeps trying. That ctx, the session or the client has ended is no
// trouble.
func (t *outage) start(ctx context.Context, err error) {
	s := t.e.s
	if t.open || ctx.Err() != nil || s.ctx.Err() != nil || s.client.Ctx().Err() != nil {
		return
	}
	t.open = true
	s.mu.Lock()
	s.outages.count++
	first := s.outages.count == 1
	if first {
		s.outages.since, s.outages.recovered = time.Now(), false
	}
	s.mu.Unlock()
	if first {
		s.log.Warn("trouble with etcd: waits and watched holds keep trying", "lease", s.leaseString(), "lock", t.e.name, "error", err)
	}
}

// end is called when the entry gets on again, or, without having recovered, leaves.
func (t *outage) stop(recovered bool) {
	if !t.open {
		return
	}
	t.open = false
	s := t.e.s
	s.mu.Lock()
	s.outages.count--
	s.outages.recovered = s.outages.recovered || recovered
	last, now := s.outages.count == 0, s.outages
	s.mu.Unlock()
	switch {
	case !last:
	case now.recovered:
		s.log.Info("trouble with etcd is over", "lease", s.leaseString(), "lasted", time.Since(now.since))
	case s.ctx.Err() == nil: // else the session's end is the line
		s.log.Info("trouble with etcd concerns nobody anymore", "lease", s.leaseString(), "lasted", time.Since(now.since))
	}
}
