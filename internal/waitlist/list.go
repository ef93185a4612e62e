// Package waitlist keeps what one session has in one lock's queue, and says which of its
// entries has the lock and what must be asked of etcd for the others. It makes no request: it
// is told of what was registered, read, heard and released, and each waiting entry asks Next
// what to do. It knows nothing of sessions and leases.
//
// Only the two front-most waiting entries ask etcd, the second to be prepared; while the lock goes
// from one entry of the list to the next, one more reads ahead. The others have to wait for the
// entries before them anyway.
//
// Invariant (I1): an entry is granted only after a revision at which it was in the queue and
// every lower key that blocks it was of an entry of its own list that has left without a fence.
package waitlist

import (
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A List is the entries of one session in one queue. It is safe for concurrent use, and calls
// nobody while its mutex is held, but see WhenContended.
type List struct {
	name   string
	forget func(name string)           // see New
	after  func(time.Duration, func()) // runs a function later

	mu sync.Mutex // released by unlock
	// places are the keys of the queue that are known, those of the list and other sessions', by
	// revision. All there are up to the marks are among them: nothing is ever added below.
	places []place
	marks  [2]int64 // of the exclusive and of the shared ones
	latest int64    // the highest revision at which something was found to be gone
	size   int64    // of the queue, in keys, as it was last read
	// keys are those of entries, from before the txn that writes them is sent. A key that is seen is
	// an entry's only if its revision is the one that etcd gave the entry.
	keys map[string]*Entry
	// removed are the revisions of entries that have left, by key. A reading or a reply that is
	// late still shows them.
	removed map[string]int64
	// told are the revisions of the last deletions that the watches have told of, by key: a reading of before may
	// still show the keys. Those up to toldFrom may be missing.
	told     map[string]int64
	toldFrom int64
	watches
	front   [3]*Entry
	changed bool   // the front may have something to do
	reader  *Entry // it reads upward, for all: one of them at a time
}

// An Entry is one acquisition of the session's in the queue.
type Entry struct {
	// Owner is whom the entry belongs to. The list does not use it.
	Owner any

	l     *List
	keys  []string // the first one stands for the entry
	kind  keyspace.Kind
	state state
	// What is known of the way to its grant:
	//
	//	fact        says                                           set by                          needed for
	//	rev         where it is in the queue, 0 while unknown      Enqueued, Held                  I1
	//	minSeen     it is granted only when it was seen in the     what finds that a key below or  I1: it was there when
	//	            queue at this revision or later                another of the list is gone     that had gone
	//	goneUpTo    what was under its keys up to this revision    Heard, a reading, before rev    I1: a late reply does
	//	            is gone                                        is known                        not bring it back
	//	knownFrom   places has every key that was created from     Enqueued, Saw                   I1: every lower key
	//	            here to rev; with marks that reach it, places
	//	            has every key below the entry
	//	mustRead    etcd must be asked at the present: a watch     Fail, Refresh, Look; cleared    an event that nobody
	//	            may have missed something                      by a reading of the present     has told of
	//	readAt      the revision of the last reading for it, of a  Saw                             a reading behind the
	//	            range                                                                          watch; one to read ahead
	//	notReached  a reading upward did not come so far: it       Saw                             the limit upward
	//	            reads downward
	//	noLimit     a reading of few keys downward did not         Saw                             the limit downward
	//	            suffice
	rev, minSeen, goneUpTo, knownFrom, readAt int64
	mustRead, notReached, noLimit             bool

	stuck bool   // see Stuck
	guard bool   // see Guard
	idle  bool   // nobody asks Next: see WakeWith and Stop
	watch *Watch // that it relies on
	broke error  // what ended that, until the entry has been told
	wake  chan struct{}
	// contended is called when another entry of the list waits for it: see WhenContended.
	contended func()
}

type state uint8

const (
	sent    state = iota // its txn is on its way
	waiting              // in the queue
	held                 // it has the lock
	left                 // released or withdrawn: over, wherever its key is
	leaving              // likewise, or lost when it was held, but in the way until etcd has removed it
	missing              // its key was lost while it waited, and its owner must be told
)

// New makes the list of a session's entries in the queue of a name. forget is called, some time after the last entry
// has left, when the list may have become Empty since it keeps no watch any more.
func New(name string, forget func(name string)) *List {
	return &List{
		name: name, forget: forget, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		keys: make(map[string]*Entry), removed: make(map[string]int64), told: make(map[string]int64),
	}
}

// unlock releases the mutex, and then closes the watches that nobody needs any more.
func (l *List) unlock() {
	closing := l.closing
	l.closing = nil
	l.mu.Unlock()
	for _, w := range closing {
		w.Close()
	}
}

// Register adds an entry that is about to be written under these keys. The first one is what it
// is known by; a write lock has a shared one besides.
func (l *List) Register(owner any, kind keyspace.Kind, keys ...string) *Entry {
	e := &Entry{Owner: owner, l: l, kind: kind, wake: make(chan struct{}, 1)}
	e.Rekey(keys...)
	return e
}

// Name is that of the lock.
func (e *Entry) Name() string { return e.l.name }

// Rekey gives the entry other keys, since those that it had are in use by others.
func (e *Entry) Rekey(keys ...string) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	e.disownLocked()
	e.keys, e.goneUpTo = keys, 0
	for _, key := range keys {
		l.keys[key] = e
	}
	l.changed = true
	l.grantLocked()
}

