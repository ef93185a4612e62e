package history

import (
	"cmp"
	"fmt"
	"slices"
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

// CheckGrants judges claims, and those in the values of the sets, by etcd's
// history: at the revision of each, its entry was in the queue, and no entry that
// blocks it was in the queue below.
//
// An entry that acted was entitled then, and so it was for the rest of its life:
// nothing can come below it. So the intervals from the first claim of an entry to
// its deletion never overlap, unless both are readers', and come in the order of
// the create revisions.
func (l *Log) CheckGrants(claims []Claim) (problems []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	problems = slices.Clone(l.odd)
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	all := l.byIDLocked()
	// What was read at a revision was read after it was written.
	claims = slices.Concat(l.writes, claims)
	slices.SortStableFunc(claims, func(a, b Claim) int { return cmp.Compare(a.Revision, b.Revision) })

	acted := map[*Entry]bool{}
	told := map[[2]*Entry]bool{}
	queues := map[string][]*Entry{} // as they were at the claim's revision, oldest first
	rest := l.entries
	for _, c := range claims {
		for len(rest) > 0 && rest[0].Created <= c.Revision {
			queues[rest[0].Name] = append(queues[rest[0].Name], rest[0])
			rest = rest[1:]
		}
		e := all[entryID{c.Key, c.Token}]
		switch {
		case e == nil:
			problem("%s: etcd never had such an entry", c)
			continue
		case !e.at(c.Revision):
			problem("%s: its entry was not in the queue, it was there from %d to %d", c, e.Created, e.Gone)
			continue
		}
		queue := slices.DeleteFunc(queues[e.Name], func(o *Entry) bool { return !o.at(c.Revision) })
		queues[e.Name] = queue
		for _, below := range queue {
			if below.Created >= e.Created || below.Shared && e.Shared || told[[2]*Entry{below, e}] {
				continue
			}
			told[[2]*Entry{below, e}] = true
			if acted[below] {
				problem("%s: %s, which has acted before, still held the lock", c, below)
			} else {
				problem("%s: it passed %s, which was in the queue before it", c, below)
			}
		}
		acted[e] = true
	}
	return problems
}
