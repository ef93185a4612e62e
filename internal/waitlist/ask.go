// What a waiting entry asks of etcd: what it watches, and what it reads.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// Lookahead is how many exclusive entries are before a waiter when it prepares for its grant. Those of one session
// that follow each other count as one, since its session may remove them together. It is right to
// wait for any lower entry. Near the front a waiter waits for all that is left, together, so that it needs no
// read between the leaving of the last of them and its own grant. Deeper it waits for the entry whose leaving
// brings it near the front. With one instead of two it would have no more time to prepare than one hold takes.
const Lookahead = 2

// Reads of the queue in the order of revisions have etcd sort all of it, whatever their limit.
const (
	// downLimit is how many keys a reading downward shows at first: a writer's own two, the two
	// each of the writers that are near, and of one more, and one to know that these are all.
	downLimit = 2 + 2*(Lookahead+1) + 1
	// upLimit is how many a reading upward does, for all of the list that are among them; and one downward behind a
	// watch on all of the queue, which few enter.
	upLimit = 64
)

// askLocked is the watch or the reading for other sessions' entries that block this one, or may.
//
// The watch comes first and the reading after it, so that nothing is missed in between. Near the
// front the watch reaches to the entry's own key: when the last blocker has gone no reading comes
// before the grant, so the same watch, which keeps the order of events, has to tell whether the
// entry was still there.
func (e *Entry) askLocked() Step {
	l := e.l
	complete := l.completeLocked(e)
	unsure, many := !complete, l.manyLocked()
	var writers, readers []*place
	for p := range l.belowLocked(e, false) {
		switch {
		case p.unsure:
			unsure = true
		case p.kind == keyspace.Exclusive:
			writers = append(writers, p)
		default:
			readers = append(readers, p)
		}
	}
	targets, deep := writers, false
	if n := l.lastRuns(writers); n > 0 && !many {
		targets, deep = writers[n-1:n], true
	} else if complete {
		targets = append(writers, readers...)
	}
	asked := func(p *place) bool { return l.keys[p.Key] == nil || l.keys[p.Key].rev > 0 }
	switch {
	case len(targets) == 0 || e.mustRead:
		return e.readLocked()
	case !unsure && !slices.ContainsFunc(targets, asked):
		return Step{} // for the replies of entries of the list, which they probably are
	}
	from, to := e.rangeLocked(targets, deep, unsure)
	w := e.relyOnLocked(from, to)
	if w == nil {
		if many {
			from, to = l.allLocked()
		}
		return Step{Do: Open, From: from, To: to}
	}
	switch late := slices.ContainsFunc(targets, func(p *place) bool { return p.seen < w.At }); {
	case deep && late:
		return Step{Do: Read, At: max(l.heardLocked(), e.rev), Keys: []string{targets[0].Key}}
	case !deep && (late || l.seenLocked(e) < w.At || unsure && e.readAt < w.At):
		return e.readLocked()
	}
	return Step{}
}

// lastRuns is where the last Lookahead runs of the writers begin, which are in the order of the queue. A run is of
// one session.
func (l *List) lastRuns(writers []*place) int {
	lease := func(i int) string { return keyspace.LeaseOf(l.name, writers[i].Key) }
	runs := 0
	for i := len(writers) - 1; i >= 0; i-- {
		if i == len(writers)-1 || lease(i) != lease(i+1) {
			runs++
		}
		if runs > Lookahead {
			return i + 1
		}
	}
	return 0
}

// rangeLocked is the range to watch for the targets to leave, and near the front for the entry
// itself and those of the list behind it. A reader's covers all shared keys. So does that of an entry
// which has not read the queue yet: a write lock has a shared key.
func (e *Entry) rangeLocked(targets []*place, deep, unsure bool) (from, to string) {
	from, to = targets[0].Key, targets[0].Key+"\x00"
	if deep {
		return from, to
	}
	for _, p := range targets {
		from, to = min(from, p.Key), max(to, p.Key+"\x00")
	}
	// '.' is behind '-': these are the exclusive keys of the session, for those of the list behind it.
	own := e.l.name + "/" + keyspace.LeaseOf(e.l.name, e.keys[0])
	if from, to = min(from, own), max(to, own+"."); e.kind == keyspace.Shared || unsure {
		_, to = keyspace.Shareds(e.l.name)
	}
	return from, to
}

func (e *Entry) readLocked() Step {
	l := e.l
	// It shows all of the list that are known, so that one reading serves them all.
	s := Step{Do: Read, At: max(e.rev, e.minSeen, l.places[len(l.places)-1].Rev, l.heardLocked())}
	for _, p := range l.places {
		if p.unsure { // a reading of a time before it was seen would not tell whether it has gone since
			s.At = max(s.At, p.seen)
		}
	}
	if e.mustRead {
		s.At = 0
	}
	switch {
	case len(l.keys) > len(e.keys) && !e.notReached && l.reader != nil:
		return Step{} // until that has been read
	case len(l.keys) > len(e.keys) && !e.notReached:
		l.reader = e
		s.From, s.To = keyspace.All(l.name)
		s.shared, s.Upward, s.Limit, s.Min = true, true, upLimit, min(l.marks[0]+1, l.marks[1]+1, e.rev)
		others := slices.IndexFunc(l.places, func(p place) bool { return p.own == nil })
		if others >= 0 {
			s.Min = min(s.Min, l.places[others].Rev)
		}
		return s
	case !e.noLimit && l.manyLocked(): // it waits for all of them
		s.Limit = upLimit
	case l.nested && !slices.ContainsFunc(l.places, func(p place) bool { return p.own == nil }):
		// The keys that were seen are all of other names, so the newest of the range probably are too.
	case !e.noLimit:
		s.Limit = downLimit
	}
	s.Max = e.rev
	s.From, s.To = keyspace.Blocking(l.name, e.kind)
	s.shared = e.kind == keyspace.Exclusive
	// What lies outside of that range: they get the lock from this one, and have to have been there when that
	// got it.
	for _, p := range e.runLocked(nextMax) {
		if p.own != e || !s.shared {
			s.Keys = append(s.Keys, p.Key)
		}
	}
	return s
}

// readOverLocked has the others read again.
func (e *Entry) readOverLocked() {
	if e.l.reader == e {
		e.l.reader, e.l.changed = nil, true
	}
}

// Saw takes note of what was read for a step of the entry.
func (e *Entry) Saw(s *Step, seen *Listing) (lost []*Entry) {
	l := e.l
	l.mu.Lock()
	defer l.unlock()
	e.readOverLocked()
	lost = l.applyLocked(seen)
	e.mustRead = e.mustRead && s.At > 0
	if s.From != "" {
		e.readAt = seen.At
		if seen.Low <= e.rev && e.rev <= seen.High {
			e.knownFrom = min(e.knownFrom, seen.Low)
		}
		if s.Upward {
			e.notReached = e.notReached || seen.High < e.rev
		} else if l.completeLocked(e) || !slices.ContainsFunc(slices.Collect(l.belowLocked(e, false)), isExclusive) {
			e.noLimit = e.noLimit || seen.Low > 1 // it would not suffice the next time either
		}
	}
	l.grantLocked()
	return lost
}
