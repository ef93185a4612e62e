package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

func listCommand(etcd *connect.Config) *cobra.Command {
	var output format
	var quiet bool
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `Lists the locks that somebody holds or waits for, and whose names start with PREFIX.
It reads the keys below PREFIX, and each lock's queue: give a PREFIX where etcd holds much else.`,
		Example: `  etcdlock ls jobs/
  etcdlock ls -o json jobs/ | jq -r 'select((.entries | length) > 10) | .name'
  etcdlock ls -q | xargs -n1 etcdlock doctor`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if quiet && output == asJSON {
				return errors.New("-q and -o json don't go together: choose one")
			}
			client, err := open(cmd, etcd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return list(cmd.Context(), client, prefix, output, quiet)
		},
	}
	output.addFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only, a line each")
	return cmd
}

// readers is how many queues are read at a time.
const readers = 8

func list(ctx context.Context, client *clientv3.Client, prefix string, output format, quiet bool) error {
	var names []string
	for name, err := range etcdlock.New(client).ListNames(ctx, prefix) {
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	if quiet {
		for _, name := range names {
			if _, err := fmt.Println(plain(name)); err != nil {
				return written(err)
			}
		}
		return nil
	}
	queues, err := inspectAll(ctx, client, names)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "HELD BY", "SINCE", "WAITING"}}
	now := time.Now()
	for _, q := range queues {
		switch {
		case len(q.Entries) == 0:
			continue // left since it was listed
		case output == asJSON:
			if err := printJSON(complete(q)); err != nil {
				return err
			}
			continue
		}
		who := owner(q.Entries[0])
		if n := len(q.Holders()); n > 1 {
			who += fmt.Sprintf(" and %d more", n-1)
		}
		rows = append(rows, []string{plain(q.Name), who, since(q.Entries[0], now), strconv.Itoa(len(q.Waiters()))})
	}
	if output == asJSON {
		return nil
	}
	if len(rows) == 1 {
		where := ""
		if prefix != "" {
			where = " whose name starts with " + strconv.Quote(prefix)
		}
		fmt.Fprintf(os.Stderr, "nobody holds or waits for a lock%s\n", where)
		return nil
	}
	_, err = fmt.Print(table(rows))
	return written(err)
}

// inspectAll reads the queues of many locks.
func inspectAll(ctx context.Context, client *clientv3.Client, names []string) ([]etcdlock.Queue, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queues := make([]etcdlock.Queue, len(names))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readers, len(names)) {
		wg.Go(func() { // until next is closed
			for i := range next {
				q, err := etcdlock.New(client).Inspect(ctx, names[i])
				if err != nil {
					cancel(err) // the first one counts
				}
				queues[i] = q
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return queues, nil
}
