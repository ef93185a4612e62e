package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// board is the live view of a phase: the queue in etcd at this moment, and what each
// process does.
func (p *phase) board(now time.Time) []screen.Line {
	acqs := p.rec.ordered()
	queue := turnsOf(inQueue(acqs))
	lines := []screen.Line{{}, queueLine(queue), {}}
	for _, w := range p.procs {
		rounds := strings.Repeat("●", w.rounds) + strings.Repeat("○", max(0, w.Rounds-w.rounds))
		l := screen.Line{screen.Plain("  "), screen.Bold(screen.Pad(w.Worker, 4)), screen.Dim(screen.Pad(fmt.Sprintf("pid %d", w.pid()), 13) + rounds + "   ")}
		lines = append(lines, append(l, p.doing(w, acqs, queue, now)...))
	}
	return lines
}

func inQueue(acqs []*acquisition) []*acquisition {
	var in []*acquisition
	for _, a := range acqs {
		if a.gone == 0 {
			in = append(in, a)
		}
	}
	return in
}

// queueLine draws the queue. The holders come first.
func queueLine(queue []turn) screen.Line {
	l := screen.Line{screen.Dim("  queue   ")}
	for i, t := range queue {
		names := t.names(" ")
		if len(t) > 1 {
			names = "(" + names + ")"
		}
		switch {
		case i > 0:
			l = append(l, screen.Dim(" ← "), screen.Plain(names))
		case t.killed():
			l = append(l, screen.Red(names))
		default:
			l = append(l, screen.Green(names))
		}
	}
	if len(queue) == 0 {
		l = append(l, screen.Dim("empty"))
	}
	return l
}

// doing says what a process does now.
func (p *phase) doing(w *process, acqs []*acquisition, queue []turn, now time.Time) screen.Line {
	var a *acquisition // its latest one
	for _, b := range acqs {
		if b.worker == w.Worker {
			a = b
		}
	}
	switch {
	case w.killed && a != nil && a.gone == 0:
		return screen.Line{screen.Red(fmt.Sprintf("killed %s ago; its lease of %s still lasts", seconds(now.Sub(a.killed)), whole(p.ttl)))}
	case w.killed:
		return screen.Line{screen.Red("killed")}
	case w.exited || w.finished:
		return screen.Line{screen.Dim("done")}
	case w.lease == 0:
		return screen.Line{screen.Dim("starts")}
	case a == nil || a.gone != 0:
		return screen.Line{screen.Dim("works elsewhere")}
	case !a.releasing.IsZero():
		return screen.Line{screen.Dim("releases the lock")}
	case !a.granted.IsZero():
		what := "holds"
		if p.spec.rw {
			what = "writes"
		}
		if a.shared {
			what = "reads"
		}
		return screen.Line{screen.Green(what), screen.Plain(fmt.Sprintf(" with token %d for %s", a.token, seconds(now.Sub(a.granted))))}
	}
	for i, t := range queue {
		for _, b := range t {
			if b == a && i > 0 {
				return screen.Line{screen.Plain(fmt.Sprintf("waits in place %d, revision %d", i, a.token))}
			}
		}
	}
	return screen.Line{screen.Plain("is next")}
}
