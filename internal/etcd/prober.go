// What looks after the watches of a client, since a watch may be silent.

package etcd

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// probeInterval is how often a Prober probes the watches, jittered, so that one of several sessions of a client asks
// for all. It asks once a second: after an answer the next Probe asks nothing.
const probeInterval = time.Second / 2

// A Prober probes the watches of a client for as long as there are any. The fields above mu are set before.
type Prober struct {
	Client *Client
	Life   context.Context
	Go     func(f func(ctx context.Context)) bool // runs f, or returns false if Life is about to end
	// Silent is called when watches that can't be had anew are silent, each time that Every has passed.
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

// End ends that, and returns true, if there are no watches. It looks with the mutex held: Attend is called after a watch
// was opened, so it either comes before and the watch is seen, or it comes after and begins anew.
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

// Jitter is a duration below most, by which the sessions of a service come to differ. It is no secret, and clones of a
// virtual machine may draw the same.
func Jitter(most time.Duration) time.Duration { return rand.N(most) }
