package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/screen"
)

// A finding is one thing that etcdlock doctor has to say.
type finding struct {
	Attention bool   `json:"attention"` // somebody should do something
	What      string `json:"what"`
	Do        string `json:"do,omitempty"`
}

func doctorCommand(etcd *connect.Config) *cobra.Command {
	var output format
	var maxHold time.Duration
	cmd := &cobra.Command{
		Use:   "doctor NAME",
		Short: "Say what is wrong with a lock, and what to do about it",
		Long: `Looks for what keeps the lock NAME from being had, or may soon: members of etcd that don't
answer or complain, entries without a lease, leases that nobody renews, holders that have been
in the queue for longer than --max-hold, clocks that differ, keys that are no entries.

It looks at the leases twice, some seconds apart. It changes nothing. The exit status is 2 if
something needs attention.`,
		Example: `  etcdlock doctor jobs/report
  etcdlock doctor --max-hold 1h jobs/report || page-somebody`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if maxHold < 0 {
				return fmt.Errorf("--max-hold %v: it can't be negative", maxHold)
			}
			client, err := open(cmd, etcd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the process ends anyway
			d := doctor{client: client, etcd: etcd, maxHold: maxHold}
			return d.run(cmd.Context(), args[0], output)
		},
	}
	output.addFlag(cmd)
	cmd.Flags().DurationVar(&maxHold, "max-hold", 0, "how long a holder may be in the queue before it needs attention (default: any time)")
	return cmd
}

type doctor struct {
	client   *clientv3.Client
	etcd     *connect.Config
	maxHold  time.Duration
	findings []finding
}

func (d *doctor) attention(do, what string, args ...any) {
	d.findings = append(d.findings, finding{true, fmt.Sprintf(what, args...), do})
}

func (d *doctor) note(what string, args ...any) {
	d.findings = append(d.findings, finding{What: fmt.Sprintf(what, args...)})
}

func (d *doctor) run(ctx context.Context, name string, output format) error {
	d.members(ctx)
	q, err := etcdlock.New(d.client).Inspect(ctx, name)
	if err != nil {
		return err
	}
	now := time.Now()
	d.noLease(q)
	d.tooOld(q, now)
	if err := d.leases(ctx, q); err != nil {
		return err
	}
	d.clocks(q, now)
	d.foreign(q)
	needs := slices.ContainsFunc(d.findings, func(f finding) bool { return f.Attention })
	if output == asJSON {
		err = printJSON(struct {
			Name      string    `json:"name"`
			Revision  int64     `json:"revision"`
			Attention bool      `json:"attention"`
			Findings  []finding `json:"findings"`
		}{q.Name, q.Revision, needs, append([]finding{}, d.findings...)})
	} else {
		err = d.print(q, now, needs)
	}
	if err == nil && needs {
		err = ending{status: statusAttention}
	}
	return err
}

func (d *doctor) print(q etcdlock.Queue, now time.Time, needs bool) error {
	view := screen.New(os.Stdout)
	title := screen.Line{screen.Bold(plain(q.Name)), screen.Plain(": " + standing(q))}
	if len(q.Entries) > 0 {
		title = append(title, screen.Plain("; first is "+describe(q.Entries[0], now)))
	}
	view.Print(title)
	for _, f := range d.findings {
		if f.Attention {
			view.Print(screen.Line{screen.Red("ATTENTION  "), screen.Plain(f.What)}, screen.Text("           "+f.Do))
		}
	}
	for _, f := range d.findings {
		if !f.Attention {
			view.Print(screen.Line{screen.Dim("note       "), screen.Plain(f.What)})
		}
	}
	if !needs {
		view.Print(screen.Line{screen.Green("ok         "), screen.Plain("nothing needs attention")})
	}
	view.Close()
	return written(view.Err())
}

// members asks each member how it is.
func (d *doctor) members(ctx context.Context) {
	versions := make(map[string][]string)
	for _, endpoint := range d.client.Endpoints() {
		bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
		began := time.Now()
		s, err := d.client.Status(bounded, endpoint)
		took := time.Since(began)
		cancel()
		if err != nil {
			d.attention("locks go on while more than half of the members are well; see to it that this one comes back",
				"etcd's member at %s does not answer: %v", endpoint, err)
			continue
		}
		versions[s.Version] = append(versions[s.Version], endpoint)
		switch {
		case s.Leader == 0:
			d.attention("while more than half of the members don't see each other, locks can neither be taken nor renewed: look at their network and logs",
				"etcd's member at %s knows no leader", endpoint)
		case s.DbSizeQuota > 0 && s.DbSize > s.DbSizeQuota/10*9:
			d.attention("compact and defragment it (etcdctl compact, etcdctl defrag): at its quota it refuses every lock",
				"etcd's member at %s has used %d of %d MiB", endpoint, s.DbSize>>20, s.DbSizeQuota>>20)
		}
		for _, e := range s.Errors {
			d.attention("until it is mended, locks may be refused: see etcdctl alarm list", "etcd's member at %s says: %s", endpoint, plain(e))
		}
		if took > 500*time.Millisecond {
			d.note("etcd's member at %s took %v to answer", endpoint, took.Round(time.Millisecond))
		}
	}
	var facts []string
	for v, at := range versions {
		facts = append(facts, fmt.Sprintf("%s (%d of %d members)", v, len(at), len(d.client.Endpoints())))
	}
	slices.Sort(facts)
	if len(facts) > 1 {
		d.note("the members run different versions of etcd: %s", strings.Join(facts, ", "))
	} else if len(facts) == 1 {
		d.note("etcd %s", facts[0])
	}
}

