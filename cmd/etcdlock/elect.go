package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

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
		Short:                 "Run a command on one machine of many, and elsewhere when that fails",
		Long: `Start it on every machine: it waits until this one leads, and runs CMD. When the lead is lost
(etcd was away for too long, or somebody took it), CMD is ended as under etcdlock run, before
another machine can lead, and it waits again. So CMD runs once, for as long as any machine is
well.

When CMD ends by itself, the lead is given up, another machine leads, and this command ends with
CMD's exit status: let the one who started it (systemd, Kubernetes) start it anew.

The signals, CMD's environment, and --ttl and --grace are as for etcdlock run.`,
		Example: `  # on each of three machines: one runs the scheduler
  etcdlock elect services/scheduler -- ./scheduler --port 8080
  # as a unit of systemd, with Restart=always, and KillMode=mixed so that CMD gets SIGTERM once
  ExecStart=etcdlock elect services/scheduler -- /usr/bin/scheduler`,
		Args:        nameAndCommand,
		Annotations: map[string]string{runsCommand: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return u.elect(cmd, etcd, args[0], args[1:])
		},
	}
	u.addFlags(cmd)
	return cmd
}

// errEnded ends the ctx of an elector whose command has ended, by itself or because
// it was asked to.
var errEnded = errors.New("the command has ended")

func (u *under) elect(cmd *cobra.Command, etcd *connect.Config, name string, argv []string) error {
	if err := u.complete(cmd, argv[0]); err != nil {
		return err
	}
	path, in, client, err := prepare(cmd, etcd, argv[0])
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends anyway

	locks := etcdlock.New(client, etcdlock.WithTTL(u.ttl), etcdlock.WithOwner(u.owner))
	defer shut(locks)
	elector := locks.Elector(name)
	var outcome supervise.Outcome
	lead := func(ctx context.Context, term *etcdlock.Held) (err error) {
		in.pause()
		defer in.resume()
		if err := context.Cause(in.ctx); err != nil {
			return err
		}
		say(name, "leads with token %d: %s is started", term.Token(), filepath.Base(path))
		outcome, err = u.runUnder(term, name, path, argv, in.sigs)
		switch {
		case err != nil:
		case outcome.Asked || outcome.Lost == nil:
			// Or the elector would campaign again, if the term was lost as well, or is not
			// known to have lasted since etcd is away.
			in.cancel(errEnded)
			in.first = outcome.Asked // the next signal is the second one
		default:
			say(name, "%s has ended and does not lead any more (%v): waiting to lead again", filepath.Base(path), outcome.Lost)
		}
		return err
	}
	for {
		outcome = supervise.Outcome{}
		err := elector.Run(in.ctx, lead)
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
			return fmt.Errorf("%s: %w", name, err)
		}
		// The command was ended in time, and the term just so not lost.
	}
}
