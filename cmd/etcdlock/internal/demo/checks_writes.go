package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// checkWrites: each section's guarded writes lie within its hold, and no update of the
// counter is lost, neither in etcd's history nor in what it holds at the end.
func checkWrites(o outcome) finding {
	f := finding{title: "no update lost"}
	var finals []string
	guarded := 0
	for _, l := range o.locks {
		for _, s := range l.odd {
			f.problem("%s", s)
		}
		wrote := make(map[int64]counterWrite) // by token
		for i, w := range l.counter {
			if w.N != i+1 {
				f.problem("%s wrote %d as update %d of the %s's counter", w.Worker, w.N, i+1, l.name)
			}
			wrote[w.Token] = w
		}
		ended := 0
		for _, a := range l.acqs {
			guarded += checkSection(&f, a, wrote[a.token])
			if a.end != 0 && !a.shared {
				ended++
			}
			if v := l.final.sections[a.token]; a.begin != 0 && v != a.section {
				f.problem("etcd holds %+v of %s, its history says %+v", v, a.name(), a.section)
			}
		}
		if ended != len(l.counter) || l.final.counter != ended {
			f.problem("%d sections ended at the %s, its counter was written %d times and is %d", ended, l.name, len(l.counter), l.final.counter)
		}
		finals = append(finals, fmt.Sprint(l.final.counter))
	}
	f.detail = fmt.Sprintf("%d guarded writes, counters %s", guarded, strings.Join(finals, " and "))
	return f
}

// checkSection checks one section and counts its guarded writes.
func checkSection(f *finding, a *acquisition, w counterWrite) (guarded int) {
	within := func(rev int64) bool { return rev > a.token && (a.gone == 0 || rev < a.gone) }
	for _, rev := range []int64{a.begin, a.end} {
		if rev != 0 {
			if guarded++; !within(rev) {
				f.problem("%s wrote at revision %d, outside of its hold, %d to %d", a.name(), rev, a.token, a.gone)
			}
		}
	}
	switch {
	case a.begin != 0 && a.section.Worker != a.worker:
		f.problem("%s wrote as %s", a.name(), a.section.Worker)
	case a.end == 0 && (!a.releasing.IsZero() || w.rev != 0):
		f.problem("%s left its section, but etcd does not have its last write", a.name())
	case a.end == 0 || a.shared:
		if w.rev != 0 {
			f.problem("%s wrote to the counter without an exclusive section", a.name())
		}
	case w.rev != a.end || w.N != a.section.Last || w.Worker != a.worker:
		f.problem("%s says that it wrote %d to the counter, etcd has %d by %s at revision %d", a.name(), a.section.Last, w.N, w.Worker, w.rev)
	case a.section.Last != a.section.Read+1:
		f.problem("%s read %d and wrote %d", a.name(), a.section.Read, a.section.Last)
	}
	return guarded
}

// checkReaders: readers ran together, and none of them saw a writer. From the beginning
// to the end of a reader's section the counter did not change.
func checkReaders(o outcome) finding {
	f := finding{title: "readers together"}
	together, batches := 0, 0
	for _, l := range o.locks {
		for _, a := range l.acqs {
			if !a.shared || a.end == 0 {
				continue
			}
			before := 0
			for _, w := range l.counter {
				if w.rev < a.begin {
					before = w.N
				}
			}
			if a.section.Read != before || a.section.Last != before {
				f.problem("%s saw the counter change: %d at the beginning, then %d, where %d had been written", a.name(), a.section.Read, a.section.Last, before)
			}
		}
		for _, t := range turnsOf(l.acqs) {
			if t.shared() {
				batches++
				together = max(together, atOnce(t))
			}
		}
	}
	f.detail = fmt.Sprintf("up to %d, in %d batches", together, batches)
	if together < 2 {
		f.problem("no two readers were in their sections at the same time")
	}
	return f
}

// atOnce is the highest number of a turn's sections that ran at the same time, each
// from its first guarded write to its last.
func atOnce(t turn) int {
	most := 0
	for _, a := range t {
		n := 0
		for _, b := range t {
			if a.begin != 0 && b.begin != 0 && b.begin <= a.begin && (b.end == 0 || b.end > a.begin) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// checkVictim: the lock of the killed holder passed to the next waiter when its lease
// ended, and not before the deadline that its library had reported.
func checkVictim(o outcome) finding {
	f := finding{title: "the killed holder's lock went on"}
	for _, l := range o.locks {
		for i, a := range l.acqs {
			if a.killed.IsZero() {
				continue
			}
			if f.detail != "" {
				f.problem("%s was killed, too", a.name())
				continue
			}
			f.detail = fmt.Sprintf("after %s (TTL %s)", seconds(a.goneAt.Sub(a.killed)), whole(o.ttl))
			switch {
			case a.granted.IsZero() || a.killed.Before(a.granted):
				f.problem("%s did not hold the lock when it was killed", a.name())
			case a.end != 0 || !a.releasing.IsZero():
				f.problem("%s had left its section before it was killed", a.name())
			case a.gone == 0:
				f.problem("the entry of %s is still in the queue", a.name())
			case a.goneAt.Before(a.killed):
				f.problem("the entry of %s was gone before it was killed", a.name())
			case !a.leaseGone:
				f.problem("the entry of %s went, but its lease had not ended", a.name())
			case a.goneAt.Before(a.deadline):
				f.problem("the entry of %s went %s before its deadline", a.name(), seconds(a.deadline.Sub(a.goneAt)))
			}
			next := slices.IndexFunc(l.acqs[i+1:], func(b *acquisition) bool { return b.begin != 0 })
			if next < 0 {
				f.problem("nobody got the lock after %s", a.name())
				continue
			}
			if b := l.acqs[i+1+next]; b.granted.IsZero() || b.begin < a.gone {
				f.problem("%s had the lock while the entry of %s was in the queue", b.name(), a.name())
			} else {
				f.detail += fmt.Sprintf(", to %s", b.worker)
			}
		}
	}
	if f.detail == "" {
		f.problem("nobody was killed")
	}
	return f
}

// checkWorkers: every process did all its rounds and ended well, except the killed one.
func checkWorkers(o outcome) finding {
	f := finding{title: "all rounds done"}
	rounds, killed := 0, 0
	for _, w := range o.workers {
		rounds += w.rounds
		if w.killed {
			killed++
		} else if !w.finished {
			f.problem("%s did not end well", w.name)
		}
		if w.rounds != w.wanted {
			f.problem("%s did %d of %d rounds", w.name, w.rounds, w.wanted)
		}
	}
	f.detail = fmt.Sprintf("%d by %d processes, %d killed", rounds, len(o.workers), killed)
	if rounds == 0 {
		f.problem("nobody did a round")
	}
	return f
}

// checkLeft: when all sessions are closed, the queues are empty.
func checkLeft(o outcome) finding {
	f := finding{title: "queues empty at the end", detail: "no entry is left"}
	for _, l := range o.locks {
		for _, key := range l.final.entries {
			f.problem("%s is left", key)
		}
		for _, a := range l.acqs {
			if a.gone == 0 {
				f.problem("etcd's history does not show that the entry of %s went", a.name())
			}
		}
	}
	return f
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
func whole(d time.Duration) string   { return fmt.Sprintf("%.0f s", d.Seconds()) }
