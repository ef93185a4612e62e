// Following a queue.

package etcdlock

import (
	"context"
	"iter"

	"github.com/etcdlock/etcdlock/internal/inspect"
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
		yieldAll(ctx, inspect.NewFollower(c.etcd, name), name, yield)
	}
}

// yieldAll yields the states of a queue, the newest each time, until ctx ends or etcd refuses.
func yieldAll(ctx context.Context, f *inspect.Follower, name string, yield func(Queue, error) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	done := make(chan struct{})
	go func() { // ends with ctx, or with etcd's refusal
		defer close(done)
		err = f.Run(ctx)
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
			yield(Queue{}, wrapNeeding("read", name+"/", "watch", name, err))
			return
		}
	}
}
