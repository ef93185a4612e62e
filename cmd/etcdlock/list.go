package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// A lister is `etcdlock ls`.
type lister struct {
	output           format
	quiet, zero, all bool
}

func listCommand(etcd *connect.Config) *cobra.Command {
	l := &lister{}
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long: `Lists the locks that somebody holds or waits for and whose names start with PREFIX.
QUEUED is how long ago the holder came into the queue.

Any key NAME/HEX is an entry of the lock NAME by its form. Where no such key has a lease, it is
most likely something else, so ls leaves NAME out unless --all is given. ls also leaves out names that
end in "/", and says so if PREFIX is such a name.

ls reads all keys that start with PREFIX, and the queue of each lock. Give a PREFIX where etcd
holds much else, or where the user's role covers only a part of the keys.`,
		Example: `  etcdlock ls jobs/
  etcdlock ls -o json jobs/ | jq -r 'select((.entries | length) > 10) | .name'
  etcdlock ls -0 | xargs -0 -n1 etcdlock doctor --`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return misused(cmd, "%q is one argument too many", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if l.quiet = l.quiet || l.zero; l.quiet && l.output == asJSON {
				return errors.New("-q or -0 and -o json exclude each other: choose one")
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
			ctx, cancel := etcd.Bound(cmd.Context())
			defer cancel()
			names, err := listNames(ctx, client, prefix)
			if err != nil {
				return suggestPrefix(ctx, client, etcd.User, prefix, err)
			}
			return l.list(ctx, client, prefix, names)
		},
	}
	l.output.addFlag(cmd)
	cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, "names only, one on each line")
	cmd.Flags().BoolVarP(&l.zero, "null", "0", false, "names only, with a NUL after each, for xargs -0")
	cmd.Flags().BoolVarP(&l.all, "all", "a", false, "also names whose keys have no lease")
	return cmd
}

func listNames(ctx context.Context, client *clientv3.Client, prefix string) (names []string, err error) {
	for name, err := range etcdlock.New(client).ListNames(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (l *lister) list(ctx context.Context, client *clientv3.Client, prefix string, names []string) error {
	queues, err := inspectAll(ctx, client, names)
	if err != nil {
		return err
	}
	// Everybody may have left a queue since it was listed.
	queues = slices.DeleteFunc(queues, func(q etcdlock.Queue) bool { return len(q.Entries) == 0 })
	found := len(queues)
	if !l.all {
		queues = slices.DeleteFunc(queues, func(q etcdlock.Queue) bool { return !slices.ContainsFunc(q.Entries, hasLease) })
	}
	if err := l.print(queues, prefix); err != nil {
		return err
	}
	if n := found - len(queues); n > 0 {
		fmt.Fprintf(os.Stderr, "left out %s without a lease on any key, most likely not locks; --all lists them\n", count(n, "name"))
	}
	if endsInSlash(prefix) { // whose own lock is no more listed than others whose names end so
		if q, err := glance(ctx, client, prefix); err == nil && slices.ContainsFunc(q.Entries, hasLease) {
			fmt.Fprintf(os.Stderr, "left out %s itself, because the name ends in \"/\": %s; etcdlock show %s\n", shown(prefix), standing(q), argument(prefix))
		}
	}
	return nil
}

func hasLease(e etcdlock.Entry) bool { return e.Lease != clientv3.NoLease }

func (l *lister) print(queues []etcdlock.Queue, prefix string) error {
	rows := [][]string{{"NAME", "HELD BY", "QUEUED", "WAITING"}}
	now := time.Now()
	for _, q := range queues {
		first, err := q.Entries[0], error(nil)
		switch {
		case l.zero:
			_, err = fmt.Print(q.Name + "\x00")
			err = written(err)
		case l.quiet && !term.IsTerminal(int(os.Stdout.Fd())):
			_, err = fmt.Println(q.Name) // a program reads it
			err = written(err)
		case l.quiet:
			_, err = fmt.Println(shown(q.Name))
			err = written(err)
		case l.output == asJSON:
			err = printJSON(complete(q))
		}
		if err != nil {
			return err
		}
		who := party(first)
		if !hasLease(first) {
			who += " (no lease)"
		}
		if n := len(q.Holders()); n > 1 {
			who += fmt.Sprintf(" and %d more", n-1)
		}
		rows = append(rows, []string{shown(q.Name), who, queued(first, now), strconv.Itoa(len(q.Waiters()))})
	}
	switch {
	case l.quiet, l.output == asJSON:
	case len(queues) > 0:
		_, err := fmt.Print(table(rows))
		return written(err)
	case prefix == "":
		fmt.Fprintln(os.Stderr, "nobody holds or waits for a lock"+unlisted)
	default:
		fmt.Fprintf(os.Stderr, "nobody holds or waits for a lock whose name starts with %q%s\n", prefix, unlisted)
	}
	return nil
}

// unlisted follows what would be false otherwise.
const unlisted = `; names that end in "/" are not listed`

// readers is how many queues are read at the same time.
const readers = 8

// inspectAll reads the queues of many locks.
func inspectAll(ctx context.Context, client *clientv3.Client, names []string) ([]etcdlock.Queue, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queues := make([]etcdlock.Queue, len(names))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readers, len(names)) {
		wg.Go(func() { // ends when next is closed
			for i := range next {
				q, err := etcdlock.New(client).Inspect(ctx, names[i])
				if err != nil {
					cancel(err) // only the first error counts
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
