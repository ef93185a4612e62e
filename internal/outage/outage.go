// The part that one user of etcd has in an outage, and the lines of the log.

package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A Source is a session whose waits, holds and renewals have part in outages.
type Source struct {
	All    *Outages // of all sessions of its Client
	Client *etcd.Client
	Life   context.Context // ends with the session
	Log    *slog.Logger
	Lease  fmt.Stringer
}

// An Outage is the part that a wait, a watched hold, the renewals or a grant has in the outages of a Client: the
// log has a line for all of them, and none for each session that is lost meanwhile. It is used by one goroutine.
type Outage struct {
	of    *Source
	lock  string
	in    *Outages // that it is counted in, nil if it is not open
	stall etcd.Stall
}

// Outage is the part of a wait or a hold of that lock; without a name it is that of the session itself.
func (s *Source) Outage(lock string) Outage { return Outage{of: s, lock: lock} }

// Start is called for each attempt that fails: etcd can't be asked, or a watch can't be had, and the wait, the
// hold or the session keeps trying. The end of ctx, of the session or of the client is no outage.
func (o *Outage) Start(ctx context.Context, err error) {
	s := o.of
	in := s.All.of(err)
	if o.in != nil && (in == s.All || in == o.in) || ctx.Err() != nil || s.Life.Err() != nil || s.Client.Ctx().Err() != nil {
		return
	}
	o.Stop(true) // if etcd was away: it answers now
	o.in, o.stall.Client = in, s.Client
	o.stall.Set(in == s.All)
	if !s.Log.Enabled(ctx, slog.LevelWarn) {
		in.begin(err, nil)
		return
	}
	lease, lock := s.Lease.String(), o.lock // now: while a lease is granted, its ID changes with each attempt
	in.begin(err, func() func() { return s.line(lease, lock, err) })
}

// line makes the first line of an outage. It waits a moment for the connection's own error, which says more.
func (s *Source) line(lease, lock string, err error) (write func()) {
	if why := s.Client.ConnectionError(50 * time.Millisecond); why != nil {
		err = why
	}
	args := []any{"lease", lease}
	if lock != "" {
		args = append(args, "lock", lock)
	}
	check := whatToCheck(err)
	args = append(args, "endpoints", s.Client.Endpoints(), "error", err, "check", check)
	if check == access { // a watch that was compacted is refused too, and opened anew
		return func() { s.refuses(args) }
	}
	return func() { s.Log.Warn("etcd outage: locks wait until it is over", args...) }
}

func (s *Source) refuses(args []any) { s.Log.Warn("etcd refuses this client", args...) }

// again is after how long the log says again that etcd refuses rights, or that a transaction is late.
const again = time.Minute

// Refused is called with the error of a call that has ended. If etcd has refused rights, the log has a line, once for
// all calls in that time: what op, and the names that wrap knows, are the first call's.
func (s *Source) Refused(op string, err error, wrap func(op string, err error) error) {
	var refusal rpctypes.EtcdError
	if !errors.As(err, &refusal) || whatToCheck(refusal) != access {
		return
	}
	if s.All.due(&s.All.refused) { // as text: the caller has the error
		s.refuses([]any{"lease", s.Lease.String(), "endpoints", s.Client.Endpoints(), "user", s.Client.Username, "error", wrap(op, err).Error(), "check", access})
	}
}

// Stop is called when the wait, the hold or the session gets on again, or ends before that.
func (o *Outage) Stop(recovered bool) {
	if o.in == nil {
		return
	}
	o.stall.Set(false)
	s := o.of
	lasted, over, all := o.in.end(recovered, o.lock != "" && s.Life.Err() == nil)
	o.in = nil
	switch {
	case over && all:
		s.Log.Info("etcd outage is over", "lease", s.Lease.String(), "lasted", lasted)
	case over:
		s.Log.Info("etcd outage concerns nobody anymore", "lease", s.Lease.String(), "lasted", lasted)
	}
}

// LateAfter is how long a transaction under a lock goes on before the log has a line: it is sent once, to one member.
const LateAfter = 5 * time.Second

// Late is called when a transaction under a lock is sent, and stop when it has ended. The log has a line once in a minute for all
// transactions: on a member that hangs all of them are late.
func (s *Source) Late(lock string, token int64) (stop func() bool) {
	return time.AfterFunc(LateAfter, func() {
		if !s.All.due(&s.All.late) {
			return
		}
		s.Log.Warn("a transaction under a lock has no answer from etcd yet", "lock", lock, "token", token, "waits", LateAfter,
			"endpoints", s.Client.Endpoints(), "check", "whether a member hangs: stop it; and the client's DialKeepAliveTime")
	}).Stop
}
