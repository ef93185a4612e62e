// The entries of a list, from before their txns are sent.

package waitlist

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A List is the entries of one session in one queue. It is safe for concurrent use, and calls
// nobody while its mutex is held, but see WhenContended.
type List struct {
	Name string // of the lock
	*Config

	mu    sync.Mutex // locked by lock and released by unlock, where more than a look is needed
	parts []*Part    // those in the queue, in its order
	*knowledge
}

// A Config is what a list needs of its surroundings.
type Config struct {
	Life context.Context // ends the agents. A list may keep a watch for longer than the wait that it was opened for
	// Ask starts an agent, which calls Next, with ctx, and does what Next says, until it says Rest.
	Ask           func(ctx context.Context, l *List)
	Forget        func(name string)           // is called, at least once, when the list has become Empty
	After         func(time.Duration, func()) // runs a function later
	WatchOwnAfter time.Duration               // how long an entry waits for others of its list until they are watched
	UpLimit       int64                       // of a reading upward
	ManyShare     int64                       // how long a queue is watched whole: see the constant of that name

	knowledge sync.Pool // of lists that have none any more
}

// A Part is one part of an acquisition of the session, with its entry in the queue of a name. A session may hold many
// locks: a Part is small, and lies in its acquisition's memory. It must not be copied.
type Part struct {
	// Owner is the acquisition, set before Register. The list does not use it.
	Owner any

	l     *List
	keys  [2]string // the entry's; the first one stands for it, the second one is "" of most
	kind  keyspace.Kind
	state state
	stuck bool          // see Stuck
	rev   int64         // where it is in the queue, 0 while its txn is on its way
	seen  int64         // see the package's comment
	wake  chan struct{} // nil until somebody may wait for it
	// contended is called when another entry of the list waits for it: see WhenContended.
	contended func()
}

type state uint8

const (
	waiting  state = iota // its txn is on its way, or it is in the queue
	idle                  // likewise, and nobody waits for it yet: WakeWith, until Begin
	refused               // likewise, and etcd has refused what was asked for it: Fail
	granted               // it has the lock: grantLocked, and nobody else
	left                  // released or withdrawn: over, wherever its key is: Leave
	removing              // likewise, or lost when it was held, but in the way until etcd has removed it: Leave, Lost, absentLocked
	evicted               // its key was lost while it waited, and its owner must be told: absentLocked
)

// New makes the list of a session's entries in the queue of a name.
func New(name string, c *Config) *List { return &List{Name: name, Config: c} }

// Register adds a part whose entry is about to be written under the keys that Rekey has given it.
func (l *List) Register(p *Part, kind keyspace.Kind) {
	p.l, p.kind = l, kind
	l.lock()
	defer l.unlock()
	l.fliesLocked(p)
}

// Key is what the entry is known by, and Keys are all of the entry's. They must not be read beside Rekey and Downgrading.
func (p *Part) Key() string { return p.keys[0] }

// Keys are all keys of the entry: see Key.
func (p *Part) Keys() []string {
	if p.keys[1] == "" {
		return p.keys[:1]
	}
	return p.keys[:]
}

func (p *Part) entry() queue.Entry { return queue.Entry{Key: p.keys[0], Rev: p.rev} }

// List is the entry's.
func (p *Part) List() *List { return p.l }

// Rekey gives the entry its keys: before Register, and other ones if those that it had are in use by others. The entry is
// known by the first one. A write lock has a shared one besides; other locks have "" there.
func (p *Part) Rekey(key, shared string) {
	l := p.l
	if l == nil {
		p.keys = [2]string{key, shared}
		return
	}
	l.lock()
	defer l.unlock()
	l.landedLocked(flight{of: p})
	p.keys = [2]string{key, shared}
	l.fliesLocked(p)
}