func (e *Entry) disownLocked() {
	for _, key := range e.keys {
		if e.l.keys[key] == e {
			delete(e.l.keys, key)
		}
	}
}

// Enqueued says that the entry is in the queue at revision rev. seen is what its txn showed
// before it wrote the entry, nil if nothing.
func (e *Entry) Enqueued(rev int64, seen *Listing) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	e.enterLocked(rev, waiting)
	if rev <= e.goneUpTo {
		e.state = missing
	}
	late := true // nobody may know at which revision what was below has gone
	if seen != nil {
		if seen.Low <= seen.High {
			e.knownFrom = seen.Low
		}
		lost = l.applyLocked(seen)
		late = seen.Low > seen.High || slices.ContainsFunc(seen.Keys, l.forgotLocked)
	}
	if late && rev < l.latest {
		e.minSeen = l.latest
	}
	if e.state == waiting && seen.Clear(l.name, e.kind) {
		// Nothing was below, whatever the list has yet to hear about its entries that are leaving.
		e.state = held
		e.clearBelowLocked()
	}
	l.grantLocked()
	return lost
}

// Held says that the entry has the lock, at revision rev, without having waited.
func (e *Entry) Held(rev int64) {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.enterLocked(rev, held)
	e.clearBelowLocked()
}

func (e *Entry) enterLocked(rev int64, s state) {
	e.rev, e.knownFrom, e.state = rev, rev, s
	for _, key := range e.keys {
		i := e.l.placeLocked(queue.Entry{Key: key, Rev: rev})
		e.l.places[i].own, e.l.places[i].seen = e, max(e.l.places[i].seen, rev)
	}
}

// BehindMore reports whether more than n keys are known to be in the entry's way, those of the list that have not
// left and other sessions' keys that a watch covers: the queue is then so long that a listing
// of n would not show them all.
func (e *Entry) BehindMore(n int) bool {
	e.l.mu.Lock()
	defer e.l.unlock()
	for i := range e.l.places {
		p := &e.l.places[i]
		there := p.own != nil && p.own.state != left || p.own == nil && e.l.trackedLocked(p)
		if there && queue.Blocks(p.kind, e.kind) {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// BehindLeft reports whether the list has no entries in the queue but such that have left, and that are not Stuck.
// Wake tells when that changes.
func (e *Entry) BehindLeft() bool {
	e.l.mu.Lock()
	defer e.l.unlock()
	over := false
	for _, p := range e.l.places {
		if p.own != nil {
			if over = (p.own.state == left || p.own.state == leaving) && !p.own.stuck; !over {
				return false
			}
		}
	}
	return over
}

// Stuck says that etcd refuses to remove the entry, which has left. Nil is an entry that is in no list.
func (e *Entry) Stuck() {
	if e == nil {
		return
	}
	e.l.mu.Lock()
	defer e.l.unlock()
	e.stuck = true
	e.l.tellPendingLocked()
}

// tellPendingLocked wakes those who may wait for what BehindLeft reports.
func (l *List) tellPendingLocked() {
	for _, o := range l.keys {
		if o.rev == 0 {
			o.tell()
		}
	}
}

// Empty reports whether the list has no entry and keeps no watch, so that it can be dropped.
func (l *List) Empty() bool {
	l.mu.Lock()
	defer l.unlock()
	return len(l.keys) == 0 && !l.expires
}
