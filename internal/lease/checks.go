// When the user of a lease checks its keys.

package lease

import (
	"context"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// checks decides when the user of a lease asks etcd for its keys: about twice in a TTL, since correctness depends on no
// event. A check that can find nothing waits until a renewal shows that there may be something to find. So a session at rest
// sends renewals only. A check finds nothing in two cases:
//
//   - Etcd has not changed since the last check: its revision is the same.
//   - The user has no keys, no request that may yet write one, and none that a full etcd has refused.
//
// Neither case is relied on after the stream has changed: a restored snapshot can bring back old keys and old revisions, and
// to restore one all members are stopped, which ends the stream. And both are trusted for trustedFor only: a member that lags
// shows an old revision, and a proxy may send a request twice.
type checks struct {
	lease *Lease
	none  func() bool
	ask   func(ctx context.Context) bool

	// The next three are of the last check. Only check, which runs alone, changes them.
	stream int // on which etcd answered before that check, 0 if its ask returned false: then the other two mean nothing
	rev    int64
	until  time.Time

	mu      sync.Mutex
	waiting bool // for a renewal
	doubted bool // ever: see doubt
}

// A check waits for news for three to four TTLs at most: trustedFor, less a jitter of up to one TTL.
const trustedFor = 4

// StartChecks calls ask for each check, as long as the lease is used: see checks. The checks are jittered, so that the
// sessions of a service don't check together. none reports whether the user has no keys, and no request that may yet write
// one. If ask returns false, it is called again although etcd has not changed. Call StartChecks before Run.
func (l *Lease) StartChecks(none func() bool, ask func(ctx context.Context) bool) {
	l.checks = &checks{lease: l, none: none, ask: ask}
	l.checks.after()
}

func (c *checks) after() {
	time.AfterFunc(c.lease.TTL/8*3+etcd.Jitter(c.lease.TTL/4), c.due)
}

// due makes the check now, or leaves it to the method renewed, which makes it when a renewal shows something new.
func (c *checks) due() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting = c.nothingNew(); !c.waiting {
		c.lease.Go(c.check)
	}
}

// renewed is called when etcd has answered a renewal.
func (c *checks) renewed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting && !c.nothingNew() {
		c.waiting = false
		c.lease.Go(c.check)
	}
}

func (c *checks) check(ctx context.Context) {
	ttl, rev, stream := c.lease.TTL, c.lease.Client.Shown(), c.lease.Stream()
	c.stream, c.rev, c.until = 0, rev, time.Now().Add(trustedFor*ttl-etcd.Jitter(ttl))
	if c.ask(ctx) {
		c.stream = stream
	}
	c.after()
}

// nothingNew reports whether a check would find nothing, as far as the last renewal shows.
func (c *checks) nothingNew() bool {
	switch stream := c.lease.Stream(); {
	case stream == 0, stream != c.stream, time.Now().After(c.until):
		return false
	case c.lease.Client.Shown() == c.rev:
		return true
	}
	return !c.lease.Adopted && !c.doubted && c.none() // the process before may have requests that write
}

// doubt takes note that etcd may have carried out a request that it has refused, so that the user may have a key unseen.
func (c *checks) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubted = true
}
