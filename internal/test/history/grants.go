package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// A Claim says that a worker acted as the holder of a lock: etcd carried out, at
// Revision, a transaction of it that was guarded by the entry of this key and
// token. A transaction that only reads has the revision whose state it saw.
type Claim struct {
	Worker   int
	Key      string
	Token    int64
	Revision int64
}

func (c Claim) String() string {
	return fmt.Sprintf("worker %d, by %s (created at %d), acted at revision %d", c.Worker, c.Key, c.Token, c.Revision)
}

// A place is that of an entry in its queue.
type place struct {
	*Entry
	acted bool // as a holder, before
}

// A queue is that of one lock at one revision, oldest first. It is never changed.
type queue []place

func (q queue) String() string {
	var s []string
	for _, p := range q {
		s = append(s, p.String())
	}
	return "[" + strings.Join(s, ", ") + "]"
}

// A move is one thing that happened in a queue: its entry came, left, or acted.
type move struct {
	at    int64  // revision
	entry *Entry // nil: etcd never had the one that acted
	left  bool
	claim *Claim // that it acted
	start *queue // the state before, where the history is cut; no other field then
}

func (m move) String() string {
	switch {
	case m.claim != nil:
		return m.claim.String()
	case m.left:
		return fmt.Sprintf("%s left at %d", m.entry, m.at)
	case m.entry != nil:
		return m.entry.String() + " came"
	}
	return "so far"
}

// step is the whole of what is asked of grants: an entry that acts is in the queue, below it is no other that
// blocks it, and none that it blocks has acted above it; against it are those that are. One below that is of
// the same session may be there if it never acted: its session passes it over once it was released or
// abandoned, which only the steps of its process show (see CheckTrace).
func (q queue) step(m move) (next queue, here bool, against []place) {
	i := slices.IndexFunc(q, func(p place) bool { return p.Entry == m.entry })
	switch {
	case m.start != nil:
		return *m.start, true, nil
	case m.claim == nil && !m.left:
		return append(slices.Clone(q), place{Entry: m.entry}), true, nil
	case i < 0:
		return q, false, nil
	case m.left:
		return slices.Concat(q[:i], q[i+1:]), true, nil
	}
	for _, p := range q {
		below, above := p.Created < m.entry.Created, p.Created > m.entry.Created
		if (!p.Shared || !m.entry.Shared) && (below && (p.acted || p.Lease != m.entry.Lease) || above && p.acted) {
			against = append(against, p)
		}
	}
	if !q[i].acted {
		q = slices.Clone(q)
		q[i].acted = true
	}
	return q, true, against
}

// queueModel is a queue, for porcupine. All of an operation is in its input.
var queueModel = porcupine.Model{
	Init: func() any { return queue(nil) },
	Step: func(state, input, _ any) (bool, any) {
		next, here, against := state.(queue).step(input.(move))
		return here && len(against) == 0, next
	},
	Equal:             func(a, b any) bool { return slices.Equal(a.(queue), b.(queue)) },
	DescribeOperation: func(input, _ any) string { return input.(move).String() },
	DescribeState:     func(state any) string { return state.(queue).String() },
}

// CheckGrants judges claims, and those in the values of the sets, by etcd's
// history: at the revision of each, its entry was in the queue, and no entry that
// blocks it was in the queue below, but for one of its own session that never acted.
//
// An entry that acted was entitled then, and so it was for the rest of its life:
// nothing can come below it. So the intervals from the first claim of an entry to
// its last never overlap, unless both are readers', and come in the order of
// the create revisions.
//
// What is wrong is told in words, and broken are the stretches of the locks'
// histories in which it is, as porcupine found them.
func (l *Log) CheckGrants(claims []Claim) (problems []string, broken []Broken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	problems = slices.Clone(l.odd)
	byLock := l.movesLocked(slices.Concat(l.writes, claims))
	for _, lock := range slices.Sorted(maps.Keys(byLock)) {
		q, told := queue{}, map[[2]*Entry]bool{}
		for moves := range slices.Chunk(byLock[lock], stretch) {
			broken = append(broken, checkMoves(lock, q, moves)...)
			for _, m := range moves {
				next, here, against := q.step(m)
				switch {
				case here:
				case m.entry == nil:
					problems = append(problems, fmt.Sprintf("%s: etcd never had such an entry", m))
				default:
					problems = append(problems, fmt.Sprintf("%s: its entry was not in the queue, it was there from %d to %d", m, m.entry.Created, m.entry.Gone))
				}
				for _, p := range against {
					pair := [2]*Entry{p.Entry, m.entry}
					switch {
					case told[pair]:
					case p.Created > m.entry.Created:
						problems = append(problems, fmt.Sprintf("%s: %s, which is behind it, has acted before", m, p))
					case p.acted:
						problems = append(problems, fmt.Sprintf("%s: %s, which has acted before, still held the lock", m, p))
					default:
						problems = append(problems, fmt.Sprintf("%s: it passed %s, which was in the queue before it", m, p))
					}
					told[pair] = true
				}
				q = next
			}
		}
	}
	return problems, broken
}

// movesLocked are the moves of each lock in etcd's order. What was read at a revision
// was read after it was written. It needs l.mu.
func (l *Log) movesLocked(claims []Claim) map[string][]move {
	byLock := map[string][]move{}
	for _, e := range l.entries {
		byLock[e.Name] = append(byLock[e.Name], move{at: e.Created, entry: e})
		if e.Gone != 0 {
			byLock[e.Name] = append(byLock[e.Name], move{at: e.Gone, entry: e, left: true})
		}
	}
	all := l.byIDLocked()
	for _, c := range claims {
		e, lock := all[entryID{c.Key, c.Token}], c.Key
		if e != nil {
			lock = e.Name
		}
		byLock[lock] = append(byLock[lock], move{at: c.Revision, entry: e, claim: &c})
	}
	for _, moves := range byLock {
		slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.at, b.at) })
	}
	return byLock
}

// stretch is how many moves porcupine gets at a time: it keeps for each of them
// which of the others come before.
const stretch = 500

// checkMoves has porcupine check a stretch of a lock's history, which etcd has put
// into an order already: each move ends before the next begins.
func checkMoves(lock string, start queue, moves []move) []Broken {
	lanes := map[*Entry]int{nil: 0}
	history := []porcupine.Operation{{Input: move{start: &start}, Call: -2, Return: -1}}
	for i, m := range moves {
		if _, ok := lanes[m.entry]; !ok {
			lanes[m.entry] = len(lanes)
		}
		history = append(history, porcupine.Operation{ClientId: lanes[m.entry], Input: m, Call: int64(2 * i), Return: int64(2*i + 1)})
	}
	return check(Broken{
		What:  fmt.Sprintf("%s, revisions %d to %d,", lock, moves[0].at, moves[len(moves)-1].at),
		model: queueModel,
	}, history)
}
