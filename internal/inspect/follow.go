// Following a queue: the requests that keep a snapshot of it up to date.

package inspect

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

// checkEvery is how often a follower asks etcd whether its watch is silent because nothing happens:
// about half the default TTL, as waits and holds do.
const checkEvery = 5 * time.Second

// A Follower makes the requests that keep a queue.Follower up to date. It takes all events from its
// watch at once, since the client keeps those that are not taken without any limit.
type Follower struct {
	*queue.Follower
	Etcd  *etcd.Client
	Every time.Duration // see checkEvery
	name  string
}

// NewFollower makes a Follower of the queue of a lock. It makes no request.
func NewFollower(client *clientv3.Client, name string) *Follower {
	return &Follower{Follower: queue.NewFollower(), Etcd: etcd.NewClient(client), Every: checkEvery, name: name}
}

// Follow yields the states of a queue, as view shows them, the newest each time. It ends with an error, that of ctx
// when it ends or etcd's refusal, unless the loop is left.
func Follow[T any](ctx context.Context, f *Follower, view func(*queue.Snapshot) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var err error
		done := make(chan struct{})
		go func() { // ends with ctx, or with etcd's refusal
			defer close(done)
			err = f.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		var now T
		for {
			select {
			case <-f.Changed():
				if ctx.Err() != nil {
					continue // done tells the rest
				}
				f.Newest(func(s *queue.Snapshot) { now = view(s) })
				if !yield(now, nil) {
					return
				}
			case <-done:
				var none T
				yield(none, err)
				return
			}
		}
	}
}

// Run follows until ctx ends or etcd refuses.
//
// The watch comes first and the read, which is linearizable, after it: what the watch has not seen, the
// read shows. From there on each event leads from one state to the next. What comes twice is told by its
// revision.
func (f *Follower) Run(ctx context.Context) error {
	defer f.Etcd.CloseWatcher()
	from, to := keyspace.All(f.name)
	for retry := (etcd.Backoff{Min: etcd.RetryMin, Max: f.Every}); ; { // without a watch it costs what it costs at rest
		w, err := f.Etcd.OpenWatch(ctx, ctx, from, to) // if that fails, the read replaces the Watcher
		s, rerr := Read(ctx, f.Etcd, f.name)
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
				f.Etcd.ReplaceWatcher()
			}
		}
		_ = retry.Wait(ctx) // ctx is looked at next
	}
}

// errSilent: a watch did not deliver what has happened, or delivers it much later.
var errSilent = errors.New("watch is silent")

// follow applies what w delivers until that ends. Now and then it asks whether there would have been
// anything to deliver: a watch on a member that hangs is silent, and its connection stays.
func (f *Follower) follow(ctx context.Context, w *etcd.Watch) error {
	check := time.NewTimer(f.Every)
	defer check.Stop()
	owed := int64(0) // a change that the last check has shown, and w had not told of
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case wr, ok := <-w.C:
			if err := etcd.Broken(&wr, ok); err != nil {
				return err
			}
			f.Apply(etcd.Events(&wr))
		case <-check.C:
			at, _ := f.At()
			missed, err := f.Missed(ctx)
			switch {
			case err != nil && etcd.Refused(err):
				return err // the read that follows tells whether for good
			case missed == 0: // or etcd does not answer, and nothing happens
				check.Reset(f.Every*3/4 + rand.N(f.Every/2))
			case at < owed:
				return errSilent
			default: // it may be on its way
				check.Reset(min(f.Every, time.Second))
			}
			owed = missed
		}
	}
}

// Missed asks etcd, linearizably, whether the range has changed since the snapshot's revision: by a key
// that was written later, or by the count, if keys were only deleted. If etcd has gone back, everything
// has changed. change is the revision of one that is missing, or the lowest that it can have; 0 if none is.
func (f *Follower) Missed(ctx context.Context) (change int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*etcd.AttemptMin)
	defer cancel()
	rev, keys := f.At()
	from, to := keyspace.All(f.name)
	resp, _, err := etcd.Do(ctx, f.Etcd, etcd.Policy{}, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return f.Etcd.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(1), clientv3.WithMinModRev(rev+1))
	})
	switch {
	case err != nil:
		return 0, err
	case len(resp.Kvs) > 0:
		return resp.Kvs[0].ModRevision, nil
	case resp.Count != int64(keys) || resp.Header.Revision < rev:
		return rev + 1, nil
	}
	return 0, nil
}
