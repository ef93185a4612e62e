package etcdlock

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// Watch yields the queue of a lock as it is, then again whenever an entry has come, gone or been
// downgraded, each time the newest state there is. A loop that is slow misses states in between, and
// costs no more memory than one queue. Every state is one that the lock had at its Revision, and is
// newer than the one before (unless etcd itself was restored from a snapshot). The queue of a lock that
// nobody uses is empty, and is yielded too.
//
// Leader changes, compaction, lost connections and members that hang delay the next state, by some ten
// seconds at the most once a majority of etcd answers again; nothing is yielded for them. An error is
// the last thing that is yielded: ctx's error when that has ended, or what makes it useless to go on, for
// example a right that is missing, or that the etcd client was closed. So the loop ends with an error,
// unless it is left.
//
// It needs no session, and read rights on the prefix name + "/" only. It costs a watch and a read (see
// [Client.Inspect], but no TTLs are read), one small read each five seconds, and a goroutine that has
// ended when the loop has.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		if err := c.checkLook(name); err != nil {
			yield(Queue{}, wrapNeeding("read", name+"/", "watch", name, err))
			return
		}
		newFollower(c.etcd, name).yieldAll(ctx, yield)
	}
}

// checkEvery is how often a follower asks etcd whether its watch is silent because nothing happens:
// about half the default TTL, as waits and holds do.
const checkEvery = 5 * time.Second

// A follower makes the requests that keep a queue.Follower up to date. It takes all events from its
// watch at once, since the client keeps those that are not taken without any limit.
type follower struct {
	*queue.Follower
	etcd  *etcd.Client
	name  string
	every time.Duration
}

func newFollower(client *clientv3.Client, name string) *follower {
	return &follower{Follower: queue.NewFollower(), etcd: etcd.NewClient(client), name: name, every: checkEvery}
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
		case <-f.Changed():
			if ctx.Err() != nil {
				continue // done tells the rest
			}
			var q Queue
			f.Newest(func(s *queue.Snapshot) { q = newQueue(s) })
			if !yield(q, nil) {
				return
			}
		case <-done:
			yield(Queue{}, wrapNeeding("read", f.name+"/", "watch", f.name, err))
			return
		}
	}
}

// run follows until ctx ends or etcd refuses.
//
// The watch comes first and the read, which is linearizable, after it: what the watch has not seen, the
// read shows. From there on each event leads from one state to the next. What comes twice is told by its
// revision.
func (f *follower) run(ctx context.Context) error {
	defer f.etcd.CloseWatcher()
	from, to := keyspace.All(f.name)
	for retry := (etcd.Backoff{}); ; {
		w, err := f.etcd.OpenWatch(ctx, ctx, from, to) // if that fails, the read replaces the Watcher
		s, rerr := readSnapshot(ctx, f.etcd, f.name)
		if rerr != nil {
			if w != nil {
				w.Close()
			}
			return rerr
		}
		f.Replace(s)
		if err == nil {
			began := time.Now()
			err = f.follow(ctx, w)
			w.Close()
			if time.Since(began) > etcd.RetryMax {
				retry.Reset()
			}
			if errors.Is(err, errSilent) {
				f.etcd.ReplaceWatcher()
			}
		}
		_ = retry.Wait(ctx) // ctx is looked at next
	}
}

// errSilent: a watch did not deliver what has happened.
var errSilent = errors.New("watch is silent")

// follow applies what w delivers until that ends. Now and then it asks whether there would have been
// anything to deliver: a watch on a member that hangs is silent, and its connection stays.
func (f *follower) follow(ctx context.Context, w *etcd.Watch) error {
	check := time.NewTimer(f.every)
	defer check.Stop()
	heard := false // since the last check
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case wr, ok := <-w.C:
			if err := etcd.Broken(&wr, ok); err != nil {
				return err
			}
			f.Apply(wr.Events)
			heard = true
		case <-check.C:
			missed, err := f.missed(ctx)
			switch {
			case err != nil && etcd.Refused(err):
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

// missed asks etcd, linearizably, whether the range has changed since the snapshot's revision: by a key
// that was written later, or by the count, if keys were only deleted. If etcd has gone back, everything
// has changed.
func (f *follower) missed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*etcd.AttemptMin)
	defer cancel()
	rev, keys := f.At()
	from, to := keyspace.All(f.name)
	resp, _, err := etcd.Do(ctx, f.etcd, etcd.Policy{}, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return f.etcd.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(1), clientv3.WithMinModRev(rev+1))
	})
	if err != nil {
		return false, err
	}
	return len(resp.Kvs) > 0 || resp.Count != int64(keys) || resp.Header.Revision < rev, nil
}
