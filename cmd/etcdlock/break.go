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
		Long: `Removes one entry from the queue of the lock NAME, and no later one of the same owner or key.
KEY@TOKEN is what etcdlock show has as ENTRY.

A holder that can reach etcd is told within half a second, and etcdlock run ends its command then;
but the next one in line has the lock at once. So for a moment two may be at work, or for long if
the holder is cut off or hangs: see to it first that it has ended.`,
		Example: `  etcdlock show jobs/report
  etcdlock break jobs/report jobs/report/694d8b2c1f03a51e@1201`,
		Args: cobra.ExactArgs(2),
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
		return "", 0, fmt.Errorf("%q is no KEY@TOKEN: copy one from the column ENTRY of etcdlock show NAME", s)
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
		if !yes {
			if err := confirm(ctx, fmt.Sprintf("%s: %s %s. Take it out of the queue?", plain(name), describe(e, time.Now()), what)); err != nil {
				return err
			}
		}
		if err := etcdlock.New(client).Break(ctx, e); err != nil {
			return err
		}
		_, err := fmt.Printf("%s: %s is out of the queue\n", plain(name), ref(e))
		return written(err)
	}
	return fmt.Errorf("%s: %s@%d is not in the queue (any more): it was given back, has expired or was broken", plain(name), plain(key), token)
}

// confirm asks a question and returns an error unless the answer is yes.
func confirm(ctx context.Context, question string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("there is nobody to ask, standard input is no terminal: say --yes to break the lock all the same")
	}
	fmt.Fprintf(os.Stderr, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() { // until there is an answer, or the process ends
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // its end is no yes
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
