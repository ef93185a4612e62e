package demo

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// An outcome is the input of the checks: what etcd's history and the workers say of
// each lock, what etcd holds at the end, and how the processes ended.
type outcome struct {
	locks   []lockOutcome
	workers []workerOutcome
	ttl     time.Duration // as granted
}

type lockOutcome struct {
	name    string
	acqs    []*acquisition // in the order of their tokens
	claimed []*acquisition // reported by workers, but without an entry in etcd
	counter []counterWrite // in the order of their revisions
	odd     []string
	final   finalState
}

// finalState is what etcd holds at the end.
type finalState struct {
	counter  int
	sections map[int64]sectionValue // by token
	entries  []string               // keys in the queue
}

type workerOutcome struct {
	name           string
	rounds, wanted int // wanted counts only the rounds before it was killed
	finished       bool
	killed         bool
}

// A finding is the result of a check. It has passed if there are no problems.
type finding struct {
	title    string
	detail   string
	problems []string
}

func (f *finding) problem(format string, args ...any) {
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
}

// check judges an outcome.
func check(o outcome) []finding {
	return []finding{
		checkOrder(o), checkOverlaps(o), checkTokens(o), checkWrites(o), checkReaders(o), checkVictim(o), checkWorkers(o), checkLeft(o),
	}
}

// checkOrder: the sections begin in the order in which the entries were created.
// Readers that are next to each other run together, in any order.
func checkOrder(o outcome) finding {
	f := finding{title: "order of arrival = order of grants"}
	arrived, granted := 0, 0
	for _, l := range o.locks {
		arrived += len(l.acqs)
		for i, a := range l.acqs {
			if a.begin == 0 {
				f.problem("%s never got its turn", a.name())
				continue
			}
			granted++
			for _, b := range l.acqs[i+1:] {
				if (!a.shared || !b.shared) && b.begin != 0 && b.begin < a.begin {
					f.problem("%s arrived later but was granted before %s", b.name(), a.name())
				}
			}
		}
	}
	f.detail = fmt.Sprintf("%d of %d", granted, arrived)
	if arrived == 0 {
		f.problem("nobody arrived")
	}
	return f
}

// checkOverlaps: no two processes held the lock at the same time, unless both were
// readers. It compares twice: by etcd's revisions, from the section's first guarded
// write to the end of the entry, and by the clock of the workers' machine, from the
// return of Lock to the call of Unlock.
func checkOverlaps(o outcome) finding {
	f := finding{title: "overlaps seen: 0"}
	exclusive, shared := 0, 0
	for _, l := range o.locks {
		for i, a := range l.acqs {
			if a.shared {
				shared++
			} else {
				exclusive++
			}
			for _, b := range l.acqs[i+1:] {
				if a.shared && b.shared {
					continue
				}
				if a.begin != 0 && b.begin != 0 && overlap(a.begin, a.gone, b.begin, b.gone) {
					f.problem("%s and %s, by etcd's revisions", a.name(), b.name())
				}
				if !a.granted.IsZero() && !b.granted.IsZero() && overlap(a.granted.UnixNano(), nanos(a.left()), b.granted.UnixNano(), nanos(b.left())) {
					f.problem("%s and %s, by the clock", a.name(), b.name())
				}
			}
		}
	}
	if n := len(f.problems); n > 0 {
		f.title = fmt.Sprintf("overlaps seen: %d", n)
	}
	f.detail = fmt.Sprintf("%d exclusive, %d shared sections", exclusive, shared)
	return f
}

// overlap reports whether two intervals overlap. An interval with the end 0 is open.
func overlap(from1, to1, from2, to2 int64) bool {
	return (to2 == 0 || from1 < to2) && (to1 == 0 || from2 < to1)
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// checkTokens: the tokens grow in the order in which a store gets the writes, and each
// token is one that etcd has given, to one acquisition only.
func checkTokens(o outcome) finding {
	f := finding{title: "tokens strictly growing"}
	writes := 0
	for _, l := range o.locks {
		last := counterWrite{}
		for _, w := range l.counter {
			if writes++; w.Token <= last.Token {
				f.problem("%s wrote with token %d after %s with %d", w.Worker, w.Token, last.Worker, last.Token)
			}
			last = w
		}
		begun := slices.SortedFunc(slices.Values(l.acqs), func(a, b *acquisition) int { return cmp.Compare(a.begin, b.begin) })
		highest := int64(0) // of a writer
		for _, a := range begun {
			if a.begin == 0 {
				continue // checkOrder reports it
			}
			if a.token <= highest {
				f.problem("%s was granted after token %d", a.name(), highest)
			}
			if !a.shared {
				highest = a.token
			}
			if a.granted.IsZero() {
				f.problem("%s was in its section, but its worker has not reported this token", a.name())
			}
		}
		for _, a := range l.claimed {
			f.problem("a worker at the %s claims token %d, which etcd did not give", l.name, a.token)
		}
	}
	f.detail = fmt.Sprintf("in %d writes, and at each grant", writes)
	if writes == 0 {
		f.problem("nobody wrote")
	}
	return f
}

func (a *acquisition) name() string { return fmt.Sprintf("%s (token %d)", a.worker, a.token) }
