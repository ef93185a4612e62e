package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/demo"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// launch starts the demo's etcd.
func launch(dir string) (demo.Server, error) { return etcdtest.New(dir, etcdtest.WithFsync()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "etcdlock",
		Short: "Fair locks on etcd",
		Long: `Runs commands under fair locks on etcd, and shows who holds these locks.

The flags for etcd's address and credentials are etcdctl's, and so are their variables:
ETCDCTL_ENDPOINTS for --endpoints, ETCDCTL_CACERT for --cacert, and so on. A duration is a
number of seconds (10) or has a unit (90s, 5m).`,
		Example: `  etcdlock demo
  etcdlock run jobs/report -- ./report.sh --all
  etcdlock elect services/scheduler -- ./scheduler
  etcdlock show --watch jobs/report`,
		Version:       version(),
		SilenceUsage:  true, // main prints errors, in one line each
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(badFlag)
	etcd := &connect.Config{}
	etcd.AddFlags(root.PersistentFlags())
	demonstrate := demo.Command(etcd, launch)
	demonstrate.PreRunE = func(cmd *cobra.Command, _ []string) error { return etcd.Complete(cmd.Flags()) }
	run, elect := runCommand(etcd), electCommand(etcd)
	looks := []*cobra.Command{listCommand(etcd), showCommand(etcd), breakCommand(etcd), doctorCommand(etcd)}
	others := append(slices.Clone(looks), demonstrate, demo.WorkerCommand())
	for _, cmd := range others { // run and elect pass signals on to their command
		cmd.RunE = interruptible(cmd.RunE)
	}
	for _, cmd := range append(slices.Clone(looks), run, elect) {
		cmd.ValidArgsFunction = completeNames(etcd)
	}
	root.AddCommand(run, elect)
	root.AddCommand(others...)
	return root
}

// open connects to the etcd that cmd's flags and the environment name.
func open(cmd *cobra.Command, etcd *connect.Config) (*clientv3.Client, error) {
	if err := etcd.Complete(cmd.Flags()); err != nil {
		return nil, err
	}
	return etcd.Open(cmd.Context())
}

// completeTimeout bounds how long a shell waits after the tab key.
const completeTimeout = time.Second

// completeNames completes the names of locks, and the entries that break may remove.
func completeNames(etcd *connect.Config) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		entries := len(args) == 1 && cmd.Name() == "break"
		if len(args) > 0 && !entries {
			return nil, cobra.ShellCompDirectiveDefault // CMD and its files
		}
		if etcd.Complete(cmd.Flags()) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		etcd.DialTimeout = completeTimeout
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		client, err := etcd.Open(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = client.Close() }() // the process ends anyway
		var found []cobra.Completion
		if entries {
			q, _ := meant(ctx, looks(client).Inspect, args[0]) // after an error there is nothing to complete
			for i, e := range q.Entries {
				found = append(found, cobra.CompletionWithDesc(ref(e), owner(e)+", "+state(q, i)))
			}
			return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		}
		for name, err := range etcdlock.New(client).ListNames(ctx, begun) {
			if err != nil || len(found) == 1000 {
				break
			}
			if shown(name) == name {
				found = append(found, name)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
