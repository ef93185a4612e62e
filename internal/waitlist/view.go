// What is known of the queue: its keys as one reading has shown them, less those that have gone since.

package waitlist

import (
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Listing is what a request has shown of the queue.
type Listing struct {
	At int64 // the revision that it shows
	// Every key that was created above Low and up to UpTo is in Keys, of exclusive entries and, if Shared, of shared
	// ones. None if UpTo is 0. More says that there are keys up to Low, or above UpTo.
	Low, UpTo    int64
	Shared, More bool
	Keys         []queue.Entry
	Asked        []string // keys that were asked for by name; they are in Keys if they are there
	Size         int64    // how many keys were asked about, foreign ones included; 0 if that was not counted
}

// Shown is what a request, at revision at, has shown of the queue before the entry of revision rev: its txn, for which both are
// the same, or a reading. got are the keys that may block the entry. Those that it was not asked for are known to block nothing.
func Shown(at, rev int64, got *pb.RangeResponse, shared bool) Listing {
	seen := Listing{At: at, UpTo: rev, Shared: shared, Keys: queue.Entries(got.GetKvs()), Size: got.GetCount()}
	if got.GetMore() {
		seen.UpTo = 0 // these are only some of them
	}
	return seen
}

// Clear reports whether it shows all that may block the kind, and nothing does.
func (seen *Listing) Clear(name string, kind keyspace.Kind) bool {
	return seen != nil && seen.Low == 0 && seen.UpTo > 0 && (seen.Shared || kind == keyspace.Shared) &&
		!queue.Blocked(name, kind, queue.MaxRev, seen.Keys)
}

// A view is the keys of one kind: see the package's comment. It is replaced as a whole by applyLocked.
type view struct {
	listed    int64
	low, upTo int64
	more      bool // there were others when it was listed: see Listing
	keys      []queue.Entry
}

func (l *List) viewLocked(kind keyspace.Kind) *view { return &l.views[kind-keyspace.Exclusive] }

// viewsLocked are the views of what may block p.
func (l *List) viewsLocked(p *Part) []view {
	if queue.Blocks(keyspace.Shared, p.kind) {
		return l.views[:]
	}
	return l.views[:1]
}

// reachedLocked reports whether the views are about what is next below p.
func (l *List) reachedLocked(p *Part) bool {
	return !slices.ContainsFunc(l.viewsLocked(p), func(v view) bool { return v.upTo < p.rev })
}

// viewsCoverLocked reports whether the views are about all that may block p.
func (l *List) viewsCoverLocked(p *Part) bool {
	return l.reachedLocked(p) && !slices.ContainsFunc(l.viewsLocked(p), func(v view) bool { return v.low > 0 })
}

// inWayLocked reports whether a key of viewsLocked(p), which are of kinds that block p, is another session's and below p.
func (l *List) inWayLocked(q queue.Entry, p *Part) bool {
	return q.Rev < p.rev && l.ownLocked(q) == nil
}

// behindOthersLocked reports whether the views have a key of another session that blocks p.
func (l *List) behindOthersLocked(p *Part) bool {
	return slices.ContainsFunc(l.viewsLocked(p), func(v view) bool {
		return slices.ContainsFunc(v.keys, func(q queue.Entry) bool { return l.inWayLocked(q, p) })
	})
}

func byRev(a, b queue.Entry) int { return cmp.Or(cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.Key, b.Key)) }

func (v *view) has(q queue.Entry) bool {
	_, ok := slices.BinarySearchFunc(v.keys, q, byRev)
	return ok
}

// goneByLocked notes that by a revision something had gone that the views are about.
func (l *List) goneByLocked(at int64) {
	l.goneBy = max(l.goneBy, at)
	l.latest = max(l.latest, at)
}

