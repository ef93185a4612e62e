package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

func electCommand(etcd *connect.Config) *cobra.Command {
	u := &under{}
	cmd := &cobra.Command{
		Use:                   "elect NAME [flags] -- CMD [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command on one machine of many, and on another when that fails",
		Long: `Start elect on every machine. It waits until this machine leads, and then runs CMD. When the lead
is lost, because etcd was away for too long or somebody took the lead away, elect ends CMD as
etcdlock run does, before another machine can lead, and waits again. So CMD runs on one machine as
long as one is well.

When CMD ends by itself, elect releases the lead, another machine leads, and elect ends with CMD's
exit status. Let systemd or Kubernetes start elect again.

Signals, CMD's environment, --ttl and --grace are as for etcdlock run.`,
		Example: `  # on each of three machines: one runs the scheduler
  etcdlock elect services/scheduler -- ./scheduler --port 8080
  # in a unit of systemd, with Restart=always, and KillMode=mixed so that CMD gets SIGTERM once
  ExecStart=etcdlock elect services/scheduler -- /usr/bin/scheduler`,
		Args:        nameAndCommand,
		Annotations: map[string]string{runsCommand: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			name, argv := nameAndArgv(cmd, args)
			return u.elect(cmd, etcd, name, argv)
		},
	}
	u.addFlags(cmd)
	return cmd
}

// errEnded ends the elector's ctx when its command has ended by itself or was asked
// to end.
var errEnded = errors.New("the command has ended")

// goneTimeout bounds how long etcd gets, when elect ends, to confirm that nothing of it is left in the queue.
const goneTimeout = 2 * time.Second

// untilGone runs an elector. Once ctx has ended no command runs any more, and the elector waits only for etcd to confirm that
// it has left the queue. If that takes long, gone is false, and the elector goes on until this process ends.
func untilGone(ctx context.Context, run func() error) (gone bool, err error) {
	ran := make(chan error, 1)
	go func() { ran <- run() }() // until a TTL after ctx's end at the latest, or with the process
	select {
	case err = <-ran:
		return true, err
	case <-ctx.Done():
	}
	select {
	case err = <-ran:
		return true, err
	case <-time.After(goneTimeout):
		return false, nil
	}
}

func (u *under) elect(cmd *cobra.Command, etcd *connect.Config, name string, argv []string) error {
	if err := u.complete(cmd, argv[0]); err != nil {
		return err
	}
	path, in, client, err := prepare(cmd, etcd, argv[0])
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends anyway

	if err := wouldWaitForItself(in.ctx, client, name, false, etcd.DialTimeout); err != nil {
		return err
	}
	notice := newWaitNotice(client, etcd, name, u.owner)
	locks := etcdlock.New(client, append(notice.observe(), etcdlock.WithTTL(u.ttl), etcdlock.WithOwner(u.owner))...)
	gone := true // from the queue; if it is not, the elector uses the notice and the Client still
	defer func() {
		if gone {
			shut(locks)
		}
	}()
	elector := locks.Elector(name)
	var outcome supervise.Outcome
	lead := func(ctx context.Context, term *etcdlock.Held) (err error) {
		notice.end()
		in.pause()
		defer func() {
			in.resume()
			notice.begin(in.ctx) // the elector campaigns again, unless that ctx has ended
		}()
		if err := context.Cause(in.ctx); err != nil {
			return err
		}
		say(name, "leads with token %d, starts %s", term.Token(), filepath.Base(path))
		outcome, err = u.runUnder(term, name, path, argv, in.sigs, notice.why)
		switch {
		case err != nil:
		case outcome.Asked || outcome.Lost == nil:
			// Otherwise the elector would campaign again if the term was lost as well, or if
			// nobody knows that it lasted because etcd is away.
			in.cancel(errEnded)
			in.first = outcome.Asked // the next signal is the second one
			status := outcome.Status
			in.status = &status
		default:
			say(name, "%s has ended after the lead was lost (%v): waiting to lead again", filepath.Base(path), outcome.Lost)
		}
		return err
	}
	for {
		outcome = supervise.Outcome{}
		notice.begin(in.ctx)
		var err error
		if gone, err = untilGone(in.ctx, func() error { return elector.Run(in.ctx, lead) }); gone {
			notice.end()
		} else {
			say(name, "etcd does not answer: what it has of this command in the queue ends with the lease, at most a TTL from now")
		}
		var by signalled
		var start *supervise.StartError
		switch {
		case errors.Is(context.Cause(in.ctx), errEnded):
			return ended(path, outcome, nil)
		case errors.As(context.Cause(in.ctx), &by):
			return by
		case errors.As(err, &start):
			return ended(path, outcome, err)
		case err != nil:
			return err
		}
		// The command was ended just in time, so that the term was not lost.
	}
}
