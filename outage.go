// What the log is told of the times at which etcd can not be asked.

package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// outage is the part that a wait, a watched hold, the renewals or a grant has in the outages of a Client: the
// log has a line for all of them, and none for each session that is lost meanwhile. It is used by one goroutine.
type outage struct {
	e     *entry // without a name where it is the session itself that can't get on
	open  bool
	stall etcd.Stall
}

// start is called for each attempt that fails: etcd can't be asked, or a watch can't be had, and the
// entry or the session keeps trying. That ctx, the session or the client has ended is no outage.
func (o *outage) start(ctx context.Context, err error) {
	s := o.e.s
	if o.open || ctx.Err() != nil || s.ctx.Err() != nil || s.etcd.Ctx().Err() != nil {
		return
	}
	o.open, o.stall.Client = true, s.etcd
	o.stall.Set(true)
	if !s.outages.Begin(err) || !s.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	if why := s.etcd.ConnectionError(50 * time.Millisecond); why != nil {
		err = why
	}
	args := []any{"lease", s.leaseString()}
	if o.e.name != "" {
		args = append(args, "lock", o.e.name)
	}
	s.log.Warn("etcd outage: locks wait until it is over", append(args, "endpoints", s.etcd.Endpoints(), "error", err, "check", etcd.WhatToCheck(err))...)
}

// stop is called when the entry or the session gets on again, or leaves without having recovered.
func (o *outage) stop(recovered bool) {
	if !o.open {
		return
	}
	o.open = false
	o.stall.Set(false)
	s := o.e.s
	lasted, over, all := s.outages.End(recovered, o.e.name != "" && s.ctx.Err() == nil)
	switch {
	case over && all:
		s.log.Info("etcd outage is over", "lease", s.leaseString(), "lasted", lasted)
	case over:
		s.log.Info("etcd outage concerns nobody anymore", "lease", s.leaseString(), "lasted", lasted)
	}
}