// Enqueued says that the entry is in the queue at revision rev. seen is what its txn showed
// before it wrote the entry, nil if nothing.
func (p *Part) Enqueued(rev int64, seen *Listing) (lost []*Part) {
	l := p.l
	l.lock()
	defer l.unlock()
	p.rev = rev
	if since := l.sinceLocked(p); since <= rev {
		p.seen = rev
	} else if seen != nil && seen.At < since { // of an adopted entry: a watch may have told of its end before it was registered
		seen = nil
	}
	l.latest = max(l.latest, rev)
	i, _ := l.findLocked(rev)
	l.parts = slices.Insert(l.parts, i, p)
	if v := l.viewLocked(keyspace.KindOf(l.Name, p.keys[0])); v.has(p.entry()) {
		p.seen = max(p.seen, v.listed)
	}
	for _, w := range l.viewsLocked(p) { // of what is below nobody knows when it has gone, but that it had when this was listed
		if w.listed > p.seen {
			l.goneByLocked(w.listed)
		}
	}
	if left, _ := l.leftSinceLocked(p.entry()); left {
		lost = l.absentLocked(lost, p, rev)
	}
	if seen != nil {
		for _, key := range p.Keys() {
			seen.Keys = append(seen.Keys, queue.Entry{Key: key, Rev: rev})
		}
		lost = append(lost, l.applyLocked(seen, false)...)
	}
	l.landedLocked(flight{of: p})
	return lost
}

// keysLocked is how many keys the list has in the queue, and is about to have.
func (l *List) keysLocked() (n int64) {
	for _, p := range l.parts {
		n += int64(len(p.Keys()))
	}
	for _, f := range l.flights {
		if f.of != nil {
			n += int64(len(f.of.Keys()))
		}
	}
	return n
}

// findLocked is where in entries the one of a revision is, or would be.
func (l *List) findLocked(rev int64) (i int, known bool) {
	return slices.BinarySearchFunc(l.parts, rev, func(o *Part, rev int64) int { return cmp.Compare(o.rev, rev) })
}

// ownLocked is the entry of the list that q is a key of, nil if q is another session's, or its entry's revision is not
// known yet.
func (l *List) ownLocked(q queue.Entry) *Part {
	if i, ok := l.findLocked(q.Rev); ok && slices.Contains(l.parts[i].Keys(), q.Key) {
		return l.parts[i]
	}
	return nil
}

// BehindMore reports whether more than n keys of the list are in the entry's way: a listing of n would not show them all.
func (p *Part) BehindMore(n int) bool {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.parts {
		for _, key := range o.Keys() {
			if !o.over() && queue.Blocks(keyspace.KindOf(l.Name, key), p.kind) {
				n--
			}
		}
	}
	return n < 0
}

// BehindLeft reports whether all that is in the entry's way of the list has left, and something is. What is Stuck has not left.
// Woken tells when that changes.
func (p *Part) BehindLeft() (behind bool) {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.parts {
		switch {
		case !queue.Blocks(o.kind, p.kind):
		case o.state != left && o.state != removing || o.stuck:
			return false
		default:
			behind = true
		}
	}
	if behind {
		p.wakeLocked() // before the next change, so that Woken tells of it
	}
	return behind
}

// Stuck says that etcd refuses to remove the entry, which has left.
func (p *Part) Stuck() {
	p.l.lock()
	defer p.l.unlock()
	p.stuck = true
	p.l.tellSentLocked()
}

// tellSentLocked wakes those who may wait for what BehindLeft reports.
func (l *List) tellSentLocked() {
	for _, f := range l.flights {
		if f.of != nil {
			f.of.wakeUp()
		}
	}
}

// Empty reports whether the list has no entry and knows nothing, so that it can be dropped.
func (l *List) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.emptyLocked()
}

func (l *List) emptyLocked() bool { return len(l.parts) == 0 && l.knowledge == nil }

// Parts are those whose entries are in the queue.
func (l *List) Parts() []*Part {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.parts)
}
