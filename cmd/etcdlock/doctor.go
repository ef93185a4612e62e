package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/duration"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// A finding is one statement of etcdlock doctor.
type finding struct {
	Attention bool   `json:"attention"` // somebody should do something
	What      string `json:"what"`
	Do        string `json:"do,omitempty"`
}

func doctorCommand(etcd *connect.Config) *cobra.Command {
	var output format
	var maxHold time.Duration
	cmd := &cobra.Command{
		Use:   "doctor NAME",
		Short: "Say what is wrong with a lock, and what to do about it",
		Long: `Looks for anything that blocks the lock NAME, or may do so soon: members of etcd that don't answer
or raise an alarm, a cluster without a quorum, entries without a lease, leases that nobody renews,
holders that have been in the queue for longer than --max-hold, clocks that differ, and keys that
are not entries.

doctor looks at the leases twice, some seconds apart, and changes nothing. The exit status is 2 if
something needs attention.

NAME may be what metrics and the log call a lock by: for "a, b", the names of a Multi, doctor looks
at both locks, and for a name that nobody uses itself at the locks below NAME/.`,
		Example: `  etcdlock doctor jobs/report
  etcdlock doctor --max-hold 1h jobs/report || page-somebody`,
		Args: wants(lockName),
		RunE: func(cmd *cobra.Command, args []string) error {
			if maxHold < 0 {
				return fmt.Errorf("--max-hold %v: it can't be negative", maxHold)
			}
			// Unlike open this makes no request that needs a leader.
			if err := etcd.Complete(cmd.Flags()); err != nil {
				return err
			}
			etcd.NoAnswer = "stop those that hang (kill -9), and start them again; more than half of etcd's members must run and reach each other"
			d := doctor{etcd: etcd, maxHold: maxHold}
			etcd.Answered = d.answered
			client, err := etcd.Client()
			switch ctx := cmd.Context(); {
			case err != nil && ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			d.client = client
			return d.run(cmd.Context(), args[0], output)
		},
	}
	output.addFlag(cmd)
	duration.Var(cmd.Flags(), &maxHold, "max-hold", 0, "how long a holder may have been in the queue before it needs attention (default: no limit)")
	return cmd
}

type doctor struct {
	client   *clientv3.Client
	etcd     *connect.Config
	maxHold  time.Duration
	findings []finding
	silence  atomic.Pointer[time.Timer] // ends the present look; nil before the first one
	// unrenewed are the leases that nobody renews.
	unrenewed []clientv3.LeaseID
}

func (d *doctor) attention(do, what string, args ...any) {
	d.find(finding{true, fmt.Sprintf(what, args...), do})
}

func (d *doctor) note(what string, args ...any) {
	d.find(finding{What: fmt.Sprintf(what, args...)})
}

// find adds a finding once: the queues of several names may lead to the same.
func (d *doctor) find(f finding) {
	if !slices.Contains(d.findings, f) {
		d.findings = append(d.findings, f)
	}
}

func (d *doctor) run(ctx context.Context, name string, output format) error {
	name, queues, unread := d.named(ctx, name)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(unread, etcdlock.ErrInvalidName), errors.Is(unread, rpctypes.ErrPermissionDenied):
		return unread
	case errors.Is(unread, rpctypes.ErrUserEmpty), errors.Is(unread, rpctypes.ErrUserNotFound):
		return d.etcd.Explain(unread)
	}
	err := d.members(ctx, unread)
	var now time.Time
	if err == nil && unread == nil {
		if now, unread = d.queues(ctx, queues); unread != nil && ctx.Err() == nil { // etcd went away between the two looks
			d.findings = nil
			err = d.members(ctx, unread)
		}
	}
	switch {
	case ctx.Err() != nil: // it is no fault of etcd's that there was no answer
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	needs := slices.ContainsFunc(d.findings, func(f finding) bool { return f.Attention })
	if output == asJSON {
		err = printJSON(struct {
			Name      string    `json:"name"`
			Revision  int64     `json:"revision"`
			Attention bool      `json:"attention"`
			Findings  []finding `json:"findings"`
		}{name, queues[len(queues)-1].Revision, needs, append([]finding{}, d.findings...)})
	} else {
		titles := []screen.Line{{screen.Bold(shown(name)), screen.Plain(": unknown, because etcd does not answer")}}
		if unread == nil {
			titles = nil
			for _, q := range queues {
				titles = append(titles, d.heading(q, now))
			}
		}
		err = d.print(titles, needs)
	}
	if err == nil && needs {
		err = ending{status: statusAttention}
	}
	return err
}

// lookTimeout bounds a look at the queue: all of it with --command-timeout, and else the silence from one answer to the next, since
// a look at the queue of a thousand sessions takes a thousand requests. If etcd does not answer, each member is asked whether it
// does, and both together take no longer than etcd may take for its first answer, which is what doctor says then.
func (d *doctor) lookTimeout() time.Duration {
	return cmp.Or(d.etcd.CommandTimeout, max(d.etcd.DialTimeout-statusTimeout, d.etcd.DialTimeout/2))
}

// inspect reads a queue. One look at a time reads.
func (d *doctor) inspect(ctx context.Context, name string) (etcdlock.Queue, error) {
	ctx, free := d.etcd.Bound(ctx)
	defer free()
	if d.etcd.CommandTimeout != 0 {
		return looks(d.client).Inspect(ctx, name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(d.lookTimeout(), func() { cancel(fmt.Errorf("no answer within %v", d.lookTimeout())) })
	defer silence.Stop()
	d.silence.Store(silence)
	return looks(d.client).Inspect(ctx, name)
}

// answered gives the present look more time.
func (d *doctor) answered() {
	if t := d.silence.Load(); t != nil {
		t.Reset(d.lookTimeout()) // after the look it ends nothing
	}
}

// heading says in a line who has the lock.
func (d *doctor) heading(q etcdlock.Queue, now time.Time) screen.Line {
	title := screen.Line{screen.Bold(shown(q.Name)), screen.Plain(": " + standing(q))}
	if len(q.Entries) > 0 {
		first := q.Entries[0]
		title = append(title, screen.Plain("; first is "+describe(first, now)))
		if slices.Contains(d.unrenewed, first.Lease) {
			title = append(title, screen.Plain(", whose lease nobody renews"))
		}
	}
	return title
}

func (d *doctor) print(titles []screen.Line, needs bool) error {
	view := screen.New(os.Stdout)
	view.Print(titles...)
	for _, f := range d.findings {
		if f.Attention {
			view.Print(screen.Line{screen.Red("ATTENTION  "), screen.Plain(f.What)}, screen.Text("           "+f.Do))
		}
	}
	for _, f := range d.findings {
		if !f.Attention {
			view.Print(screen.Line{screen.Dim("note       "), screen.Plain(f.What)})
		}
	}
	if !needs {
		view.Print(screen.Line{screen.Green("ok         "), screen.Plain("nothing needs attention")})
	}
	view.Close()
	return written(view.Err())
}
