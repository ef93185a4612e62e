package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// What `etcdlock doctor` makes of a name that is several locks, and of an acquisition of several names (a Multi).

// named reads what read does of the name as typed, or, if nobody uses that, without its last "/": the locks below "jobs/"
// are also those below "jobs". It returns the name that it has gone by.
func (d *doctor) named(ctx context.Context, name string) (string, []etcdlock.Queue, error) {
	q, err := d.read(ctx, name)
	bare, cut := strings.CutSuffix(name, "/")
	if !cut || err != nil || len(q[0].Entries) > 0 {
		return name, q, err
	}
	other, others, err := d.named(ctx, bare)
	if errors.Is(err, rpctypes.ErrPermissionDenied) { // the right to lock the name as typed does not include it
		return name, q, nil
	}
	return other, others, err
}

func endsInSlash(name string) bool { return strings.HasSuffix(name, "/") }

// slashed takes a note of a lock whose name has a "/" more at its end: somebody may mean that.
func (d *doctor) slashed(ctx context.Context, q etcdlock.Queue) error {
	name := q.Name + "/"
	if !slices.ContainsFunc(q.Foreign, func(key string) bool { return strings.HasPrefix(key, name+"/") }) {
		return nil
	}
	other, err := d.inspect(ctx, name)
	if err == nil && len(other.Entries) > 0 {
		d.note(`%s, with a "/" at its end, is another lock, and %s: etcdlock doctor %s`, shown(name), standing(other), argument(name))
	}
	return err
}

// read reads the queue of a name. If nobody uses that name, it may be the label of a Multi in metrics, errors and the
// log: its names, with ", " between them. Then read reads the queues of these names. The right to lock them does not
// include the label.
func (d *doctor) read(ctx context.Context, name string) ([]etcdlock.Queue, error) {
	q, unread := d.inspect(ctx, name)
	own, names := []etcdlock.Queue{q}, strings.Split(name, ", ")
	if unread != nil && !errors.Is(unread, rpctypes.ErrPermissionDenied) || len(q.Entries) > 0 || len(names) == 1 || slices.ContainsFunc(names, endsInSlash) { // which a Multi refuses
		return own, unread
	}
	var parts []etcdlock.Queue
	used := false
	for _, name := range names {
		q, err := d.inspect(ctx, name)
		switch {
		case errors.Is(err, etcdlock.ErrInvalidName):
			return own, unread // it is one name with a comma
		case err != nil:
			return own, err
		}
		parts, used = append(parts, q), used || len(q.Entries) > 0
	}
	if !used {
		return own, unread
	}
	return parts, nil
}

// multis looks where else a Multi stands that is first here: it keeps the lock while it waits for its other names.
func (d *doctor) multis(ctx context.Context, q etcdlock.Queue, now time.Time) error {
	for _, e := range q.Holders() {
		for _, name := range others(e) {
			other, err := d.inspect(ctx, name)
			switch {
			case errors.Is(err, rpctypes.ErrPermissionDenied):
				d.note("%s is first in %s, and locks %s too, which this user may not read: whether it works is not known", party(e), shown(q.Name), shown(name))
				continue
			case err != nil:
				return err
			}
			i := slices.IndexFunc(other.Entries, func(o etcdlock.Entry) bool { return o.Token == e.Token })
			if i < 0 {
				d.note("%s has no entry in %s any more: it releases all of them, or does not know yet that it has lost them", party(e), shown(name))
				continue
			}
			if other.Entries[i].Holds {
				continue
			}
			stands := fmt.Sprintf("%s is first in %s, and does not work yet: it waits for %s", party(e), shown(q.Name), shown(name))
			do := "etcdlock doctor " + argument(name)
			switch first := other.Entries[0]; {
			case stuck(other.Entries[:i]) != "":
				d.attention(do, "%s, where %s", stands, stuck(other.Entries[:i]))
			case d.tooLong(first, now):
				d.attention(do, "%s; %s holds that, and has been in the queue for %s", stands, owner(first), age(now.Sub(first.Queued)))
			default:
				d.note("%s, which %s holds (%s)", stands, owner(first), do)
			}
		}
	}
	return nil
}

// stuck says what is wrong with the first of the entries that has no lease. Nothing removes it by itself.
func stuck(entries []etcdlock.Entry) string {
	for _, e := range entries {
		switch {
		case e.Data:
			return looksLikeData(e)
		case !hasLease(e):
			return shown(ref(e)) + " " + stays
		}
	}
	return ""
}

