// Package queue says what an entry of a lock waits for, and what a queue looks like to
// somebody outside. It is given what was read and what happened; it makes no request.
package queue

import (
	"cmp"
	"math"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// MaxRev is above every revision: the whole queue is below it.
const MaxRev = math.MaxInt64

// An Entry is one key of a lock's queue as etcd has it. Its Rev, the key's CreateRevision, is
// its place: the queue is ordered by it alone.
type Entry struct {
	Key string
	Rev int64
}

// Entries are the keys that were read, those of no entry included.
func Entries(kvs []*mvccpb.KeyValue) []Entry {
	q := make([]Entry, len(kvs))
	for i, kv := range kvs {
		q[i] = Entry{string(kv.Key), kv.CreateRevision}
	}
	return q
}

// A View is what an entry knows of the queue below it.
type View struct {
	At   int64 // the revision at which this is so
	Size int64 // keys in the queue when it was last read, foreign ones included
	// Blockers are the entries to wait for, all of them: see Blockers. If there is none, the
	// viewer is entitled to the lock.
	Blockers []Entry
	// Next are the last of the lower exclusive entries: those to wait for when the blocker is
	// gone. If there is none, the viewer is near the front.
	Next []Entry
	// Last says that nothing can be left below the viewer when the blockers are gone. No entry
	// can ever be added below it, so no read is needed then to know that it has the lock.
	Last bool
}

// Lookahead is how many exclusive entries are before a waiter when it prepares for its grant.
// With one it would have no more time than one hold takes, and where holds are short the next
// waiter would wait for it.
const Lookahead = 2

// Blockers looks for what an entry at rev waits for; kind is what it asks for. entries is any
// part of the queue that includes, if it is not complete, the highest entries below rev. ok is
// false if that part does not suffice.
//
// It is right to wait for any lower entry. Near the front a viewer waits for all that is left,
// together, so it needs no read between the leaving of the last of them and its own grant.
// Deeper in the queue it waits for the entry whose leaving brings it near the front.
//
// Invariant (I2): exclusive entries wait for all lower ones, shared entries for all lower
// exclusive ones. So consecutive readers run together, and no reader passes a writer that was
// there before it.
//
// An exclusive entry behind writers and more than a few readers waits for the writers first,
// even if readers stand between them: it lists the readers that are left once the last writer
// is gone, and watches them together. So the cost of a writer behind R readers does not depend
// on R.
func Blockers(name string, kind keyspace.Kind, rev int64, entries []Entry, complete bool) (v View, ok bool) {
	var writers, readers []Entry
	for _, e := range entries {
		if e.Rev >= rev {
			continue // the viewer's own keys, and later ones
		}
		switch keyspace.KindOf(name, e.Key) {
		case keyspace.Exclusive:
			writers = append(writers, e)
		case keyspace.Shared: // or the second key of a write lock
			if kind == keyspace.Exclusive {
				readers = append(readers, e)
			}
		case keyspace.Foreign:
			// The key of a nested lock, or a stray one: not in this queue.
		}
	}
	slices.SortFunc(writers, func(a, b Entry) int { return cmp.Compare(a.Rev, b.Rev) })
	switch n := len(writers); {
	case n > Lookahead:
		last := slices.Clone(writers[n-Lookahead-1:])
		return View{Blockers: last[:1:1], Next: last[1:]}, true
	case n > 0 && (!complete || len(readers) > 2*Lookahead):
		return View{Blockers: writers}, true
	case !complete:
		return View{}, false
	default:
		return View{Blockers: append(writers, readers...), Last: true}, true
	}
}

// Ahead adds to revs the revisions of those that leave before an entry at rev is granted. entries are of
// the range that can block it: see keyspace.Blocking. A revision is one acquisition, which may have
// several keys: a write lock has two.
func Ahead(revs map[int64]struct{}, name string, rev int64, entries []Entry) {
	for _, e := range entries {
		if e.Rev < rev && keyspace.KindOf(name, e.Key) != keyspace.Foreign {
			revs[e.Rev] = struct{}{}
		}
	}
}
