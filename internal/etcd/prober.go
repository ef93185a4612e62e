// What looks after the watches of a client, since a watch may be silent.

package etcd

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// probeInterval is how often a Prober probes the watches, jittered, so that one of several sessions of a client asks
// for all. It asks once a second: after an answer the next Probe asks nothing.
const probeInterval = time.Second / 2

// A Prober probes the watches of a client for as long as there are any. The fields above mu are set before.
type Prober struct {
	Client *Client
	Life   context.Context
	Go     func(f func(ctx context.Context)) bool // runs f, or returns false if Life is about to end
	// Silent is called, once in each Every, while watches are silent and no other stream can be had for them.
	Silent func()
	Every  func() time.Duration

	mu        sync.Mutex
	Attending bool // somebody probes
}

// Attend looks after the watches for as long as there are any. Call it when one was opened.
func (p *Prober) Attend() {
	p.mu.Lock()
	begin := !p.Attending
	p.Attending = true
	p.mu.Unlock()
	if begin {
		p.Go(func(context.Context) { p.Probe() }) // or Life ends
	}
}

// End ends the probing, and returns true, if there are no watches. It looks with the mutex held. Attend is called after a watch
// was opened: if Attend comes before End, End sees the watch; if Attend comes after End, Attend begins anew.
func (p *Prober) End() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Attending = p.Client.Watches()
	return !p.Attending
}

// Probe probes the watches until there are none, or Life ends.
func (p *Prober) Probe() {
	for refreshed := time.Now(); ; {
		if Sleep(p.Life, probeInterval/8*7+rand.N(probeInterval/4)) != nil || p.End() {
			return
		}
		if silent := p.Client.Probe(p.Life); silent && time.Since(refreshed) > p.Every() {
			refreshed = time.Now()
			p.Silent()
		}
	}
}

// reopen is how often to open a watch on a silent stream that answers no question.
const reopen = 10 * time.Second

// Probe asks each stream that has watches whether it lives, unless something was heard of the stream since the last Probe. If
// nothing is heard for somewhat more than AttemptMin after the question, the stream is on a member that hangs or is cut off: its
// watches end, and the next watches get another stream. The watches go on, and may be silent, if no other stream can be had, or
// if the stream opens watches and answers no question, as a proxy's does. silent says that this is so.
//
// Clients of one clientv3.Client share its stream, and etcd's answer goes to all of their watches. So
// one of them asks, and the others have heard of it.
//
// That a watch can't be opened says the same only if nothing else is heard: the watch may stand in line behind others.
func (c *Client) Probe(ctx context.Context) (silent bool) {
	var asked sync.WaitGroup
	c.mu.Lock()
	for _, w := range append(slices.Clone(c.watcher.former), c.watcher) {
		ask, unheard := w.unheardLocked()
		again := false
		switch mute := !w.answers.Load() && !w.opened.IsZero(); {
		case !ask:
			continue
		case unheard < AttemptMin+c.pace.late():
			again = unheard > c.pace.late() && w.renewable() && !w.answers.Load() && time.Since(w.opened) > reopen
		case mute && time.Since(w.opened) < reopen:
			silent = true
		case mute && time.Since(w.opened) < reopen+2*AttemptMin:
			silent, again = true, true
		case w != c.watcher, c.renewLocked():
			w.end()
			continue
		default:
			silent = true
		}
		w.probing = true
		asked.Go(func() { c.ask(ctx, w, again) }) // each by itself: one that hangs may take its time
	}
	c.mu.Unlock()
	asked.Wait()
	return silent
}

// unheardLocked reports whether to ask w whether it lives, and for how long nothing was heard of it since it was first
// asked that. A Watcher whose watches have ended, or are only being opened, is not asked: if it has no stream, the client
// would open one to ask, and nobody would end that stream. The caller holds the Client's mu.
func (w *Watcher) unheardLocked() (ask bool, unheard time.Duration) {
	heard := w.heard.Swap(false)
	switch {
	case heard, w.open == 0, w.life.Err() != nil:
		w.probed = time.Time{}
		return false, 0
	case w.probed.IsZero():
		w.probed = time.Now()
	}
	return true, time.Since(w.probed)
}

// ask asks w whether it lives; with again, also whether one more watch can be opened. Then ask closes the watches that were to
// be closed meanwhile.
func (c *Client) ask(ctx context.Context, w *Watcher, again bool) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), AttemptMin)
	_ = w.RequestProgress(ctx) // if it fails, there is silence
	opened := false
	if of := w.watched.Load(); again && of != nil {
		watch, err := c.open(ctx, w, of.key, of.end, of.opts...)
		if opened = err == nil; opened {
			watch.Close()
		}
	}
	cancel()
	c.mu.Lock()
	if opened {
		w.opened = time.Now()
	}
	w.probing = false
	closing := w.closing
	w.closing = nil
	c.mu.Unlock()
	for _, f := range closing {
		f()
	}
}

// Jitter is a duration below most, by which the sessions of a service come to differ. It is no secret, and clones of a
// virtual machine may draw the same.
func Jitter(most time.Duration) time.Duration { return rand.N(most) }
