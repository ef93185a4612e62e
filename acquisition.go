// A lock, and an acquisition of it: its parts, and its states.

package etcdlock

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// A lock is a name that is locked in one way, in the sessions of a source. An RWMutex has two locks. A Multi's has several names.
type lock struct {
	from   source
	queues []keyspace.Queue // as its entries see them
	multi  bool             // it is a Multi's, also if that has one name
	second bool             // its entries have a second key, for Downgrade
	err    error            // of every call
	elect  bool             // it is an Elector's

	published published // by its entries
}

// names are those of the queues.
func (l *lock) names() []string {
	names := make([]string, len(l.queues))
	for i, q := range l.queues {
		names[i] = q.Name
	}
	return names
}

// label is the name of the lock, or all names of a Multi, for people.
func (l *lock) label() string { return strings.Join(l.names(), ", ") }

// about is what the hooks are told of each acquisition of the lock.
func (l *lock) about(s *Session, asked time.Time) Acquisition {
	read := !slices.ContainsFunc(l.queues, func(q keyspace.Queue) bool { return q.Kind == writing })
	return Acquisition{Session: s, Name: l.label(), Read: read, Elector: l.elect, Asked: asked}
}

func (l *lock) wrap(op string, err error) error { return wrap(op, l.names, err) }

// An acquisition is what Lock, Try and Enqueue make. It has one part for each name, at least one, and all parts are
// written by one txn, at one revision, and removed by one request. enqueue.go puts it into the queues, waiter.go waits, and
// release.go takes it away.
//
// Nobody waits in a circle: a part waits for lower revisions only, and all parts have the same one. Where a list hands a
// part over before the former holder's key is removed, that holder has left: its removal waits for nobody. So among all
// that wait, the acquisition of the lowest revision waits only for holders.
type acquisition struct {
	s *Session
	// Its parts: one of a Mutex or RWMutex, many of a Multi. Only mu guards what changes in them.
	one  [1]part
	many *[]part
	// rev is the keys' CreateRevision: place in the queue and token.
	//
	// Invariant (I5): an entry's identity is (key, rev). Whatever releases it compares both, so a late or repeated
	// request of ours can't touch a newer entry under the same key.
	rev int64

	mu    sync.Mutex // guards what follows; before the grant only the acquiring goroutine writes ambiguous
	state state
	// ambiguous: an attempt to write the keys may have been carried out, or may yet be, without our knowing.
	ambiguous      bool
	lossUnreported bool // the hooks were not told yet that it is lost: see unlockAndNotify
	// lostWithSession: the session's end took it, by what was known then. askingLease: the session asks etcd after its lease.
	lostWithSession, askingLease bool
	multi                        bool         // it is of a Multi; never changes
	fenced                       bool         // its holder may have sent a transaction that compares a key
	report                       *report      // to the hooks, nil without; set by newAcquisition
	pending                      *pending     // nil of a hold
	holdCtx                      *holdContext // nil until asked for
}

// A part is an acquisition's share in one name. Its waitlist.Part has its keys, which are written together, and its place in
// the session's waitlist of the name, from before the keys are written: see enlist. The part is known by the first key. A
// write lock has two keys: Downgrade deletes the exclusive key and keeps the shared key.
type part struct {
	waitlist.Part
	*keyspace.Queue // what the part asks for: one of the lock, or after Downgrade another one
}

// acquisitionOf is whose part p is.
func acquisitionOf(p *waitlist.Part) *acquisition { return p.Owner.(*acquisition) }

// pending is what an acquisition needs until it is held. Then its lock and its value need not stay in memory.
type pending struct {
	lock *lock
	// behind: a part may have had to wait. Another part may have been removed meanwhile: see checkAllParts.
	behind bool
	value  string // of the keys; its nonce is in no other acquisition's value, if it is not raw
}

// A Part is a name that a [Multi] locks; [Write] and [Read] make it.
type Part struct {
	name string
	kind keyspace.Kind
}

const writing, reading = keyspace.Exclusive, keyspace.Shared // the kinds of parts

// parts are the parts, at least one, in the order of the names.
func (a *acquisition) parts() []part {
	if a.many != nil {
		return *a.many
	}
	return a.one[:]
}

// all are pointers to the parts.
func (a *acquisition) all() iter.Seq[*part] {
	return func(yield func(*part) bool) {
		parts := a.parts()
		for i := 0; i < len(parts) && yield(&parts[i]); i++ {
		}
	}
}

// names are those of the parts. They are the lists' names, which never change: a part's queue does.
func (a *acquisition) names() []string {
	return ofEach(a, func(p *part) string { return p.List().Name })
}

func (a *acquisition) label() string { return strings.Join(a.names(), ", ") }

func (a *acquisition) wrap(op string, err error) error { return wrap(op, a.names, err) }

// ofEach is what f says of each part.
func ofEach[T any](a *acquisition, f func(*part) T) []T {
	some := make([]T, 0, len(a.parts()))
	for p := range a.all() {
		some = append(some, f(p))
	}
	return some
}

// allKeys are the keys of all parts.
func (a *acquisition) allKeys() []string {
	if len(a.parts()) == 1 {
		return a.parts()[0].Keys()
	}
	return slices.Concat(ofEach(a, func(p *part) []string { return p.Keys() })...)
}

// anyRemoved reports whether the entry of any part was removed.
func (a *acquisition) anyRemoved() bool {
	for p := range a.all() {
		if _, err := p.Outcome(); errors.Is(err, waitlist.ErrRemoved) {
			return true
		}
	}
	return false
}

// state says how far an acquisition is. It only goes down this list, and only in transition.
type state uint8

const (
	begun     state = iota // its keys may be written
	held                   // granted
	released               // released by its holder
	abandoned              // withdrawn before its caller had it
	lost                   // removed by somebody else, or with its session
)

// transition changes the state. The caller holds a.mu. It returns false if the acquisition is over: whoever ends it first says why.
func (a *acquisition) transition(to state) bool {
	switch {
	case a.state >= released:
		return false
	case to == held && a.state == begun,
		to == released && a.state == held,
		to == abandoned && a.state == begun,
		to == lost && a.state == held:
		a.state = to
		return true
	}
	panic("bug: the acquisition of " + a.parts()[0].Key() + " can't go from state " + strconv.Itoa(int(a.state)) + " to " + strconv.Itoa(int(to)))
}

// holdContext is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	watched bool // somebody wants to be told of the hold's end

	downgrade *removal.Outcome // nil before

	contended context.Context // ends when somebody waits for the hold; nil until asked for
	contend   context.CancelFunc
}
