// What is sent: a command, and the reply to it.

package sender

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Command is a txn that writes keys of the session. It is safe to repeat, and to run beside itself: a repetition changes
// nothing that an earlier attempt has done.
//
// There are two kinds. An enqueue puts an entry into the queues of its names. Two enqueues of a name in one request would have one
// revision, so a request has at most one. Enqueues of a name leave in the order in which they came; if two of them are under way
// together, etcd decides. Any other command is a removal.
type Command struct {
	// Names are the queues that the command writes to.
	Names      []string
	Cmps       []clientv3.Cmp
	Then, Else []clientv3.Op
	// Did reports whether a reply to a removal says that the removal has changed something: only the first attempt that etcd
	// carries out can do that. It is nil for an enqueue.
	Did func(Reply) bool
	// Patient is for a removal that is offered: if a request of its name is on its way, nobody gains if the removal is sent
	// before the reply.
	Patient bool
	// Crowd: the command is one of many that come at once. It waits for company even if its name has a request on its way.
	Crowd bool
	// Through: the request of the command is sent while the Client drains.
	Through bool
	Owner   Owner // may be nil

	room room // for what To, If and Add have added
	progress
}

// An Owner is told of the reply to its command, before the caller that waits for the reply. It is not told of the reply to a
// command that was given up.
type Owner interface {
	Answered(r Reply, ambiguous bool)
}

// room is memory for one name, one comparison and two operations. Most commands need no more.
type room struct {
	names [1]string
	cmps  [1]clientv3.Cmp
	ops   [2]clientv3.Op
	self  [1]*Command // of the lines that it is the only one of
}

func (c *Command) enqueues() bool { return c.Did == nil }

// To adds a queue that the command writes to.
func (c *Command) To(name string) { c.Names = append(within(c.Names, c.room.names[:]), name) }

// If adds comparisons.
func (c *Command) If(cmps ...clientv3.Cmp) { c.Cmps = append(within(c.Cmps, c.room.cmps[:]), cmps...) }

// Add adds operations to those that are carried out if the comparisons are true.
func (c *Command) Add(ops ...clientv3.Op) { c.Then = append(within(c.Then, c.room.ops[:]), ops...) }

func within[T any](s, room []T) []T {
	if s == nil {
		return room[:0]
	}
	return s
}

// A Reply is what etcd has answered to a command.
type Reply struct {
	At        int64 // the revision at which it was carried out, together with all else in the request
	Succeeded bool
	Responses []*pb.ResponseOp
}

// ops is how many operations the command has, as etcd counts them.
func (c *Command) ops() int { return max(len(c.Cmps), len(c.Then), len(c.Else)) }

// bytes is about how much the command puts.
func (c *Command) bytes() (n int) {
	for i := range c.Then {
		n += len(c.Then[i].KeyBytes()) + len(c.Then[i].ValueBytes())
	}
	return n
}
