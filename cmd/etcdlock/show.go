package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

func showCommand(etcd *connect.Config) *cobra.Command {
	var output format
	var goesOn bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `Shows the queue of the lock NAME: who holds it, and who waits in which place.

QUEUED is the time since an entry came into the queue, by the clock of its own machine. HELD is
the time since the lock was granted. etcd does not store that time: --watch counts from when it saw
the grant, and otherwise ≤ says that HELD is at most the time in the queue. LEASE is what is left of the
lease. etcdlock break takes an ENTRY. etcd's own clients (etcdctl lock) write neither OWNER nor a time.
OWNER: VALUE has what a candidate of an election publishes.
OWNER (with ...) locks these names too, in one acquisition (a Multi) that has one token in all of them.

A NAME that ends in "/" is meant as typed, and without the "/" only if nobody uses it as typed.

With --watch, show goes on until Ctrl-C. On a terminal it draws in place, elsewhere it prints a block
for each change, or with -o json a line.`,
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
			if goesOn {
				return follow(cmd.Context(), client, etcd, args[0], output)
			}
			ctx, cancel := etcd.Bound(cmd.Context())
			defer cancel()
			q, err := meant(ctx, looks(client).Inspect, args[0])
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
	cmd.Flags().BoolVar(&goesOn, "watch", false, "go on as the queue changes")
	return cmd
}

// dataIn has a line for each entry that looks like data.
func dataIn(q etcdlock.Queue) string {
	lines := ""
	for _, e := range q.Entries {
		if e.Data {
			lines += looksLikeData(e) + "\n"
		}
	}
	return lines
}

// partsOf has a line for each holder that may still wait for its other names.
func partsOf(q etcdlock.Queue) string {
	lines := ""
	for _, e := range q.Holders() {
		if len(others(e)) > 0 {
			lines += fmt.Sprintf("%s works only when it has all of its names: etcdlock doctor %s says whether it has\n", who(e), argument(q.Name))
		}
	}
	return lines
}

// several has a line for a name that nobody uses itself, if metrics may call several locks by it.
func several(q etcdlock.Queue) string {
	if !strings.Contains(q.Name, ", ") && len(q.Foreign) == 0 {
		return ""
	}
	return fmt.Sprintf("if metrics or the log call several locks so: etcdlock doctor %s looks at them\n", argument(q.Name))
}

// showQueue writes a queue for people.
func showQueue(q etcdlock.Queue, now time.Time) string {
	title := fmt.Sprintf("%s: %s\n", shown(q.Name), standing(q))
	if len(q.Entries) == 0 {
		return title + several(q)
	}
	rows := [][]string{{"STATE", "KIND", "QUEUED", "HELD", "LEASE", "OWNER", "ENTRY"}}
	for i, e := range q.Entries {
		rows = append(rows, []string{state(q, i), kindOf(e), queued(e, now), held(e, time.Time{}, now), lease(e), party(e), quote(ref(e))})
	}
	return title + "\n" + table(rows) + dataIn(q) + partsOf(q)
}
