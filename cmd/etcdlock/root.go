package main

import (
	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/demo"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "etcdlock",
		Short: "Fair locks on etcd",
		Long: `Runs commands under fair locks on etcd, and shows who holds them.

Where etcd is and who asks is said by the flags and variables that etcdctl has:
ETCDCTL_ENDPOINTS for --endpoints, ETCDCTL_CACERT for --cacert, and so on.`,
		Example: `  etcdlock demo
  etcdlock run jobs/report -- ./report.sh --all`,
		SilenceUsage:  true, // main prints an error in one line
		SilenceErrors: true,
	}
	etcd := &connect.Config{}
	etcd.AddFlags(root.PersistentFlags())
	show := demo.Command(etcd)
	show.PreRunE = func(cmd *cobra.Command, _ []string) error { return etcd.Complete(cmd.Flags()) }
	worker := demo.WorkerCommand()
	for _, cmd := range []*cobra.Command{show, worker} {
		cmd.RunE = interruptible(cmd.RunE)
	}
	root.AddCommand(runCommand(etcd), show, worker)
	return root
}

// open connects to etcd as cmd's flags and the environment say.
func open(cmd *cobra.Command, etcd *connect.Config) (*clientv3.Client, error) {
	if err := etcd.Complete(cmd.Flags()); err != nil {
		return nil, err
	}
	return etcd.Open(cmd.Context())
}
