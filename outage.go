package etcdlock

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// outages are those of all that needs etcd in the sessions of a Client: waits, watched holds, renewals and
// grants. The log gets a line when the first of them can't get on, and another when the last of them can
// again or a session is up: not one for each, not one for each attempt, and not one for each session that is
// lost meanwhile.
type outages struct {
	mu        sync.Mutex
	count     int       // of what can't get on
	since     time.Time // of the outage of which the log has the first line only, zero if there is none
	recovered bool      // at least one of them since then
}

// outage is the part of one of them. It is used by one goroutine.
type outage struct {
	e       *entry // without a name where it is the session itself that can't get on
	open    bool
	trouble etcd.Trouble
}

// start is called for each attempt that fails: etcd can't be asked, or a watch can't be had, and the
// entry or the session keeps trying. That ctx, the session or the client has ended is no outage.
func (o *outage) start(ctx context.Context, err error) {
	s := o.e.s
	if o.open || ctx.Err() != nil || s.ctx.Err() != nil || s.etcd.Ctx().Err() != nil {
		return
	}
	o.open = true
	o.trouble.Client = s.etcd
	o.trouble.Set(true)
	if !s.outages.begin() || !s.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	if why := s.etcd.ConnectionError(); why != nil {
		err = why
	}
	args := []any{"lease", s.leaseString()}
	if o.e.name != "" {
		args = append(args, "lock", o.e.name)
	}
	s.log.Warn("etcd outage: locks wait until it is over", append(args, "endpoints", s.etcd.Endpoints(), "error", err, "check", whatToCheck(err))...)
}

// stop is called when the entry or the session gets on again, or leaves without having recovered.
func (o *outage) stop(recovered bool) {
	if !o.open {
		return
	}
	o.open = false
	o.trouble.Set(false)
	s := o.e.s
	lasted, over, all := s.outages.end(recovered, o.e.name != "" && s.ctx.Err() == nil)
	switch {
	case over && all:
		s.log.Info("etcd outage is over", "lease", s.leaseString(), "lasted", lasted)
	case over:
		s.log.Info("etcd outage concerns nobody anymore", "lease", s.leaseString(), "lasted", lasted)
	}
}

// begin reports whether the log is to have a line.
func (o *outages) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
	if !o.since.IsZero() {
		return false
	}
	o.since, o.recovered = time.Now(), false
	return true
}

// end reports whether the log is to have a line, and whether somebody has got on again. Where nobody has and
// it is the session that has ended, or that could not be had, the outage goes on for the next one.
func (o *outages) end(recovered, lives bool) (lasted time.Duration, over, all bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count--
	o.recovered = o.recovered || recovered
	if o.count > 0 || !o.recovered && !lives || o.since.IsZero() {
		return 0, false, false
	}
	lasted, o.since = time.Since(o.since), time.Time{}
	return lasted, true, o.recovered
}

// sessionUp ends the outage, if there is one, by the line that the session is up.
func (o *outages) sessionUp() (lasted time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		lasted, o.since = time.Since(o.since), time.Time{}
	}
	return lasted
}

// whatToCheck is what an operator can do about an error of an outage.
func whatToCheck(err error) string {
	text := strings.ToLower(err.Error())
	for _, c := range []struct{ words, check string }{
		{"first record does not look like a tls handshake|server preface", "the endpoints, and whether they want https"},
		{"x509|certificate|tls", "the client's TLS config: CA, certificate, key and server name"},
		{"refused|no such host|no route|timeout|do not answer|network is unreachable", "the endpoints, and that etcd is up there"},
		{"no leader", "that a majority of etcd's members is up, and they reach each other"},
	} {
		for word := range strings.SplitSeq(c.words, "|") {
			if strings.Contains(text, word) {
				return c.check
			}
		}
	}
	return "etcd's health: etcdctl endpoint health --cluster"
}
