package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/term"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// A breaker is what the flags of `etcdlock break` say.
type breaker struct {
	etcd *connect.Config
	yes  bool
	data string // the key that may be data
}

func breakCommand(etcd *connect.Config) *cobra.Command {
	b := &breaker{etcd: etcd}
	cmd := &cobra.Command{
		Use:   "break NAME KEY@TOKEN",
		Short: "Take a lock away from its holder, or a waiter out of the queue",
		Long: `Removes one entry from the queue of the lock NAME. KEY@TOKEN names that entry and no later one;
copy it from the column ENTRY of etcdlock show.

The next waiter gets the lock at once. A holder that can reach etcd hears of it within half a
second, and etcdlock run then ends its command. So for a moment two may work at the same time.
They may do so for long if the holder hangs or can't reach etcd, or if it is etcdctl lock or uses
etcd's concurrency package, which don't watch their entries. End such a holder first.

An entry that has no lease and was not written by this package looks like data that somebody keeps
under the name of a lock. To break such an entry is to delete the data. So break shows the value, and wants
the key typed in full, or in --delete-data; --yes is not enough.`,

		Example: `  etcdlock show jobs/report
  etcdlock break jobs/report jobs/report/694d8b2c1f03a51e@1201
  etcdlock break orders orders/4711@9576 --delete-data orders/4711`,
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
			return breakLock(cmd.Context(), client, args[0], key, token, b)
		},
	}
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "don't ask")
	cmd.Flags().StringVar(&b.data, "delete-data", "", "delete this key, also if it looks like data")
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

func breakLock(ctx context.Context, client *clientv3.Client, name, key string, token int64, b *breaker) error {
	bounded, cancel := b.etcd.Bound(ctx)
	q, err := meant(bounded, looks(client).Inspect, name)
	cancel()
	if err != nil {
		return err
	}
	for i, e := range q.Entries {
		if e.Token != token || e.Key != key {
			continue
		}
		if e.Data {
			if err := b.confirmData(ctx, e); err != nil {
				return err
			}
			return b.remove(ctx, client, e)
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
		case !b.yes:
			if err := confirm(ctx, fmt.Sprintf("%s: %s Take it out of the queue?", shown(name), what)); err != nil {
				return err
			}
		case deaf(e):
			say(name, "%s", what)
		}
		return b.remove(ctx, client, e)
	}
	return notQueued(q, key, token)
}

// notQueued says why there is nothing to break: most often, KEY@TOKEN was copied from somewhere else.
func notQueued(q etcdlock.Queue, key string, token int64) error {
	at := fmt.Sprintf("%s: %s@%d is not in the queue", shown(q.Name), shown(key), token)
	i := slices.IndexFunc(q.Entries, func(e etcdlock.Entry) bool { return e.Key == key })
	switch {
	case i >= 0:
		return fmt.Errorf("%s: that key has token %d now, so it is another entry; etcdlock show %s has the queue as it is", at, q.Entries[i].Token, argument(q.Name))
	case !strings.HasPrefix(key, q.Name+"/"):
		return fmt.Errorf("%s: it is no entry of this lock; copy NAME and KEY@TOKEN from the same etcdlock show", at)
	}
	return fmt.Errorf("%s (any more): it was released, it expired, or somebody broke it", at)
}

func (b *breaker) remove(ctx context.Context, client *clientv3.Client, e etcdlock.Entry) error {
	ctx, cancel := b.etcd.Bound(ctx) // without the time that somebody has taken to answer
	defer cancel()
	if err := looks(client).Break(ctx, e); err != nil {
		if ctx.Err() != nil { // etcd may carry it out, or has
			err = fmt.Errorf("%w; whether %s was removed is not known: etcdlock show %s says it", context.Cause(ctx), shown(ref(e)), argument(e.Name))
		}
		return err
	}
	_, err := fmt.Printf("%s: %s is out of the queue\n", shown(e.Name), shown(ref(e)))
	return written(err)
}

// confirmData returns an error unless somebody has named the key in full, by the flag or at the terminal.
func (b *breaker) confirmData(ctx context.Context, e etcdlock.Entry) error {
	what := fmt.Sprintf("%s: %s. Its value is %s.", shown(e.Name), looksLikeData(e), data(e))
	switch {
	case b.data == e.Key:
		return nil
	case b.data != "":
		return fmt.Errorf("%s --delete-data names another key: %s", what, shown(b.data))
	case !term.IsTerminal(int(os.Stdin.Fd())):
		return fmt.Errorf("%s To break it is to delete it; add --delete-data %s for that", what, quote(e.Key))
	}
	answer, err := answer(ctx, what+" To delete it for good, type its key: ")
	if err == nil && answer != e.Key && answer != quote(e.Key) {
		err = errNothingDone
	}
	return err
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
	answer, err := answer(ctx, question+" [y/N] ")
	if err != nil {
		return err
	}
	switch strings.ToLower(answer) {
	case "y", "yes":
		return nil
	}
	return errNothingDone
}

var errNothingDone = errors.New("nothing was done")

// answer asks a question at the terminal.
func answer(ctx context.Context, question string) (string, error) {
	fmt.Fprint(os.Stderr, question)
	answers := make(chan string, 1)
	go func() { // ends with the answer, or with the process
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // the end of the input is an empty answer
		answers <- line
	}()
	select {
	case a := <-answers:
		return strings.TrimSpace(a), nil
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr)
		return "", context.Cause(ctx)
	}
}
