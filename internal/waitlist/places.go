// What is known of the queue: its keys, and what readings and events change in that.

package waitlist

import (
	"cmp"
	"iter"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Listing is what a read has shown of the queue.
type Listing struct {
	At int64 // the revision that it shows
	// Every key that was created at a revision from Low to High is in Keys, of exclusive
	// entries and, if Shared, of shared ones. None if Low is above High.
	Low, High int64
	Shared    bool
	// Asked are keys that were asked for by name; they are in Keys if they are there.
	Asked []string
	Keys  []queue.Entry
	Size  int64 // keys in the queue, foreign ones included; 0 if that was not counted
}

// Shown is what the txn of an entry, at revision rev, has shown of the queue before it wrote the entry. got are the keys
// that may block the entry. Those that it was not asked for are known to block nothing.
func Shown(rev int64, got *pb.RangeResponse, shared bool) *Listing {
	seen := &Listing{At: rev, Low: 1, High: rev - 1, Shared: shared, Keys: queue.Entries(got.GetKvs())}
	if got.GetMore() {
		seen.High = 0 // these are only some of them
	}
	if shared {
		seen.Size = got.GetCount()
	}
	return seen
}

// Clear reports whether it shows, from the first revision on, all that may block the kind, and nothing
// does.
func (seen *Listing) Clear(name string, kind keyspace.Kind) bool {
	return seen != nil && seen.Low <= 1 && seen.Low <= seen.High && (seen.Shared || kind == keyspace.Shared) &&
		!queue.Blocked(name, kind, queue.MaxRev, seen.Keys)
}

// place is a key in the queue.
type place struct {
	queue.Entry
	kind keyspace.Kind
	own  *Entry // nil for another session's key
	seen int64  // the last revision at which it is known to have been there
	// unsure: one behind it has left, so it probably has too.
	unsure bool
}

func isExclusive(p *place) bool { return p.kind == keyspace.Exclusive }

// unasked reports whether it stands for an entry of the list for which nobody asks Next: a holder, or an idle one.
func (p *place) unasked() bool {
	e := p.own
	return e != nil && p.Key == e.keys[0] && (e.state == held || e.state == waiting && e.idle)
}

// inWay reports whether those above that it blocks have to wait for it.
func (p *place) inWay() bool {
	return p.own == nil || p.own.state != left && p.own.state != missing
}

func (l *List) findLocked(q queue.Entry) (i int, known bool) {
	return slices.BinarySearchFunc(l.places, q, func(p place, q queue.Entry) int {
		return cmp.Or(cmp.Compare(p.Rev, q.Rev), cmp.Compare(p.Key, q.Key))
	})
}

// placeLocked is where q is in places; it is put there if it was not.
func (l *List) placeLocked(q queue.Entry) int {
	i, known := l.findLocked(q)
	if !known {
		l.places = slices.Insert(l.places, i, place{Entry: q, kind: keyspace.KindOf(l.name, q.Key)})
	}
	return i
}

// ownPlaceLocked is where the entry, whose revision is known, stands under its first key.
func (e *Entry) ownPlaceLocked() *place {
	i, _ := e.l.findLocked(queue.Entry{Key: e.keys[0], Rev: e.rev})
	return &e.l.places[i]
}

func (l *List) markLocked(kind keyspace.Kind) int64 { return l.marks[kind-keyspace.Exclusive] }

// forgotLocked reports whether q, an entry that was seen, is known to be gone, and not only since
// it has left.
func (l *List) forgotLocked(q queue.Entry) bool {
	i, known := l.findLocked(q)
	if known {
		return l.places[i].own != nil && l.places[i].own.state == missing
	}
	return keyspace.KindOf(l.name, q.Key) != keyspace.Foreign && q.Rev > l.removed[q.Key]
}

// applyLocked takes note of a listing: first of what it would show if it was there, then of what it
// shows.
func (l *List) applyLocked(seen *Listing) (lost []*Entry) {
	l.changed = true
	var gone []queue.Entry
	for i := range l.places {
		p := &l.places[i]
		inRange := seen.Low <= p.Rev && p.Rev <= seen.High && (seen.Shared || p.kind == keyspace.Exclusive)
		if p.Rev <= seen.At && (inRange || slices.Contains(seen.Asked, p.Key)) && !slices.Contains(seen.Keys, p.Entry) {
			gone = append(gone, p.Entry)
		}
	}
	for _, q := range gone {
		lost = l.goneLocked(lost, q, seen.At)
	}
	for _, q := range seen.Keys {
		kind := keyspace.KindOf(l.name, q.Key)
		if kind == keyspace.Foreign {
			l.nested = true
			continue
		}
		_, known := l.findLocked(q)
		if !known && (q.Rev <= l.markLocked(kind) || q.Rev <= l.removed[q.Key]) {
			continue // all there are up to the mark were known, so it is gone by now
		}
		if at := l.told[q.Key]; !known && q.Rev < at {
			l.suspectLocked(q, at)
			continue
		}
		p := &l.places[l.placeLocked(q)]
		if p.seen <= seen.At && (p.seen > 0 || seen.At >= l.toldFrom) {
			p.seen, p.unsure = seen.At, false // else it may have been told already that it left
		}
	}
	for i := range l.marks {
		kind := keyspace.Exclusive + keyspace.Kind(i)
		if seen.Low > seen.High || seen.Low > l.marks[i]+1 || seen.High <= l.marks[i] || kind == keyspace.Shared && !seen.Shared {
			continue
		}
		// What was there before, and is not in it, nobody may have known.
		for _, p := range l.places {
			if e := p.own; e != nil && e.knownFrom-1 > l.marks[i] && queue.Blocks(kind, e.kind) {
				e.minSeen = max(e.minSeen, seen.At)
			}
		}
		l.marks[i], l.latest = seen.High, max(l.latest, seen.At)
	}
	for key, rev := range l.removed {
		if rev <= l.markLocked(keyspace.KindOf(l.name, key)) {
			delete(l.removed, key)
		}
	}
	l.size = cmp.Or(seen.Size, l.size)
	return lost
}

// goneLocked takes note that a key was not in the queue at revision at. An entry of the list is
// told; if it had the lock it is added to those that are lost.
func (l *List) goneLocked(lost []*Entry, q queue.Entry, at int64) []*Entry {
	i, known := l.findLocked(q)
	if !known {
		return lost
	}
	p := l.places[i]
	switch e := p.own; {
	case e == nil:
		l.places = slices.Delete(l.places, i, i+1)
		if e := l.keys[q.Key]; e != nil { // it was probably this one's, whose reply is on its way
			e.goneUpTo = max(e.goneUpTo, q.Rev)
		}
		for j := range l.places[:i] {
			if o := &l.places[j]; o.own == nil && p.kind == keyspace.Exclusive && !l.trackedLocked(o) {
				o.unsure = true
			}
		}
		l.suspectLocked(q, at)
	case q.Key != e.keys[0] || e.state == left || e.state == leaving:
		// Its own request has removed it, or is to.
	case e.state == held:
		e.state = leaving
		e.tell() // if it has the lock, but not all that it was taken with
		lost = append(lost, e)
		l.suspectLocked(queue.Entry{}, at) // the lease may be gone, with all of the list
	case e.state == waiting:
		e.state = missing
		e.tell()
		l.suspectLocked(queue.Entry{}, at)
	}
	return lost
}

// suspectLocked has the entries that q blocks be seen at revision at, or later, before they are
// granted: at that one q was gone. The zero q is for all.
func (l *List) suspectLocked(q queue.Entry, at int64) {
	l.latest, l.changed = max(l.latest, at), true
	for i := range l.places {
		e := l.places[i].own
		if e != nil && e.rev > q.Rev && (q.Key == "" || queue.Blocks(keyspace.KindOf(l.name, q.Key), e.kind)) {
			e.minSeen = max(e.minSeen, at)
		}
	}
}

// clearBelowLocked strikes off other sessions' keys that the entry, which has the lock, would exclude.
func (e *Entry) clearBelowLocked() {
	l := e.l
	l.places = slices.DeleteFunc(l.places, func(p place) bool { return p.own == nil && p.Rev < e.rev && queue.Blocks(p.kind, e.kind) })
	l.marks[0] = max(l.marks[0], e.rev-1)
	if e.kind == keyspace.Exclusive {
		l.marks[1] = max(l.marks[1], e.rev-1)
	}
}

// completeLocked reports whether all that may block e is known.
func (l *List) completeLocked(e *Entry) bool {
	return l.marks[0] >= e.knownFrom-1 && (e.kind == keyspace.Shared || l.marks[1] >= e.knownFrom-1)
}

// belowLocked are the keys below e that it has to wait for, and that it asks etcd about: those of
// others, or, if own, those of the list's own for which nobody else asks: of holders, and of idle entries.
func (l *List) belowLocked(e *Entry, own bool) iter.Seq[*place] {
	return func(yield func(*place) bool) {
		complete := l.completeLocked(e)
		for i := range l.places {
			switch p := &l.places[i]; {
			case p.Rev >= e.rev:
				return
			case !queue.Blocks(p.kind, e.kind) || !complete && p.Rev < e.knownFrom:
			case own && p.unasked(), !own && p.own == nil:
				if !yield(p) {
					return
				}
			}
		}
	}
}

// behindOthersLocked reports whether e has to wait for another session's key that is known.
func (l *List) behindOthersLocked(e *Entry) bool {
	for range l.belowLocked(e, false) {
		return true
	}
	return false
}
