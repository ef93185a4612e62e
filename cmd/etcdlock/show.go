package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
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
		Args: wants(lockName),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := open(cmd, etcd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			if watch {
				return follow(cmd.Context(), client, args[0], output)
			}
			q, err := etcdlock.Inspect(cmd.Context(), client, args[0])
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
	cmd.Flags().BoolVar(&watch, "watch", false, "go on showing it as it changes")
	return cmd
}

// showQueue is a queue for people.
func showQueue(q etcdlock.Queue, now time.Time) string {
	title := fmt.Sprintf("%s: %s\n", plain(q.Name), standing(q))
	if len(q.Entries) == 0 {
		return title
	}
	rows := [][]string{{"STATE", "KIND", "QUEUED", "HELD", "LEASE", "OWNER", "ENTRY"}}
	for i, e := range q.Entries {
		rows = append(rows, []string{state(q, i), kindOf(e), queued(e, now), held(e, time.Time{}, now), lease(e), owner(e), ref(e)})
	}
	return title + "\n" + table(rows)
}