// applyLocked takes note of a listing. Entries of the list that it is about, and does not show, are gone. It replaces a
// view, unless the view was listed later, or reaches further and watches have told of all that left it; force says that
// watches may have been silent.
func (l *List) applyLocked(seen *Listing, force bool) (lost []*Part) {
	if seen.Shared {
		l.size = cmp.Or(seen.Size, l.size)
	}
	l.latest = max(l.latest, seen.At)
	foreign := func(q queue.Entry) bool { return keyspace.KindOf(l.Name, q.Key) == keyspace.Foreign }
	l.nested = l.nested || slices.ContainsFunc(seen.Keys, foreign)
	for _, p := range l.parts {
		q := p.entry()
		about := seen.Low < p.rev && p.rev <= seen.UpTo && (seen.Shared || keyspace.KindOf(l.Name, q.Key) == keyspace.Exclusive)
		switch {
		case p.rev > seen.At || !about && !slices.Contains(seen.Asked, q.Key):
		case slices.Contains(seen.Keys, q):
			p.seen = max(p.seen, seen.At)
		default:
			lost = l.absentLocked(lost, p, seen.At)
		}
	}
	for _, kind := range []keyspace.Kind{keyspace.Exclusive, keyspace.Shared} {
		v := l.viewLocked(kind)
		if seen.UpTo == 0 || kind == keyspace.Shared && !seen.Shared || seen.At < v.listed || !force && l.betterLocked(v, seen) {
			continue
		}
		next := view{seen.At, seen.Low, seen.UpTo, seen.More, nil}
		for _, q := range seen.Keys {
			switch left, at := l.leftSinceLocked(q); {
			case keyspace.KindOf(l.Name, q.Key) != kind:
			case left:
				l.goneByLocked(at)
			case seen.Low < q.Rev && q.Rev <= seen.UpTo:
				next.keys = append(next.keys, q)
			}
		}
		slices.SortFunc(next.keys, byRev)
		if l.newsLocked(v, &next) {
			l.goneByLocked(seen.At)
		}
		*v = next
	}
	return lost
}

// betterLocked reports whether a view reaches further than a listing, and is as good. It is not if something is
// untracked, or if nobody knows what is next below: for these the list asks, and goes on asking until it is answered.
func (l *List) betterLocked(v *view, seen *Listing) bool {
	untracked := func(q queue.Entry) bool { return l.ownLocked(q) == nil && l.untrackedLocked(q) }
	return seen.UpTo < v.upTo && v.low <= seen.Low && !slices.ContainsFunc(v.keys, untracked)
}

// newsLocked reports whether the next view tells, of what is below any entry, something that the one before did not, and
// that was not certain to be so when the entry was last seen: that a key has gone, or what is below an entry at all.
func (l *List) newsLocked(v, next *view) bool {
	return slices.ContainsFunc(v.keys, func(q queue.Entry) bool {
		return !next.has(q) && l.ownLocked(q) == nil
	}) || slices.ContainsFunc(l.parts, func(p *Part) bool {
		return p.seen < next.listed && (p.rev > v.upTo || v.low > 0)
	})
}

// cutLocked forgets what is below q, another session's key which has left, if no watch would have told of that, or if q
// was the last that was known there: what is below has to be read.
func (l *List) cutLocked(q queue.Entry) {
	below, untracked := false, false
	for i, v := range l.views {
		for _, o := range v.keys {
			if o.Rev < q.Rev && l.ownLocked(o) == nil {
				below = true
				untracked = untracked || i == 0 && l.untrackedLocked(o)
			}
		}
	}
	if !untracked && (below || l.views[0].low == 0) {
		return
	}
	for i := range l.views {
		v := &l.views[i]
		v.low, v.more = max(v.low, q.Rev), false
		v.keys = slices.DeleteFunc(v.keys, func(o queue.Entry) bool { return o.Rev <= v.low })
	}
}

// absentLocked takes note that an entry was not in the queue at revision at. Its owner is told; if it had the lock it is
// added to those that are lost. One that has left was removed by its own request.
func (l *List) absentLocked(lost []*Part, p *Part, at int64) []*Part {
	switch p.state {
	case granted:
		p.state = removing
		lost = append(lost, p)
	case waiting, idle, refused:
		p.state = evicted
	default:
		return lost
	}
	p.wakeUp() // if it has the lock, but not all that it was taken with
	l.goneByLocked(at)
	return lost
}
