package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock"
)

// A format is the value of --output.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
)

func (f *format) addFlag(cmd *cobra.Command) {
	*f = asTable
	cmd.Flags().VarP(f, "output", "o", "table (for people) or json (for programs)")
	cmd.Flags().VarP(f, "write-out", "w", "same as --output; etcdctl's name for it")
	cmd.Flags().Lookup("write-out").DefValue = "" // --help shows it at --output
	for _, flag := range []string{"output", "write-out"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions([]string{string(asTable), string(asJSON)}, cobra.ShellCompDirectiveNoFileComp))
	}
}

func (f *format) String() string { return string(*f) }

// Type is the name of the value in --help.
func (f *format) Type() string { return "format" }

// Set takes table or json.
func (f *format) Set(s string) error {
	switch format(s) {
	case asTable, asJSON:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("use %s or %s", asTable, asJSON)
}

// printJSON prints a value on one line.
func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	return written(e.Encode(v))
}

// complete makes sure that the entries are a list in JSON, also when there are none.
func complete(q etcdlock.Queue) etcdlock.Queue {
	if q.Entries == nil {
		q.Entries = []etcdlock.Entry{}
	}
	return q
}

func written(err error) error {
	if err != nil {
		return fmt.Errorf("can't write to standard output: %w", err)
	}
	return nil
}

// table aligns rows in columns. The first row is the header.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		_, _ = io.WriteString(w, strings.Join(r, "\t")+"\n") // into memory
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

// standing says in a few words whether a lock is held and how many wait.
func standing(q etcdlock.Queue) string {
	holds, waits := len(q.Holders()), len(q.Waiters())
	switch {
	case holds == 0:
		return "free"
	case holds == 1 && waits == 0:
		return "held, nobody waits"
	case waits == 0:
		return fmt.Sprintf("held by %d readers, nobody waits", holds)
	case holds == 1:
		return fmt.Sprintf("held, %d waiting", waits)
	}
	return fmt.Sprintf("held by %d readers, %d waiting", holds, waits)
}

// state says whether an entry holds the lock, or in which place it waits.
func state(q etcdlock.Queue, i int) string {
	if q.Entries[i].Holds {
		return "holds"
	}
	return "place " + strconv.Itoa(i-len(q.Holders())+1)
}

func kindOf(e etcdlock.Entry) string {
	if e.Read {
		return "shared"
	}
	return "exclusive"
}

// queued is the time since an entry came into the queue, by the clock of its own
// machine.
func queued(e etcdlock.Entry, now time.Time) string {
	if e.Queued.IsZero() {
		return "?"
	}
	return age(now.Sub(e.Queued))
}

// held is the time since the lock was granted. etcd does not store that moment.
// granted is when this command saw the grant. If it did not see it, the only honest
// answer is that the time is at most the time in the queue.
func held(e etcdlock.Entry, granted, now time.Time) string {
	switch {
	case !e.Holds:
		return "-"
	case !granted.IsZero():
		return age(now.Sub(granted))
	case e.Queued.IsZero() || e.Queued.After(now):
		return "?"
	}
	return "≤" + age(now.Sub(e.Queued))
}

// lease is what is left of an entry's lease, of what a renewal grants.
func lease(e etcdlock.Entry) string {
	switch {
	case e.Lease == 0:
		return "none"
	case e.GrantedTTL == 0:
		return "expired"
	}
	return fmt.Sprintf("%d of %ds", e.TTL/time.Second, e.GrantedTTL/time.Second)
}