func (d *doctor) noLease(q etcdlock.Queue) {
	for i, e := range q.Entries {
		if e.Lease == 0 {
			d.attention(breakHint(e), "%s (%s) has no lease: it stays until somebody removes it, even if its owner is long gone", ref(e), state(q, i))
		}
	}
}

func breakHint(e etcdlock.Entry) string {
	return fmt.Sprintf("if its owner is not at work: etcdlock break %s %s", quote(e.Name), quote(ref(e)))
}

// quote makes a word for a shell.
func quote(s string) string {
	s = plain(s)
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/@._-:+,=%", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (d *doctor) tooOld(q etcdlock.Queue, now time.Time) {
	for _, e := range q.Holders() {
		if d.maxHold > 0 && !e.Queued.IsZero() && now.Sub(e.Queued) > d.maxHold {
			d.attention("look at what it does. "+upper(breakHint(e)), "%s holds the lock, and came %s ago, longer than %v", owner(e), age(now.Sub(e.Queued)), d.maxHold)
		}
		if e.GrantedTTL > time.Minute {
			d.note("if %s dies, the lock stays taken for up to %v: that is its lease", owner(e), e.GrantedTTL)
		}
	}
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// watchLeases bounds the time between the two looks at the leases: enough for a
// TTL of 10 s. A longer one is judged only if it should have been renewed by then.
const watchLeases = 6 * time.Second

// leases looks for those that nobody renews. Whoever renews does it each third of
// the TTL, so that two thirds are always left; etcd tells whole seconds. One
// that has less, and does not get more, is not renewed.
func (d *doctor) leases(ctx context.Context, q etcdlock.Queue) error {
	wait := time.Duration(0)
	for _, e := range q.Entries {
		if need := e.TTL - overdueBelow(e) + time.Second; e.Lease != 0 && need <= watchLeases {
			wait = max(wait, need, 1500*time.Millisecond)
		}
	}
	if wait == 0 {
		return nil
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	later, err := etcdlock.New(d.client).Inspect(ctx, q.Name)
	if err != nil {
		return err
	}
	for _, e := range q.Entries {
		i := slices.IndexFunc(later.Entries, func(l etcdlock.Entry) bool { return l.Key == e.Key && l.Token == e.Token })
		if e.Lease == 0 {
			continue
		}
		if i < 0 {
			if overdue(e) {
				d.note("the lease of %s was not renewed, and its entry went while this command looked: its process had died, stopped or been cut off", owner(e))
			}
			continue
		}
		if l := later.Entries[i]; overdue(l) && l.TTL < e.TTL {
			d.attention(fmt.Sprintf("nothing: its entry goes by itself in %v. Should its owner be at work all the same, it is cut off from etcd", l.TTL),
				"nobody renews the lease of %s (%s): of %v it has %v left; its process is dead, stopped or cut off", owner(l), state(later, i), l.GrantedTTL, l.TTL)
		}
	}
	return nil
}

// overdueBelow is the time left below which a lease should have been renewed
// some time ago.
func overdueBelow(e etcdlock.Entry) time.Duration { return e.GrantedTTL*2/3 - 1500*time.Millisecond }

func overdue(e etcdlock.Entry) bool { return e.TTL < overdueBelow(e) }

// skew is how much clocks may differ without being worth a word.
const skew = 2 * time.Second

// clocks compares what machines say of the time with the order in which they came.
func (d *doctor) clocks(q etcdlock.Queue, now time.Time) {
	var last etcdlock.Entry
	for _, e := range q.Entries {
		switch {
		case e.Queued.IsZero():
			continue
		case e.Queued.Sub(now) > skew:
			d.note("the clock of %s is %s ahead of this machine's; the order of the queue does not hang on clocks, but its times do", owner(e), age(e.Queued.Sub(now)))
		case !last.Queued.IsZero() && last.Queued.Sub(e.Queued) > skew:
			d.note("%s came before %s, but its clock says %s later: the clocks of their machines differ; the order of the queue does not hang on them",
				owner(last), owner(e), age(last.Queued.Sub(e.Queued)))
		}
		last = e
	}
}

func (d *doctor) foreign(q etcdlock.Queue) {
	const some = 3
	if n := len(q.Foreign); n > 0 {
		var keys []string
		for _, k := range q.Foreign[:min(n, some)] {
			keys = append(keys, plain(k))
		}
		if n > some {
			keys = append(keys, fmt.Sprintf("and %d more", n-some))
		}
		d.note("below %s/ are keys that are no entries of this lock, and that it passes over: %s. Etcd's own clients (etcdctl lock, concurrency.Mutex) would wait for them; don't nest names that they use",
			plain(q.Name), strings.Join(keys, ", "))
	}
}
