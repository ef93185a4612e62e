package etcdlock

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch yields the queue of a lock as it is, then again whenever an entry has
// come, gone or been downgraded, each time the newest state there is: whoever
// is slow to take it misses states in between, and costs no more memory than
// one queue. Every state is one that the lock had at its Revision, and is newer
// than the one before (unless etcd itself was restored from a snapshot). A lock
// that nobody uses has an empty one, which is yielded too.
//
// Leader changes, compaction, lost connections and members that hang delay
// the next state, by some ten seconds at the most once a majority of etcd
// answers again; nothing is yielded for them. An error is the last thing that
// is yielded: ctx's when that has ended, or what makes going on useless, such as
// a right that is missing, or that the client was closed. So the loop ends
// with an error, unless it is left.
//
// It needs no session, and read rights on the prefix name + "/" only. It costs
// a watch and a read (see Inspect, but no TTLs are asked for), one small read
// each five seconds, and a goroutine that has ended when the loop has.
func Watch(ctx context.Context, client *clientv3.Client, name string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		if err := checkLook(client, name); err != nil {
			yield(Queue{}, wrapNeeding("read", name+"/", "watch", name, err))
			return
		}
		newFollower(client, name).yieldAll(ctx, yield)
	}
}

// checkEvery is how often a follower asks etcd whether its watch is silent
// because nothing happens: about half the default TTL, as waits and holds do.
const checkEvery = 5 * time.Second

// A follower keeps the content of a lock's prefix up to date with a watch from
// which it takes all events at once, since the client keeps those that are not
// taken without any limit.
type follower struct {
	client  *clientv3.Client
	name    string
	every   time.Duration
	own     clientv3.Watcher // in place of the client's, nil until it is needed
	changed chan struct{}    // of capacity 1: content is not what was yielded last

	mu      sync.Mutex
	content *content // nil before the first read
}

func newFollower(client *clientv3.Client, name string) *follower {
	return &follower{client: client, name: name, every: checkEvery, changed: make(chan struct{}, 1)}
}

func (f *follower) yieldAll(ctx context.Context, yield func(Queue, error) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	done := make(chan struct{})
	go func() { // ends with ctx, or with etcd's refusal
		defer close(done)
		err = f.run(ctx)
	}()
	defer func() { cancel(); <-done }()
	for {
		select {
		case <-f.changed:
			if ctx.Err() != nil {
				continue // done tells the rest
			}
			if !yield(f.newest(), nil) {
				return
			}
		case <-done:
			yield(Queue{}, wrapNeeding("read", f.name+"/", "watch", f.name, err))
			return
		}
	}
}

// newest is what to yield now; what comes later is news again.
func (f *follower) newest() Queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.changed: // it is in there
	default:
	}
	return f.content.queue()
}

// run follows until ctx ends or etcd refuses.
//
// The watch comes first and the read, which is linearizable, after it: what the
// watch has not seen, the read shows. From there on each event leads from a
// state to the next one. What comes twice is told by its revision.
func (f *follower) run(ctx context.Context) error {
	defer f.replaceWatcher(nil)
	from, to := prefixRange(f.name)
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		watcher := f.client.Watcher
		if f.own != nil {
			watcher = f.own
		}
		w, err := openWatch(ctx, clientv3.WithRequireLeader(ctx), watcher, from, to)
		silent := err != nil
		c, err := readContent(ctx, f.client, f.name)
		if err != nil {
			if w != nil {
				w.close()
			}
			return err
		}
		f.adopt(c)
		if !silent {
			began := time.Now()
			silent = errors.Is(f.follow(ctx, w), errSilent)
			w.close()
			if time.Since(began) > retryMax {
				delay = retryMin
			}
		}
		if silent && renewable(f.client, watcher) {
			f.replaceWatcher(clientv3.NewWatcher(f.client)) // see currentWatcher
		}
		_ = sleep(ctx, delay/2+rand.N(delay)) // ctx is looked at next
	}
}

// replaceWatcher closes the own watcher, which would go on trying for a stream.
func (f *follower) replaceWatcher(w clientv3.Watcher) {
	if f.own != nil {
		_ = f.own.Close()
	}
	f.own = w
}

// adopt replaces what is known by c, a later state.
func (f *follower) adopt(c *content) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.content == nil || !maps.Equal(f.content.Entries, c.Entries) {
		f.announceLocked()
	}
	f.content = c
}

// tellLocked says that there is news; the caller holds f.mu.
func (f *follower) announceLocked() {
	select {
	case f.changed <- struct{}{}:
	default: // said already, and not yet taken
	}
}

// errSilent: a watch did not deliver what has happened.
var errSilent = errors.New("watch is silent")

// follow applies what w delivers until that ends. Now and then it asks whether
// there would have been anything to deliver: a watch on a member that hangs is
// silent, and its connection stays.
func (f *follower) follow(ctx context.Context, w *watch) error {
	check := time.NewTimer(f.every)
	defer check.Stop()
	heard := false // since the last check
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case wr, ok := <-w.ch:
			if err := broken(&wr, ok); err != nil {
				return err
			}
			f.apply(wr)
			heard = true
		case <-check.C:
			missed, err := f.missed(ctx)
			switch {
			case err != nil && refused(err):
				return err // the read that follows tells whether for good
			case missed && !heard:
				return errSilent
			case missed: // it may be on its way
				check.Reset(min(f.every, time.Second))
			default: // or etcd does not answer, and nothing happens
				check.Reset(f.every*3/4 + rand.N(f.every/2))
			}
			heard = false
		}
	}
}

// apply brings the content from its revision to that of the last event. Etcd
// never divides the events of a revision between two responses.
func (f *follower) apply(wr clientv3.WatchResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, changed := f.content, false
	for _, ev := range wr.Events {
		switch {
		case ev.Kv.ModRevision <= c.Rev:
			// The read has shown it already, or the watch begins anew.
		case ev.Type == clientv3.EventTypePut:
			changed = c.Put(ev.Kv) || changed
		default:
			changed = c.Remove(string(ev.Kv.Key)) || changed
		}
	}
	c.Rev = max(c.Rev, latest(&wr))
	if changed {
		f.announceLocked()
	}
}

// missed asks etcd, linearizably, whether the range has changed since the
// content's revision: by a key that was written later, or by the count, if
// any was only deleted. If etcd has gone back, everything has.
func (f *follower) missed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptMin)
	defer cancel()
	f.mu.Lock()
	rev, keys := f.content.Rev, len(f.content.Entries)+len(f.content.Foreign)
	f.mu.Unlock()
	from, to := prefixRange(f.name)
	var resp *clientv3.GetResponse
	err := retry(ctx, f.client, func(ctx context.Context) (err error) {
		resp, err = f.client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(1), clientv3.WithMinModRev(rev+1))
		return err
	})
	if err != nil {
		return false, err
	}
	return len(resp.Kvs) > 0 || resp.Count != int64(keys) || resp.Header.Revision < rev, nil
}
