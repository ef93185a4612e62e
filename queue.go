package etcdlock

import "math"

// maxRev is above every revision: the whole queue is below it.
const maxRev = math.MaxInt64

// queued is one key of a lock's queue as etcd has it. Its rev, the key's
// CreateRevision, is its place: the queue is ordered by it alone.
type queued struct {
	key string
	rev int64
}

// view is what an entry knows of the queue below it.
type view struct {
	at int64 // the revision at which this is so
	// blockers are the entries to wait for: the last but one of the lower
	// exclusive ones, or the only one, or, where there is none and the viewer is
	// exclusive, all readers below it. None: the viewer is entitled to the lock.
	blockers []queued
	// next is the last of two or more lower exclusive entries: the one to wait
	// for when the blocker is gone.
	next queued
	// last says that nothing can be left below the viewer when the blockers
	// are gone: no entry can ever be added below it, so no read is needed to
	// know that it has the lock.
	last bool
}

// blocker looks for what an entry at rev has to wait for; wants is the kind
// of hold that the entry asks for. queue is any part of the lock's keys that
// includes, if it is not complete, the highest below rev. ok is false when that
// part does not suffice.
//
// Any lower entry is right to wait for. The last one is the one whose leaving
// makes the viewer the owner; the last but one leaves just before that one gets
// the lock. So a viewer that waits for the last but one first has the time
// of a hold to see whether the last is all that is left, and needs no read between
// that one's leaving and its own grant.
//
// Exclusive entries wait for all lower ones, shared entries for all lower
// exclusive ones: so consecutive readers run together, and no reader passes a
// writer that was there before it (I2).
//
// An exclusive entry behind writers *and* readers waits for the last writer
// first, even where readers stand between: those can't be gone before it, and
// once it is gone they are listed and watched together. That is what keeps the
// cost of a writer behind R readers independent of R.
func blocker(name string, wants kind, rev int64, queue []queued, complete bool) (v view, ok bool) {
	var before, writer queued // the last two
	var readers []queued
	below := 0
	for _, q := range queue {
		if q.rev >= rev {
			continue // the viewer's own keys, and later ones
		}
		switch kindOf(name, q.key) {
		case exclusive:
			below++
			if q.rev > writer.rev {
				before, writer = writer, q
			} else if q.rev > before.rev {
				before = q
			}
		case shared:
			if wants == exclusive {
				below++
				readers = append(readers, q)
			}
		case foreign:
			// a nested lock's key or a stray one: not in this queue
		}
	}
	switch {
	case before.rev != 0:
		return view{blockers: []queued{before}, next: writer}, true
	case writer.rev != 0:
		return view{blockers: []queued{writer}, last: complete && below == 1}, true
	case !complete:
		return view{}, false
	default:
		return view{blockers: readers, last: true}, true
	}
}

// ahead counts the acquisitions that have to leave before an entry at rev is
// granted. A write lock's two keys, which have one revision, count once.
func ahead(name string, wants kind, rev int64, queue []queued) int {
	revs := make(map[int64]struct{})
	for _, q := range queue {
		if q.rev >= rev {
			continue
		}
		if k := kindOf(name, q.key); k == exclusive || k == shared && wants == exclusive {
			revs[q.rev] = struct{}{}
		}
	}
	return len(revs)
}
