// Package outage tells the log of the times at which etcd can't be asked. All that need etcd share
// the lines: one when such a time has lasted for a second, and one when it is over.
package outage

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Blip is how long a broken connection or a new leader may keep etcd away without a line in the log. It is less than
// what is left of the shortest session when an outage begins.
const Blip = time.Second

// Outages are the outages of all users of etcd together. The log has a line when a user has not got on for Blip, and another
// when the last of the users can get on again: not a line for each user, and not one for each attempt.
type Outages struct {
	Blip time.Duration // an outage that is over before that has no lines

	alarm     atomic.Pointer[Alarm]
	mu        sync.Mutex
	count     int       // of what can't get on
	since     time.Time // of the outage whose end the log has not told, zero if there is none
	recovered bool      // at least one of them since then
	why       error     // of the last outage
	told      bool      // the log has its first line
	timer     *time.Timer
	refused   time.Time // when the log was last told that etcd refuses rights
	late      time.Time // when the log was last told of a transaction that is late
	denied    *Outages  // of the locks on which etcd denies rights: see of
}

// of are the outages that one with this error is part of. If etcd denies the rights on a lock, that may last for as long as the lock is
// held, and all others get on: an outage of etcd must have its lines, and its cause, beside that.
func (o *Outages) of(err error) *Outages {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return o
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.denied == nil {
		o.denied = &Outages{Blip: o.Blip}
	}
	return o.denied
}

// begin counts one more user that can't get on. line makes the first line of the log, which write writes when the outage has
// lasted for Blip; line may take its time, and write must not. A nil line is none.
func (o *Outages) begin(why error, line func() (write func())) {
	o.mu.Lock()
	o.count++
	if o.since.IsZero() {
		o.since, o.recovered, o.told, o.why = time.Now(), false, false, why
	}
	now := false
	switch left := o.Blip - time.Since(o.since); {
	case line == nil, o.told, o.timer != nil:
	case left <= 0:
		o.told, now = true, true
	default:
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			write := line()
			o.mu.Lock()
			defer o.mu.Unlock() // after write, so that the line of the end comes later
			if o.timer == timer {
				o.timer, o.told = nil, true
				write()
			}
		})
		o.timer = timer
	}
	o.mu.Unlock()
	if now {
		line()()
	}
}

// due reports whether the log must have a line again that it last had at that time, and if so, notes that it has the line now.
func (o *Outages) due(last *time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(*last) < again {
		return false
	}
	*last = time.Now()
	return true
}

// hushLocked stops the timer. Called with o.mu.
func (o *Outages) hushLocked() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil // if it has fired, it has come too late
	}
}

// Why says why etcd can't be asked. It is nil if there is no outage.
func (o *Outages) Why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return nil
	}
	return o.why
}

// end counts one user less. over says that the log must have a line, and all that somebody has got on again. If nobody has, and
// lives is false, the outage goes on for the next users.
func (o *Outages) end(recovered, lives bool) (lasted time.Duration, over, all bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count--
	o.recovered = o.recovered || recovered
	if o.count > 0 {
		return 0, false, false
	}
	o.hushLocked()
	if !o.recovered && !lives || o.since.IsZero() {
		return 0, false, false
	}
	lasted, o.since = time.Since(o.since), time.Time{}
	return lasted, o.told, o.recovered
}

// Up ends the outage, if there is one, and says how long it lasted: the log has a line anyway.
func (o *Outages) Up() (lasted time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hushLocked()
	if !o.since.IsZero() {
		lasted, o.since = time.Since(o.since), time.Time{}
	}
	return lasted
}

// access is what to check where etcd answers, and refuses the client.
const access = "the client's user and password, or its certificate, and the user's role"

// whatToCheck is what an operator can do about an error of an outage.
func whatToCheck(err error) string {
	text := strings.ToLower(err.Error())
	for _, c := range []struct{ words, check string }{
		{"first record does not look like a tls handshake|server preface", "the endpoints, and whether they want https"},
		{"certificate has expired or is not yet valid", "the dates of etcd's certificate, and this machine's clock"},
		{"unknown authority", "the CA in the client's TLS config: it did not sign etcd's certificate, or its file holds no certificate"},
		{"x509|certificate|tls", "the client's TLS config: CA, certificate, key and server name"},
		{"unexpected http status|unimplemented", "the endpoints, and that the proxies between pass gRPC on to etcd"},
		{"permission denied|user name is empty|invalid auth|authentication failed", access},
		{"larger than max", "clientv3.Config: MaxCallSendMsgSize and MaxCallRecvMsgSize"},
		{"permissiondenied|unauthenticated", "the rules and the credentials of the proxy or mesh between"},
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
