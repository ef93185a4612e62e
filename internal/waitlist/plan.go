// What the agent asks of etcd: for the entry that waits in front, as the others have to wait for it anyway.
//
// The watch comes first and the reading after it, so that nothing is missed in between. It is right to wait for any
// lower key that blocks. Near the front the watch is on all that is left, and on the entry's own key: when the last
// blocker has gone no reading comes before the grant, so the same watch, which keeps the order of events, has to tell
// whether the entry was still there. Deeper it is on the key whose leaving brings the entry near the front. A session
// that has a good part of the queue watches all of it.

package waitlist

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Lookahead is how many exclusive entries are before a waiter when it prepares for its grant. Those of one session
// that follow each other count as one, since its session may remove them together. With one instead of two a waiter would
// have no more time to prepare than one hold takes.
const Lookahead = 2

// Reads of the queue in the order of revisions have etcd sort all of it, whatever their limit.
const (
	// downLimit is how many keys a reading downward shows at first: a writer's own two, the two
	// each of the writers that are near, and of one more, and one to know that these are all.
	downLimit = 2 + 2*(Lookahead+1) + 1
	// UpLimit is how many a reading upward does, for all of the list that are among them.
	UpLimit = 128
)

// nextLocked is what there is to ask for the front. If there is none, unlock has dismissed the agent.
func (l *List) nextLocked() Step {
	p := l.frontLocked()
	if l.stale || !l.reachedLocked(p) {
		return l.readLocked(p, false)
	}
	targets, exclusive := l.belowLocked(p)
	complete, many := l.viewsCoverLocked(p), l.manyLocked()
	more := !complete && slices.ContainsFunc(l.viewsLocked(p), func(v view) bool { return v.more })
	writers := targets[:exclusive]
	last := l.beforeLastRuns(writers)
	deep := last >= 0 || more && exclusive > 0
	switch {
	case len(targets) == 0 && (!complete || l.lastSeenLocked(p) < l.goneBy), // was it there when the last one had gone?
		len(writers) == 0 && more && !many:
		s := l.readLocked(p, false)
		if more && l.views[0].low <= p.rev { // the last reading has shown nobody below p, or only readers
			s.Limit = 0
		}
		return s
	case len(targets) == 0:
		if targets = l.unaskedLocked(p); len(targets) == 0 || !l.guardsLocked(p) {
			return Step{}
		}
	case deep:
		targets = writers[max(last, 0):][:1]
	}
	from, to := l.rangeLocked(p, targets, deep)
	w := l.coveringLocked(from, to)
	if w == nil {
		if many {
			from, to = l.allLocked()
		}
		return Step{Do: Open, For: p, From: from, To: to}
	}
	l.relyLocked(w)
	if slices.ContainsFunc(targets, l.untrackedLocked) || !deep && l.untrackedLocked(p.entry()) {
		return l.readLocked(p, deep)
	}
	return Step{}
}

// belowLocked are other sessions' keys that block p, exclusive ones first. exclusive is how many these are.
func (l *List) belowLocked(p *Part) (targets []queue.Entry, exclusive int) {
	lease := keyspace.LeaseOf(l.Name, p.keys[0])
	for i, v := range l.viewsLocked(p) {
		for _, q := range v.keys {
			// A key of an entry whose reply is on its way is probably there for that entry. These are many when a crowd comes, so other
			// sessions' keys are not looked for among them.
			if l.inWayLocked(q, p) && (keyspace.LeaseOf(l.Name, q.Key) != lease || !l.sentLocked(q.Key)) {
				targets = append(targets, q)
			}
		}
		if i == 0 {
			exclusive = len(targets)
		}
	}
	return targets, exclusive
}

// unaskedLocked are the entries of the list below p that block it under the key that they are known by, and for which nothing is
// asked: of holders, and idle ones. A holder that is being downgraded is known by a shared key, which no reading for a reader shows.
func (l *List) unaskedLocked(p *Part) (targets []queue.Entry) {
	for _, o := range l.parts {
		if o.rev < p.rev && queue.Blocks(keyspace.KindOf(l.Name, o.keys[0]), p.kind) && (o.state == granted || o.state == idle) {
			targets = append(targets, o.entry())
		}
	}
	return targets
}

