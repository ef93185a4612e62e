package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/etcd"
)

// What `etcdlock doctor` looks for in the queue of a lock.

// queues says what is wrong with the queues, and leaves in them what it has seen last: the head lines must not say
// less than the findings. now is the time of that.
func (d *doctor) queues(ctx context.Context, queues []etcdlock.Queue) (now time.Time, err error) {
	first := slices.Clone(queues)
	if err := d.lookAgain(ctx, queues); err != nil {
		return now, err
	}
	now = time.Now()
	for i, q := range queues {
		d.noLease(q)
		d.tooOld(q, now)
		d.renewed(first[i], q)
	}
	for _, q := range queues {
		d.clocks(q, now)
		d.manyKeys(ctx, q)
		if err := d.multis(ctx, q, now); err != nil {
			return now, err
		}
		if err := d.slashed(ctx, q); err != nil {
			return now, err
		}
		is, err := d.itself(ctx, q.Name)
		if err != nil {
			return now, err
		}
		if d.below(ctx, q, now) {
			continue
		}
		d.foreign(q)
		if len(q.Entries) == 0 && len(queues) == 1 && !is { // else it is one name of a Multi
			dir := q.Name[:strings.LastIndexByte(q.Name, '/')+1]
			d.note("nobody holds or waits for %s now. If somebody should, see whether the name is right: etcdlock ls%s", shown(q.Name), strings.TrimSuffix(" "+argument(dir), " ''"))
		}
	}
	return now, nil
}

func (d *doctor) noLease(q etcdlock.Queue) {
	for i, e := range q.Entries {
		switch {
		case e.Data:
			d.attention(fmt.Sprintf("give the lock or the data another name; only if nobody needs the key: etcdlock break --delete-data %s %s %s, which deletes it", quote(e.Key), argument(e.Name), quote(ref(e))),
				"%s (%s, value %s)", looksLikeData(e), state(q, i), data(e))
		case !hasLease(e):
			d.attention(breakHint(e), "%s (%s) %s", shown(ref(e)), state(q, i), stays)
		}
	}
}

func breakHint(e etcdlock.Entry) string {
	return fmt.Sprintf("if its owner does not run: etcdlock break %s %s", argument(e.Name), quote(ref(e)))
}

func (d *doctor) tooOld(q etcdlock.Queue, now time.Time) {
	for _, e := range q.Holders() {
		if d.tooLong(e, now) {
			d.attention("find out what it does; "+breakHint(e), "%s holds the lock, and has been in the queue for %s, longer than %v", owner(e), age(now.Sub(e.Queued)), d.maxHold)
		}
		if e.GrantedTTL > time.Minute {
			d.note("if %s dies, the lock stays taken for up to %v, the TTL of its lease", owner(e), e.GrantedTTL)
		}
	}
}

// tooLong reports whether an entry has been in the queue for longer than --max-hold.
func (d *doctor) tooLong(e etcdlock.Entry, now time.Time) bool {
	return d.maxHold > 0 && !e.Queued.IsZero() && now.Sub(e.Queued) > d.maxHold
}

// watchLeases bounds the time between the two looks at the leases. It is enough for
// a TTL of 10 s. A lease with a longer TTL is judged only if its renewal is due
// within that time.
const watchLeases = 6 * time.Second

// lookAgain reads queues again, when leases that nobody renews can be told from others. A process that lives renews its lease
// every third of the TTL, so two thirds are always left, less the rounding to whole
// seconds by etcd. A lease that has less, and does not get more, is not renewed.
func (d *doctor) lookAgain(ctx context.Context, queues []etcdlock.Queue) error {
	wait := time.Duration(0)
	for _, q := range queues {
		for _, e := range q.Entries {
			if need := e.TTL - overdueBelow(e) + time.Second; e.Lease != 0 && need <= watchLeases {
				wait = max(wait, need, 1500*time.Millisecond)
			}
		}
	}
	if wait == 0 {
		return nil
	}
	// Somebody sits before it, and would take the silence for a command that hangs.
	fmt.Fprintf(os.Stderr, "etcdlock: looking for %v whether the leases are renewed...\n", wait.Round(time.Second))
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for i, q := range queues {
		later, err := d.inspect(ctx, q.Name)
		if err != nil {
			return err
		}
		queues[i] = later
	}
	return nil
}

