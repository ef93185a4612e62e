// Package demo is `etcdlock demo`: processes that contend for a lock on a real
// etcd, watched from outside. What they did is checked afterwards against
// etcd's own history, so that it ends with an error if the locks were at fault.
//
//	command.go   the commands: demo, and its hidden worker
//	demo.go      the run of a demo, from etcd's start to its clean-up
//	phase.go     one lock and the processes that contend for it
//	message.go   what the demo and its worker processes say to each other
//	process.go   a worker process, from outside
//	worker.go    a worker process, from inside; section.go: what it does there
//	store.go     etcd, in this process or elsewhere
//	record.go    what etcd and the workers say has happened
//	turns.go     who held the lock together, and who waited behind
//	checks.go    what has to be true of that; checks_writes.go: more of it
//	story.go     the lines that tell it; board.go: the live view below them
package demo

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// Command is `etcdlock demo`.
func Command(etcd *connect.Config) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the locks at work: processes that contend, one that is killed, readers and writers",
		Long: `Starts an etcd inside this process, and worker processes that contend for a lock on it.
One is killed while it holds the lock. Then readers and writers share a read-write lock.
All that they did is checked against etcd's history; the exit status is 0 only if it was right.

With --endpoints or ETCDCTL_ENDPOINTS it uses a running etcd instead: all its keys are below
etcdlock-demo/ and a random name, and are removed at the end.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), *etcd, screen.New(os.Stdout))
		},
	}
}

// workerCommand is the name of the command with which the demo starts its
// worker processes.
const workerCommand = "demo-worker"

// WorkerCommand is what a worker process of the demo runs. Its argument is for
// people who look at the process list.
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
