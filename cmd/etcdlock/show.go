package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

func showCommand(etcd *connect.Config) *cobra.Command {
	var output format
	var watch bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `Shows the queue of the lock NAME: who holds it, who waits in which place, since when, how much
of its lease each has left, and under which key. ENTRY is what etcdlock break wants.

Times are by the clocks of the machines that queue. Locks that etcd's own clients take
(etcdctl lock) say neither who nor since when.

With --watch it goes on: on a terminal in place, elsewhere a block (or with -o json a line) for
each change, until Ctrl-C.`,
		Example: `  etcdlock show jobs/report
  etcdlock show --watch jobs/report
  etcdlock show -o json jobs/report | jq '.entries[] | select(.holds) | .owner'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := open(cmd, etcd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			if watch {
				return follow(cmd.Context(), client, args[0], output)
			}
			q, err := etcdlock.New(client).Inspect(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case output == asJSON:
				return printJSON(complete(q))
			}
			_, err = fmt.Print(showQueue(q, time.Now()))
			return written(err)
		},
	}
	output.addFlag(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on showing it as it changes")
	return cmd
}

// showQueue is a queue for people.
func showQueue(q etcdlock.Queue, now time.Time) string {
	title := fmt.Sprintf("%s: %s\n", plain(q.Name), standing(q))
	if len(q.Entries) == 0 {
		return title
	}
	rows := [][]string{{"STATE", "KIND", "SINCE", "LEASE", "OWNER", "ENTRY"}}
	for i, e := range q.Entries {
		rows = append(rows, []string{state(q, i), kindOf(e), since(e, now), lease(e), owner(e), ref(e)})
	}
	return title + "\n" + table(rows)
}

// follow shows a queue as it changes, until ctx ends.
func follow(ctx context.Context, client *clientv3.Client, name string, output format) error {
	view := screen.New(os.Stdout)
	queues, failed := make(chan etcdlock.Queue), make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // until ctx ends, or etcd refuses
		for q, err := range etcdlock.New(client).Watch(ctx, name) {
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
	tick := time.NewTicker(time.Second) // for the times
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
		case <-tick.C:
		case err := <-failed:
			if output != asJSON && view.Live() {
				view.Close()
				view.Print(b.lines(time.Now())...)
			}
			var by signalled
			if errors.As(context.Cause(ctx), &by) {
				return ending{status: by.status()} // there is no other end to it
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

// A board is a queue on the screen, and what has changed in it.
type board struct {
	name   string
	queue  etcdlock.Queue
	shown  bool // there was a queue before
	moves  map[string]move
	events []string // the last ones
}

// A move is how an entry has changed its place.
type move struct {
	what string
	at   time.Time
}

const (
	// moveShown is how long a move is shown beside its entry.
	moveShown = 3 * time.Second
	maxEvents = 5
)

// update takes the next state of the queue, and notes who has moved up.
func (b *board) update(q etcdlock.Queue, now time.Time) {
	before := make(map[string]string)
	for i, e := range b.queue.Entries {
		before[ref(e)] = state(b.queue, i)
	}
	moves := make(map[string]move)
	here := make(map[string]bool)
	var events []string
	for i, e := range q.Entries {
		was, is := before[ref(e)], state(q, i)
		here[ref(e)] = true
		switch {
		case was == is:
			if m, ok := b.moves[ref(e)]; ok {
				moves[ref(e)] = m
			}
		case !b.shown: // the first state has no before
		case was == "" && e.Holds:
			moves[ref(e)] = move{"new", now}
			events = append(events, owner(e)+" came and got the lock")
		case was == "":
			moves[ref(e)] = move{"new", now}
			events = append(events, owner(e)+" came, in "+is)
		case e.Holds:
			moves[ref(e)] = move{"↑ was " + was, now}
			got := owner(e) + " got the lock"
			if !e.Queued.IsZero() {
				got += ", " + age(now.Sub(e.Queued)) + " after it came"
			}
			events = append(events, got)
		default:
			moves[ref(e)] = move{"↑ was " + was, now}
		}
	}
	for i, e := range b.queue.Entries {
		switch {
		case here[ref(e)]:
		case e.Holds:
			events = append([]string{owner(e) + " left the lock"}, events...)
		default:
			events = append([]string{owner(e) + " left, it was in " + state(b.queue, i)}, events...)
		}
	}
	for _, e := range events {
		b.events = append(b.events, now.Format("15:04:05")+"  "+e)
	}
	b.events = b.events[max(0, len(b.events)-maxEvents):]
	b.queue, b.moves, b.shown = q, moves, true
}

func (b *board) lines(now time.Time) []screen.Line {
	if !b.shown {
		return []screen.Line{{screen.Bold(plain(b.name)), screen.Dim(": etcd has not answered yet")}}
	}
	q := b.queue
	lines := []screen.Line{{screen.Bold(plain(q.Name)), screen.Plain(": " + standing(q))}, {}}
	rows := [][]string{{"STATE", "KIND", "SINCE", "OWNER", "", "ENTRY"}}
	for i, e := range q.Entries {
		moved := ""
		if m, ok := b.moves[ref(e)]; ok && now.Sub(m.at) < moveShown {
			moved = m.what
		}
		rows = append(rows, []string{state(q, i), kindOf(e), since(e, now), owner(e), moved, ref(e)})
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
	if len(b.events) > 0 {
		lines = append(lines, screen.Line{})
	}
	for _, e := range b.events {
		lines = append(lines, screen.Line{screen.Dim(e)})
	}
	return append(lines, screen.Line{})
}