// guardsLocked reports whether p has waited for holders of its own list, or idle entries of it, for WatchOwnAfter: they are watched
// then, and p, since somebody may remove one of them. If not, the timer is set, unless it is set already: where the lock goes
// from one entry to the next, it costs one timer in WatchOwnAfter.
func (l *List) guardsLocked(p *Part) bool {
	if l.guarded != p && l.ticks == nil {
		l.ticks = p
		l.After(l.WatchOwnAfter, l.tick)
	}
	return l.guarded == p
}

func (l *List) tick() {
	l.lock()
	defer l.unlock()
	l.guarded, l.ticks = l.ticks, nil
}

// beforeLastRuns is which of the writers, which are in the order of the queue, is the last one before the last Lookahead
// runs, -1 if there is none. A run is of one session.
func (l *List) beforeLastRuns(writers []queue.Entry) int {
	lease := func(i int) string { return keyspace.LeaseOf(l.Name, writers[i].Key) }
	runs := 0
	for i := len(writers) - 1; i >= 0; i-- {
		if i == len(writers)-1 || lease(i) != lease(i+1) {
			runs++
		}
		if runs > Lookahead {
			return i
		}
	}
	return -1
}

// rangeLocked is the range to watch for the targets to leave, and near the front for the entry
// itself and those of the list behind it. A reader's covers all shared keys.
func (l *List) rangeLocked(p *Part, targets []queue.Entry, deep bool) (from, to string) {
	from = targets[0].Key
	for _, t := range targets {
		from, to = min(from, t.Key), max(to, t.Key+"\x00")
	}
	if deep {
		return from, to
	}
	// The exclusive keys of the session, for those of the list behind it.
	first, end := keyspace.Own(l.Name + "/" + keyspace.LeaseOf(l.Name, p.keys[0]))
	if from, to = min(from, first), max(to, end); p.kind == keyspace.Shared {
		_, to = keyspace.Shareds(l.Name)
	}
	return from, to
}

// readLocked is a reading of the queue: upward from its beginning, if that reaches the entry and serves others of the
// list too, else of what is next below the entry. It shows the queue at a revision that is not before anything that the
// list knows of: an older one would say nothing new, and be asked for again.
func (l *List) readLocked(p *Part, deep bool) Step {
	x := &l.views[0]
	s := Step{Do: Read, For: p, At: l.latest}
	if l.stale {
		s.At = 0
	}
	// The last reading upward did not come to p, and not many have left since: another one would probably not either.
	beyond := l.reach > 0 && p.rev > l.reach && 2*l.struck < l.UpLimit
	far := x.low > 0 && x.more || x.low == 0 && beyond
	if !far && (l.manyLocked() || l.keysLocked() > int64(len(p.Keys()))) {
		s.From, s.To = keyspace.All(l.Name)
		s.Upward, s.shared, s.Limit = true, true, l.UpLimit
		return s
	}
	s.From, s.To = keyspace.Blocking(l.Name, p.kind)
	s.Max, s.shared = p.rev, p.kind == keyspace.Exclusive
	if !s.shared {
		for _, o := range l.readersLocked(p) {
			s.Keys = append(s.Keys, o.keys[0]) // which lies outside of that range
			s.Max = o.rev
		}
	}
	if deep || !l.viewsCoverLocked(p) && (!l.nested || l.behindOthersLocked(p)) {
		s.Limit = downLimit // unless the newest keys of the range are probably of other names, as are those that were seen
	}
	return s
}

// readersMax is how many keys a reading asks for by name, for readers that are granted together.
const readersMax = 64

// readersLocked are p, a reader, and those of the list that are granted with it, as far as is known. Each must be seen at the
// revision at which the last writer had gone, or later, and a reading must be about what is below each.
func (l *List) readersLocked(p *Part) (readers []*Part) {
	writer := int64(queue.MaxRev) // the next one
	if i := slices.IndexFunc(l.views[0].keys, func(q queue.Entry) bool { return q.Rev > p.rev }); i >= 0 {
		writer = l.views[0].keys[i].Rev
	}
	return slices.DeleteFunc(l.togetherLocked(p.rev, readersMax), func(o *Part) bool { return o.rev > writer })
}
