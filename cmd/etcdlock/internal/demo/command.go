// Package demo is `etcdlock demo`: processes contend for a lock on a real etcd, and the
// demo watches them from outside. Afterwards it checks what they did against
// etcd's own history, and ends with an error if the locks were at fault.
//
//	command.go   the commands: demo, and its hidden worker
//	demo.go      the run of a demo, from starting etcd to cleaning up
//	phase.go     one lock and the processes that contend for it
//	message.go   the messages between the demo and its worker processes
//	process.go   a worker process, from outside
//	worker.go    a worker process, from inside; section.go: its critical section
//	store.go     etcd, in this process or elsewhere
//	record.go    what happened, according to etcd and to the workers
//	turns.go     who held the lock together, and who waited behind them
//	checks.go    what must be true of the record; checks_writes.go: the rest of it
//	story.go     the lines that tell what happens; board.go: the live view below them
package demo

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// Command is `etcdlock demo`. It has launch start an etcd, unless the flags name one.
func Command(etcd *connect.Config, launch Launch) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the locks at work: processes contend, one is killed, readers and writers share",
		Long: `Starts an etcd inside this process, and worker processes that contend for a lock on it. One of
them is killed while it holds the lock. Then readers and writers share a read-write lock. At the
end everything that they did is checked against etcd's history. The exit status is 0 only if all
was right.

With --endpoints or ETCDCTL_ENDPOINTS it uses a running etcd. All its keys are below
etcdlock-demo/ and a random name, and it removes them at the end.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), *etcd, launch, screen.New(os.Stdout))
		},
	}
}

// workerCommand is the name of the command for the demo's worker processes.
const workerCommand = "demo-worker"

// WorkerCommand is the command of a worker process. Its argument only shows in the
// process list.
func WorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand + " NAME",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return work(cmd.Context(), os.Stdin, os.Stdout)
		},
	}
}
