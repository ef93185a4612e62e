package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock"
)

// What `etcdlock doctor` looks for in the queue of a lock.

func (d *doctor) queue(ctx context.Context, q etcdlock.Queue, now time.Time) error {
	d.noLease(q)
	d.tooOld(q, now)
	if err := d.leases(ctx, q); err != nil {
		return err
	}
	d.clocks(q, now)
	d.foreign(q)
	return nil
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
	later, err := d.inspect(ctx, q.Name)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		d.attention("run this again", "etcd has not answered the second look at the leases: %s", line(err))
		return nil
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
