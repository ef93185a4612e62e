package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// follow shows a queue and its changes until ctx ends.
func follow(ctx context.Context, client *clientv3.Client, etcd *connect.Config, name string, output format) error {
	view := screen.New(os.Stdout)
	queues, failed := make(chan etcdlock.Queue), make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with ctx, or when etcd refuses
		for q, err := range watch(ctx, client, name) {
			if err != nil {
				failed <- err
				return
			}
			select {
			case queues <- q:
			case <-ctx.Done():
			}
		}
	}()
	silences := outages(ctx, client, etcd, name)
	tick := time.NewTicker(time.Second) // the times change
	defer tick.Stop()
	b := &board{name: name}
	for {
		select {
		case q := <-queues:
			b.update(q, time.Now())
			switch {
			case output == asJSON:
				if err := printJSON(complete(q)); err != nil {
					return err
				}
			case !view.Live():
				view.Print(b.lines(time.Now())...)
			}
		case why := <-silences:
			b.outage(why, time.Now())
			switch {
			case output != asJSON && view.Live():
			case why == "":
				say(name, "etcd answers again")
			default:
				say(name, "etcd does not answer, so the last state may be out of date: %s", why)
			}
		case <-tick.C:
		case err := <-failed:
			if output != asJSON && view.Live() {
				view.Close()
				view.Print(b.lines(time.Now())...)
			}
			var by signalled
			if errors.As(context.Cause(ctx), &by) {
				return ending{status: by.status()} // its ordinary end
			}
			return err
		}
		if output != asJSON {
			view.Draw(b.lines(time.Now()))
		}
		if view.Err() != nil {
			return written(view.Err())
		}
	}
}

// A board is a queue on the screen and its latest changes. The keys of its maps are
// tokens: an entry that is downgraded keeps its token but not its key.
type board struct {
	name  string
	queue etcdlock.Queue
	shown bool // queue is set
	moves map[int64]move
	// granted is when this board saw an entry get the lock. An entry that held it
	// before is not in it.
	granted map[int64]time.Time
	events  []string  // the latest ones
	silent  time.Time // since when etcd has not answered, zero if it does
}

// A move is a change of an entry's place.
type move struct {
	what string
	at   time.Time
}

const (
	// moveShown is how long a move is shown beside its entry.
	moveShown = 3 * time.Second
	maxEvents = 5
)

// update takes the next state of the queue and notes what has changed.
func (b *board) update(q etcdlock.Queue, now time.Time) {
	before := make(map[int64]string)
	for i, e := range b.queue.Entries {
		before[e.Token] = state(b.queue, i)
	}
	moves := make(map[int64]move)
	granted := make(map[int64]time.Time)
	here := make(map[int64]bool)
	var events []string
	for i, e := range q.Entries {
		was, is := before[e.Token], state(q, i)
		here[e.Token] = true
		if at, ok := b.granted[e.Token]; ok {
			granted[e.Token] = at
		} else if b.shown && e.Holds && was != is {
			granted[e.Token] = now
		}
		switch {
		case was == is:
			if m, ok := b.moves[e.Token]; ok {
				moves[e.Token] = m
			}
		case !b.shown: // the first state is no change
		case was == "" && e.Holds:
			moves[e.Token] = move{"new", now}
			events = append(events, owner(e)+" arrived and got the lock")
		case was == "":
			moves[e.Token] = move{"new", now}
			events = append(events, owner(e)+" arrived, in "+is)
		case e.Holds:
			moves[e.Token] = move{"↑ was " + was, now}
			got := owner(e) + " got the lock"
			if !e.Queued.IsZero() {
				got += ", " + age(now.Sub(e.Queued)) + " after it arrived"
			}
			events = append(events, got)
		default:
			moves[e.Token] = move{"↑ was " + was, now}
		}
	}
	for i, e := range b.queue.Entries {
		switch {
		case here[e.Token]:
		case e.Holds:
			events = append([]string{owner(e) + " left the lock"}, events...)
		default:
			events = append([]string{owner(e) + " left " + state(b.queue, i)}, events...)
		}
	}
	b.note(now, events...)
	b.queue, b.moves, b.granted, b.shown = q, moves, granted, true
}

// outage notes that etcd does not answer, or with "" that it does again.
func (b *board) outage(why string, now time.Time) {
	if why == "" {
		b.silent = time.Time{}
		b.note(now, "etcd answers again")
		return
	}
	b.silent = now
	b.note(now, why)
}

func (b *board) note(now time.Time, events ...string) {
	for _, e := range events {
		b.events = append(b.events, now.Format("15:04:05")+"  "+e)
	}
	b.events = b.events[max(0, len(b.events)-maxEvents):]
}

func (b *board) lines(now time.Time) []screen.Line {
	if !b.shown {
		return []screen.Line{{screen.Bold(shown(b.name)), screen.Dim(": etcd has not answered yet")}}
	}
	q := b.queue
	title := screen.Line{screen.Bold(shown(q.Name)), screen.Plain(": " + standing(q))}
	if !b.silent.IsZero() {
		title = append(title, screen.Red("; perhaps not any more, because etcd has not answered since "+b.silent.Format("15:04:05")))
	}
	lines := []screen.Line{title, {}}
	rows := [][]string{{"STATE", "KIND", "QUEUED", "HELD", "OWNER", "", "ENTRY"}}
	for i, e := range q.Entries {
		moved := ""
		if m, ok := b.moves[e.Token]; ok && now.Sub(m.at) < moveShown {
			moved = m.what
		}
		rows = append(rows, []string{state(q, i), kindOf(e), queued(e, now), held(e, b.granted[e.Token], now), party(e), moved, quote(ref(e))})
	}
	if len(q.Entries) > 0 {
		for i, l := range strings.Split(strings.TrimSuffix(table(rows), "\n"), "\n") {
			switch {
			case i == 0:
				lines = append(lines, screen.Line{screen.Dim(l)})
			case q.Entries[i-1].Holds:
				lines = append(lines, screen.Line{screen.Green(l)})
			default:
				lines = append(lines, screen.Text(l))
			}
		}
	}
	for l := range strings.Lines(dataIn(q)) {
		lines = append(lines, screen.Line{screen.Red(strings.TrimSuffix(l, "\n"))})
	}
	for l := range strings.Lines(partsOf(q)) {
		lines = append(lines, screen.Text(strings.TrimSuffix(l, "\n")))
	}
	if len(b.events) > 0 {
		lines = append(lines, screen.Line{})
	}
	for _, e := range b.events {
		lines = append(lines, screen.Line{screen.Dim(e)})
	}
	return append(lines, screen.Line{})
}
