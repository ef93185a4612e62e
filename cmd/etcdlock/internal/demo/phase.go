package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// A spec describes a phase: one lock, and the processes that contend for it.
type spec struct {
	name  string // of the lock
	title string
	rw    bool
	jobs  []job
}

// killAfter is how long the holder that hangs may hold the lock before it is killed.
const killAfter = 400 * time.Millisecond

// refresh is how often the live view is drawn while nothing happens.
const refresh = 50 * time.Millisecond

// A phase is the run of a spec.
type phase struct {
	*demo
	spec   spec
	rec    *record
	story  *story
	procs  []*process
	ttl    time.Duration // of the process that will be killed, as granted
	hung   *acquisition  // the acquisition whose process will be killed
	killAt time.Time
}

// run runs the phase until all its processes have ended.
func (p *phase) run(ctx context.Context) error {
	pids := make([]string, 0, len(p.spec.jobs))
	for _, j := range p.spec.jobs {
		j.Lock, j.Etcd, j.TTL = p.rec.paths, p.store.etcd, demoTTL
		if j.HangIn != 0 {
			j.TTL = hungTTL
		}
		w, err := p.workers.start(j)
		if err != nil {
			return err
		}
		p.procs = append(p.procs, w)
		pids = append(pids, fmt.Sprintf("%s %d", w.Worker, w.pid()))
	}
	if err := p.wait(ctx, func() bool { return p.each(func(w *process) bool { return w.lease != 0 }) }); err != nil {
		return err
	}
	p.view.Print(screen.Line{}, screen.Line{screen.Bold(p.spec.title)}, screen.Line{screen.Dim("  processes: " + strings.Join(pids, ", "))}, screen.Line{}, p.story.header())
	if p.zero.IsZero() {
		p.zero = time.Now()
	}
	p.story.zero = p.zero
	for _, w := range p.procs {
		if err := w.tell("start"); err != nil {
			return err
		}
	}
	over := func() bool {
		return p.each(func(w *process) bool { return w.exited }) && len(p.rec.current) == 0
	}
	if err := p.wait(ctx, over); err != nil {
		return err
	}
	p.story.over = true
	p.view.Draw(nil)
	p.view.Print(p.story.next()...)
	p.view.Print(screen.Line{}, p.story.sum())
	return p.view.Err()
}

func (p *phase) each(is func(*process) bool) bool {
	for _, w := range p.procs {
		if !is(w) {
			return false
		}
	}
	return true
}

// wait records and shows what happens until done. Only its goroutine uses the state
// of the phase.
func (p *phase) wait(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, errTooLong) {
				queue := strings.Fields(queueLine(turnsOf(inQueue(p.rec.ordered()))).Text())
				cause = fmt.Errorf("%w; at the %s, %s", cause, p.spec.name, strings.Join(queue, " "))
			}
			return cause
		case n := <-p.workers.news:
			if err := p.hear(n); err != nil {
				return err
			}
		case wr, ok := <-p.watch:
			if err := p.demo.see(wr, ok); err != nil {
				return err
			}
		case <-tick.C:
		}
		if err := p.killHung(ctx); err != nil {
			return err
		}
		if lines := p.story.next(); len(lines) > 0 {
			p.view.Print(lines...)
		}
		p.view.Draw(p.board(time.Now()))
		if p.view.Err() != nil {
			return fmt.Errorf("can't write to standard output: %w", p.view.Err())
		}
	}
	return nil
}

// hear records a report of a process.
func (p *phase) hear(n news) error {
	w := n.from
	if n.exited {
		w.exited = true
		if err := n.err; !w.killed && (err != nil || !w.finished) {
			if err == nil {
				err = errors.New("it did not say why")
			}
			return fmt.Errorf("worker %s (pid %d) ended early: %w", w.Worker, w.pid(), err)
		}
		return nil
	}
	p.rec.tell(n.report)
	switch n.Event {
	case eventReady:
		w.lease = n.Lease
		if w.HangIn != 0 {
			p.ttl = n.TTL
		}
		p.rec.workers[n.Lease] = w.Worker
		p.leases = append(p.leases, n.Lease)
	case eventGranted:
		if n.Round == w.HangIn {
			p.hung = p.rec.at(n.Token)
		}
	case eventReleased:
		w.rounds++
	case eventLost:
		return fmt.Errorf("worker %s (pid %d) lost the lock while it held it: %s", w.Worker, w.pid(), n.Error)
	case eventDone:
		w.finished = true
	case eventQueued, eventReleasing:
		// the record has all of it
	}
	return nil
}

// killHung kills the holder that hangs after it has held the lock for a while, and
// tells when its entry is gone. Only the end of its lease may remove the entry.
func (p *phase) killHung(ctx context.Context) error {
	a, now := p.hung, time.Now()
	switch {
	case a == nil || a.begin == 0 || a.leaseGone:
	case p.killAt.IsZero():
		p.killAt = now.Add(killAfter)
	case a.killed.IsZero() && now.After(p.killAt):
		w := p.process(a.worker)
		a.killed, w.killed = now, true
		w.kill()
		p.view.Print(p.story.note(now, fmt.Sprintf("%s is killed (SIGKILL); its lease lasts %s from its last renewal", a.worker, whole(p.ttl))))
	case !a.killed.IsZero() && a.gone != 0:
		gone, err := p.store.leaseGone(ctx, p.process(a.worker).lease)
		if err != nil {
			return err
		}
		if a.leaseGone = gone; !gone {
			// The answer may come from a member that is a moment behind.
			if now.Sub(a.goneAt) < time.Second {
				return nil
			}
			return fmt.Errorf("somebody removed the entry of %s before its lease had ended", a.worker)
		}
		p.view.Print(p.story.note(a.goneAt, fmt.Sprintf("%s's lease ended %s after the kill: etcd removed its entry", a.worker, seconds(a.goneAt.Sub(a.killed)))))
	}
	return nil
}

func (p *phase) process(name string) *process {
	for _, w := range p.procs {
		if w.Worker == name {
			return w
		}
	}
	panic("bug: no worker " + name)
}

// outcome is what the checks get of the phase.
func (p *phase) outcome(final finalState) (lockOutcome, []workerOutcome) {
	l := lockOutcome{name: p.spec.name, acqs: p.rec.ordered(), counter: p.rec.counter, odd: p.rec.odd, final: final}
	for _, a := range p.rec.acqs {
		if !a.entered() {
			l.claimed = append(l.claimed, a)
		}
	}
	var ws []workerOutcome
	for _, w := range p.procs {
		o := workerOutcome{name: w.Worker, rounds: w.rounds, wanted: w.Rounds, finished: w.finished, killed: w.killed}
		if w.killed {
			o.wanted = w.HangIn - 1
		}
		ws = append(ws, o)
	}
	return l, ws
}

// see records etcd's events of any phase.
func (d *demo) see(wr clientv3.WatchResponse, ok bool) error {
	if !ok || wr.Err() != nil {
		return fmt.Errorf("the watch of etcd's history broke; run the demo again: %w", oneLine(errors.New("the watch ended"), wr.Err()))
	}
	now := time.Now()
	for _, ev := range wr.Events {
		key := string(ev.Kv.Key)
		if key == d.store.marker() {
			d.caughtUp = true
			continue
		}
		known := false
		for _, p := range d.phases {
			if strings.HasPrefix(key, p.rec.paths.Name+"/") || strings.HasPrefix(key, p.rec.paths.Data+"/") {
				p.rec.apply(ev, now)
				known = true
			}
		}
		if !known {
			return fmt.Errorf("another process writes to the keys of the demo: %s", key)
		}
	}
	return nil
}
