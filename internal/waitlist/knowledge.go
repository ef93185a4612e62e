// What a list knows, while somebody waits.

package waitlist

import (
	"context"
	"slices"
)

// knowledge is what a list needs while somebody waits. A session may hold many locks that nobody else of it wants, so a
// list has no knowledge while nobody waits: see unlock. With each fact stands who writes it.
type knowledge struct {
	// Of the queue: see the package's comment.
	views  [2]view // of the exclusive keys, and of the shared ones: applyLocked; keys leave by hearLocked, cutLocked
	goneBy int64   // goneByLocked
	latest int64   // the highest revision that anything is known of: what is sent now is carried out at it, or later
	size   int64   // of the queue, in keys, as it was last read: applyLocked
	nested bool    // keys of other names lie among those of the queue: applyLocked, hearLocked

	// The log: see log.go.
	heard   []hearsay // deletions that the reply to a request on its way may not know of: hearLocked, landedLocked
	flights []flight  // the requests on their way: fliesLocked, landedLocked

	// Of watches: see watch.go.
	watches []*Watch // at most two: the one that is needed, and one that stays for the entries to come: Opened, forgetLocked
	need    *Watch   // the agent relies on it: relyLocked, forgetLocked
	expires bool     // expire will be called: expireLaterLocked, expire

	// Of what is asked: see agent.go, plan.go.
	agent   context.Context // what the agent's requests end with; nil if no agent is at work: agentLocked, dismissLocked
	dismiss func()          // ends agent
	stale   bool            // watches may have missed something, and no reading of the present was sent since: refreshLocked, Broke, Fail, Dropped; Next
	broke   error           // what ended the watch that was needed: Broke, Next
	refusal error           // what etcd has refused with last: Fail
	reach   int64           // how far the last reading upward came, 0 for the end of the queue: Saw
	struck  int64           // how many keys have left since: Saw, hearLocked
	guarded *Part           // has waited for WatchOwnAfter for others of its own list: tick
	ticks   *Part           // waited so when the timer for that was set; nil if no timer is set: guardsLocked, tick

	later []func() // to be called when the mutex is released: agentLocked, dismissLocked, closeLocked; unlock
}

func (l *List) lock() {
	l.mu.Lock()
	if l.knowledge == nil {
		if l.knowledge, _ = l.Config.knowledge.Get().(*knowledge); l.knowledge == nil {
			l.knowledge = &knowledge{}
		}
		for _, p := range l.parts { // which was known before: Enqueued asks that of an adopted entry
			l.latest = max(l.latest, p.seen)
		}
	}
}

// unlock judges the list anew, whatever has changed, releases the mutex, and then does what must not be done before. What the list
// knows it forgets if nobody waits, and nothing is on its way: for the next entry it is as if the list was new.
func (l *List) unlock() {
	l.grantLocked()
	later := l.later
	l.later = nil
	if len(l.flights) == 0 && !l.expires && l.ticks == nil && !slices.ContainsFunc(l.parts, (*Part).waits) {
		*l.knowledge = knowledge{flights: l.flights} // which has room for the next list's
		l.Config.knowledge.Put(l.knowledge)
		l.knowledge = nil
	}
	empty := l.emptyLocked()
	l.mu.Unlock()
	for _, f := range later {
		f()
	}
	if empty {
		l.Forget(l.Name)
	}
}
