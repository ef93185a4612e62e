package demo

import (
	"fmt"
	"strings"
	"time"
)

// board is the live view of a phase: the queue as etcd has it at this moment,
// and what each process does.
func (p *phase) board(now time.Time) []line {
	acqs := p.rec.ordered()
	queue := turnsOf(inQueue(acqs))
	lines := []line{{}, queueLine(queue), {}}
	for _, w := range p.procs {
		rounds := strings.Repeat("●", w.rounds) + strings.Repeat("○", max(0, w.Rounds-w.rounds))
		l := line{{"  ", plain}, {pad(w.Worker, 4), bold}, {pad(fmt.Sprintf("pid %d", w.pid()), 13) + rounds + "   ", dim}}
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

// queueLine draws the queue, the holders first.
func queueLine(queue []turn) line {
	l := line{{"  queue   ", dim}}
	for i, t := range queue {
		names := t.names(" ")
		if len(t) > 1 {
			names = "(" + names + ")"
		}
		switch {
		case i > 0:
			l = append(l, span{" ← ", dim}, span{names, plain})
		case t.killed():
			l = append(l, span{names, red})
		default:
			l = append(l, span{names, green})
		}
	}
	if len(queue) == 0 {
		l = append(l, span{"empty", dim})
	}
	return l
}

// doing is what a process does now.
func (p *phase) doing(w *process, acqs []*acquisition, queue []turn, now time.Time) line {
	var a *acquisition // its latest
	for _, b := range acqs {
		if b.worker == w.Worker {
			a = b
		}
	}
	switch {
	case w.killed && a != nil && a.gone == 0:
		return line{{fmt.Sprintf("killed %s ago; its lease of %s runs on", seconds(now.Sub(a.killed)), whole(p.ttl)), red}}
	case w.killed:
		return line{{"killed", red}}
	case w.exited || w.finished:
		return line{{"done", dim}}
	case w.lease == 0:
		return line{{"starts", dim}}
	case a == nil || a.gone != 0:
		return line{{"works elsewhere", dim}}
	case !a.releasing.IsZero():
		return line{{"gives the lock back", dim}}
	case !a.granted.IsZero():
		what := "holds"
		if p.spec.rw {
			what = "writes"
		}
		if a.shared {
			what = "reads"
		}
		return line{{what, green}, {fmt.Sprintf(" with token %d for %s", a.token, seconds(now.Sub(a.granted))), plain}}
	}
	for i, t := range queue {
		for _, b := range t {
			if b == a && i > 0 {
				return line{{fmt.Sprintf("waits in place %d, revision %d", i, a.token), plain}}
			}
		}
	}
	return line{{"is next", plain}}
}