// renewed compares the leases of a queue with what they are later.
func (d *doctor) renewed(q, later etcdlock.Queue) {
	for _, e := range q.Entries {
		i := slices.IndexFunc(later.Entries, func(l etcdlock.Entry) bool { return l.Key == e.Key && l.Token == e.Token })
		if e.Lease == 0 {
			continue
		}
		if i < 0 {
			if overdue(e) {
				d.note("the lease of %s was not renewed, and etcd removed its entry meanwhile: its process had ended or was stopped, or could not reach etcd", owner(e))
			}
			continue
		}
		if l := later.Entries[i]; overdue(l) && l.TTL < e.TTL {
			d.unrenewed = append(d.unrenewed, l.Lease)
			d.attention(fmt.Sprintf("wait: etcd removes its entry in %v. If its owner still works, its log says why: it can't reach etcd, or a right was taken from its user", l.TTL),
				"nobody renews the lease of %s (%s): of %v it has %v left; its process has ended, is stopped, can't reach etcd, or is refused by etcd", owner(l), state(later, i), l.GrantedTTL, l.TTL)
		}
	}
}

// overdueBelow is the rest of a lease below which its renewal is overdue.
func overdueBelow(e etcdlock.Entry) time.Duration { return e.GrantedTTL*2/3 - 1500*time.Millisecond }

func overdue(e etcdlock.Entry) bool { return e.TTL < overdueBelow(e) }

// manyKeys is from how many keys of one lease on it takes a note.
const manyKeys = 1000

// manyKeys looks for sessions that hold many locks on an etcd that checks passwords. It takes no notice of a lease whose
// keys the user may not read.
func (d *doctor) manyKeys(ctx context.Context, q etcdlock.Queue) {
	if d.client.Username == "" {
		return
	}
	for _, e := range q.Holders() {
		if e.Lease == 0 {
			continue
		}
		lease, err := d.attached(ctx, e.Lease)
		if err == nil && len(lease.Keys) >= manyKeys {
			d.note("the session of %s has %d keys, and where users have passwords etcd checks the rights on all of them at each lock that it takes: share its locks among more sessions", owner(e), len(lease.Keys))
		}
	}
}

// attached reads a lease with its keys.
func (d *doctor) attached(ctx context.Context, lease clientv3.LeaseID) (*clientv3.LeaseTimeToLiveResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, d.lookTimeout())
	defer cancel()
	client := etcd.NewClient(d.client)
	got, _, err := etcd.Do(ctx, client, etcd.Policy{Hedge: true}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return client.TimeToLive(ctx, lease, true)
	})
	return got, err
}

// skew is a difference between clocks that is too small to be worth a note.
const skew = 2 * time.Second

// clocks compares the times that machines wrote with the order of their entries.
func (d *doctor) clocks(q etcdlock.Queue, now time.Time) {
	var last etcdlock.Entry
	for _, e := range q.Entries {
		switch {
		case e.Queued.IsZero():
			continue
		case e.Queued.Sub(now) > skew:
			d.note("the clock of %s is %s ahead of this machine's: the order of the queue does not depend on clocks, but QUEUED does", owner(e), age(e.Queued.Sub(now)))
		case !last.Queued.IsZero() && last.Queued.Sub(e.Queued) > skew:
			d.note("%s came before %s, but its clock was %s ahead: the order of the queue does not depend on clocks, but QUEUED does",
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
			keys = append(keys, shown(k))
		}
		if n > some {
			keys = append(keys, fmt.Sprintf("and %d more", n-some))
		}
		d.note("below %s/ are keys that are not entries, and this lock ignores them: %s. Etcd's own clients (etcdctl lock, concurrency.Mutex) would wait for them, so don't nest the names that these use",
			shown(q.Name), strings.Join(keys, ", "))
	}
}
