package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

func breakCommand(etcd *connect.Config) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "break NAME KEY@TOKEN",
		Short: "Take a lock away from its holder, or a waiter out of the queue",
		Long: `Removes one entry from the queue of the lock NAME. KEY@TOKEN names that entry and no later one;
copy it from the column ENTRY of etcdlock show.

The next waiter gets the lock at once. A holder that can reach etcd hears of it within half a
second, and etcdlock run then ends its command. So for a moment two may work at the same time.
They may do so for long if the holder hangs or can't reach etcd, or if it is etcdctl lock or uses
etcd's concurrency package, which don't watch their entries. End such a holder first.`,
		Example: `  etcdlock show jobs/report
  etcdlock break jobs/report jobs/report/694d8b2c1f03a51e@1201`,
		Args: wants(lockName, "KEY@TOKEN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, token, err := parseRef(args[1])
			if err != nil {
				return err
			}
			client, err := open(cmd, etcd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			return breakLock(cmd.Context(), client, args[0], key, token, yes)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	return cmd
}

// parseRef parses KEY@TOKEN.
func parseRef(s string) (key string, token int64, err error) {
	i := strings.LastIndexByte(s, '@')
	if i > 0 {
		token, err = strconv.ParseInt(s[i+1:], 10, 64)
	}
	if i <= 0 || err != nil || token <= 0 {
		return "", 0, fmt.Errorf("%q is not of the form KEY@TOKEN: copy one from the column ENTRY of etcdlock show NAME", s)
	}
	return s[:i], token, nil
}

func breakLock(ctx context.Context, client *clientv3.Client, name, key string, token int64, yes bool) error {
	q, err := etcdlock.New(client).Inspect(ctx, name)
	if err != nil {
		return err
	}
	for i, e := range q.Entries {
		if e.Token != token || e.Key != key {
			continue
		}
		what := "holds the lock"
		if !e.Holds {
			what = "waits in " + state(q, i)
		}
		what = describe(e, time.Now()) + " " + what + "."
		if deaf(e) {
			what += " It will not hear of this, and goes on as if it held the lock: it is etcdctl lock, v3lock or uses etcd's concurrency package, " +
				"which don't watch their entries. End it first."
		}
		switch {
		case !yes:
			if err := confirm(ctx, fmt.Sprintf("%s: %s Take it out of the queue?", plain(name), what)); err != nil {
				return err
			}
		case deaf(e):
			say(plain(name), "%s", what)
		}
		if err := etcdlock.New(client).Break(ctx, e); err != nil {
			return err
		}
		_, err := fmt.Printf("%s: %s is out of the queue\n", plain(name), ref(e))
		return written(err)
	}
	return fmt.Errorf("%s: %s@%d is not in the queue (any more): it was released, it expired, or somebody broke it", plain(name), plain(key), token)
}

// deaf reports whether an entry belongs to a holder that does not learn of its loss.
// Every entry of this package has the time at which it was queued, so one without
// it is of another kind. A waiter of any kind learns of its loss when its turn
// comes. A key without a lease most likely has no process behind it.
func deaf(e etcdlock.Entry) bool { return e.Holds && e.Queued.IsZero() && hasLease(e) }

// confirm asks a question, and returns an error unless the answer is yes.
func confirm(ctx context.Context, question string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("standard input is not a terminal, so nobody can be asked: add --yes to break the lock without a question")
	}
	fmt.Fprintf(os.Stderr, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() { // ends with the answer, or with the process
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // the end of the input counts as no
		answers <- line
	}()
	select {
	case a := <-answers:
		switch strings.ToLower(strings.TrimSpace(a)) {
		case "y", "yes":
			return nil
		}
		return errors.New("nothing was done")
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr)
		return context.Cause(ctx)
	}
}
