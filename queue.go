package etcdlock

import (
	"cmp"
	"math"
	"slices"
)

// maxRev is above every revision: the whole queue is below it.
const maxRev = math.MaxInt64

// queued is one key of a lock's queue as etcd has it. Its rev, the key's
// CreateRevision, is its place: the queue is ordered by it alone.
type queued struct {
	Key string
	Rev int64
}

// view is what an entry knows of the queue below it.
type view struct {
	At   int64 // the revision at which this is so
	Size int64 // keys in the queue, those of no entry included, as of late
	// blockers are the entries to wait for, all of them: see blocker. None: the
	// viewer is entitled to the lock.
	Blockers []queued
	// next are the last of the lower exclusive entries: those to wait for when
	// the blocker is gone. None: the viewer is near the front.
	Next []queued
	// last says that nothing can be left below the viewer when the blockers
	// are gone: no entry can ever be added below it, so no read is needed to
	// know that it has the lock.
	Last bool
}

// near is how many exclusive entries a waiter has before it when it prepares for
// its grant. With one it would have no more time than one hold takes, and where
// holds are short the next one would wait for it.
const lookahead = 2

// blocker looks for what an entry at rev has to wait for; wants is the kind
// of hold that the entry asks for. queue is any part of the lock's keys that
// includes, if it is not complete, the highest below rev. ok is false when that
// part does not suffice.
//
// Any lower entry is right to wait for. Near the front a viewer waits for all
// that is left, together, and so needs no read between the leaving of the last of
// them and its own grant. Deeper in the queue it waits for the one whose leaving
// brings it there.
//
// Exclusive entries wait for all lower ones, shared entries for all lower
// exclusive ones: so consecutive readers run together, and no reader passes a
// writer that was there before it (I2).
//
// An exclusive entry behind writers *and* more than a few readers waits for the
// writers first, even where readers stand between: those can't be gone before the
// last of them, and once that is gone they are listed and watched together. That
// is what keeps the cost of a writer behind R readers independent of R.
func blocker(name string, wants kind, rev int64, queue []queued, complete bool) (v view, ok bool) {
	var writers, readers []queued
	for _, q := range queue {
		if q.Rev >= rev {
			continue // the viewer's own keys, and later ones
		}
		switch kindOf(name, q.Key) {
		case exclusive:
			writers = append(writers, q)
		case shared: // or the other key of a write lock
			if wants == exclusive {
				readers = append(readers, q)
			}
		case foreign:
			// a nested lock's key or a stray one: not in this queue
		}
	}
	slices.SortFunc(writers, func(a, b queued) int { return cmp.Compare(a.Rev, b.Rev) })
	switch n := len(writers); {
	case n > lookahead:
		last := slices.Clone(writers[n-lookahead-1:])
		return view{Blockers: last[:1:1], Next: last[1:]}, true
	case n > 0 && (!complete || len(readers) > 2*lookahead):
		return view{Blockers: writers}, true
	case !complete:
		return view{}, false
	default:
		return view{Blockers: append(writers, readers...), Last: true}, true
	}
}

// ahead counts the acquisitions that have to leave before an entry at rev is
// granted. A write lock's two keys, which have one revision, count once.
func ahead(name string, wants kind, rev int64, queue []queued) int {
	revs := make(map[int64]struct{})
	for _, q := range queue {
		if q.Rev >= rev {
			continue
		}
		if k := kindOf(name, q.Key); k == exclusive || k == shared && wants == exclusive {
			revs[q.Rev] = struct{}{}
		}
	}
	return len(revs)
}
