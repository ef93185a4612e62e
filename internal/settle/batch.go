// What one request removes.

package settle

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Leaving is an entry on its way out of the queue.
type Leaving struct {
	Keys []string
	Rev  int64
	Next []queue.Entry // those that the request is to look for
	// Now: somebody of another session may have the lock as soon as the entry is removed, or somebody waits for that.
	Now bool
	// Removed is called once, when etcd has confirmed the removal. It may be nil.
	Removed func(Removal)
	// Refused is called when etcd refuses the removal, which goes on even so. It may be nil.
	Refused func()

	pause     time.Duration // before it is tried again, if etcd refuses it
	ambiguous bool          // an earlier request may have removed it
	returned  bool          // an earlier request has failed: it waits for no other any more
	done      chan struct{} // closed behind Removed; see share
	failed    chan error    // the first error of a request for it, which goes on
	removal   Removal       // when done
}

// share is called before another goroutine than Remove's own may have the entry removed. Most entries do without.
func (l *Leaving) share() {
	if l.done == nil {
		l.done, l.failed = make(chan struct{}), make(chan error, 1)
	}
}

// A Batch is removed by one request.
type Batch []*Leaving

func (n *removals) takeMore(b Batch) Batch {
	ops := 0
	for _, l := range b {
		ops += l.ops()
	}
	n.waiting = slices.DeleteFunc(n.waiting, func(l *Leaving) bool {
		fits := ops+l.ops() <= etcd.Batch
		if fits {
			ops += l.ops()
			l.share()
			b = append(b, l)
		}
		return fits
	})
	leaves := func(q queue.Entry) bool {
		return slices.ContainsFunc(b, func(l *Leaving) bool { return l.Rev == q.Rev && slices.Contains(l.Keys, q.Key) })
	}
	for _, l := range b { // who leaves itself need not be looked for
		if slices.ContainsFunc(l.Next, leaves) {
			l.Next = slices.DeleteFunc(slices.Clone(l.Next), leaves)
		}
	}
	return b
}

func (l *Leaving) ops() int { return len(l.Keys) + len(l.Next) }

// Ops are the operations that remove the entries of the batch.
func (b Batch) Ops() (ops []clientv3.Op) {
	for _, l := range b {
		ops = append(ops, removeOps(l.Keys, l.Rev, l.Next...)...)
	}
	return ops
}

// Done takes note of what a txn, carried out at revision at, has replied to Ops.
func (b Batch) Done(at int64, replies []*pb.ResponseOp, ambiguous bool) {
	for _, l := range b {
		removal := result(at, replies[:l.ops()], len(l.Next))
		removal.Ambiguous = ambiguous
		replies = replies[l.ops():]
		l.finish(removal)
	}
}

func (l *Leaving) finish(removal Removal) {
	removal.Ambiguous = removal.Ambiguous || l.ambiguous
	removal.Sought = l.Next
	l.removal = removal
	if l.Removed != nil {
		l.Removed(removal)
	}
	if l.done != nil {
		close(l.done)
	}
}