// itself looks whether a name is itself a key in etcd, and so most likely data, or an entry of the lock that the name is
// nested in. Somebody has copied it from where keys are named. It reports whether it is.
func (d *doctor) itself(ctx context.Context, name string) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(d.etcd.CommandTimeout, d.etcd.DialTimeout))
	defer cancel()
	keys, err := connect.Count(bounded, d.client, name)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied): // the right to lock does not include it
		return false, nil
	case err != nil || keys == 0:
		return false, err
	}
	is := shown(name) + " is itself a key in etcd"
	if dir := name[:max(0, strings.LastIndexByte(name, '/'))]; dir != "" {
		q, err := d.inspect(ctx, dir)
		i := slices.IndexFunc(q.Entries, func(e etcdlock.Entry) bool { return e.Key == name || e.SharedKey == name })
		do := "etcdlock doctor " + argument(dir)
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, etcdlock.ErrInvalidName):
		case err != nil:
			return false, err
		case i < 0: // no entry
		case hasLease(q.Entries[i]):
			d.note("%s: the entry of %s in the lock %s (%s), which is another lock: %s", is, owner(q.Entries[i]), shown(dir), state(q, i), do)
			return true, nil
		case slices.ContainsFunc(q.Entries[i+1:], hasLease):
			d.attention(do, "%s, and blocks another lock, %s: %s", is, shown(dir), stuck(q.Entries[i:i+1]))
			return true, nil
		default:
			d.note("%s. It would block a lock of the name %s, for which nobody waits now: %s", is, shown(dir), do)
			return true, nil
		}
	}
	d.note("%s. It is no entry of a lock, and blocks none: etcdctl get %s shows its value", is, argument(name))
	return true, nil
}

// below looks at the locks below a name that nobody uses itself: metrics may call all of them by it (promlock.WithName).
// It reports whether there are any.
func (d *doctor) below(ctx context.Context, q etcdlock.Queue, now time.Time) bool {
	const most, some = 1000, 3
	if len(q.Entries) > 0 || len(q.Foreign) == 0 {
		return false
	}
	prefix := q.Name + "/"
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.etcd.CommandTimeout, belowTimeout))
	defer cancel()
	names, err := listNames(ctx, d.client, prefix)
	var queues []etcdlock.Queue
	if err == nil {
		queues, err = inspectAll(ctx, d.client, names[:min(most, len(names))])
	}
	if err != nil {
		d.note("the locks below %s could not be read: %s", shown(prefix), line(err))
		return false
	}
	// As in ls: a name without a lease on any key is most likely no lock.
	queues = slices.DeleteFunc(queues, func(q etcdlock.Queue) bool { return !slices.ContainsFunc(q.Entries, hasLease) })
	if len(queues) == 0 {
		return false
	}
	found := 0
	for _, q := range queues {
		what := d.blocked(q, now)
		if what == "" {
			continue
		}
		if found++; found <= some {
			d.attention("etcdlock doctor "+argument(q.Name), "%s: %s; %s", shown(q.Name), standing(q), what)
		}
	}
	if found > some {
		d.attention("etcdlock ls "+argument(prefix), "%s more below %s wait for an entry that has no lease or is too old", count(found-some, "lock"), shown(prefix))
	}
	longest := ""
	if q, waits := longestWait(queues); !waits.IsZero() {
		longest = fmt.Sprintf("; the longest wait is for %s, for %s (etcdlock doctor %s)", shown(q.Name), age(now.Sub(waits)), argument(q.Name))
	}
	d.note("nobody uses %s itself. Metrics may call all locks below it so (WithName): %s (etcdlock ls %s)%s", shown(q.Name), count(len(queues), "lock"), argument(prefix), longest)
	if len(names) > most {
		d.note("only the first %d of %d names below %s were looked at", most, len(names), shown(prefix))
	}
	return true
}

// belowTimeout bounds how long the locks below a name are read.
const belowTimeout = 10 * time.Second

// blocked says why nobody of those who wait gets the lock, if that won't end by itself or lasts for longer than
// --max-hold.
func (d *doctor) blocked(q etcdlock.Queue, now time.Time) string {
	if len(q.Waiters()) == 0 {
		return ""
	}
	if what := stuck(q.Entries[:len(q.Entries)-1]); what != "" { // the last one waits
		return what
	}
	for _, e := range q.Holders() {
		if d.tooLong(e, now) {
			return fmt.Sprintf("%s holds it, and has been in the queue for %s", owner(e), age(now.Sub(e.Queued)))
		}
	}
	return ""
}

// longestWait is the queue whose waiter has been in it for the longest time, and since when. The time is zero if nobody
// waits.
func longestWait(queues []etcdlock.Queue) (longest etcdlock.Queue, since time.Time) {
	for _, q := range queues {
		for _, e := range q.Waiters() {
			if !e.Queued.IsZero() && (since.IsZero() || e.Queued.Before(since)) {
				longest, since = q, e.Queued
			}
		}
	}
	return longest, since
}
