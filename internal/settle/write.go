// How entries are written: one request, one commit.

package settle

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/sender"
)

// Write makes the command that writes the keys of an entry, if none of them is there. If limit is not 0, it lists before that, for each queue,
// at most limit of the keys that may block the entry, or all that came after the revision since.
func Write(queues []keyspace.Queue, keys []string, value string, lease clientv3.LeaseID, limit int64, since ...int64) *sender.Command {
	c := &sender.Command{}
	for i, p := range queues {
		c.To(p.Name)
		switch {
		case limit == 0:
		case len(since) > 0:
			c.Add(list(p, clientv3.WithMinCreateRev(since[i]+1)))
		default:
			c.Add(list(p, clientv3.WithLimit(limit)))
		}
	}
	for _, key := range keys {
		c.If(removal.CreatedAt(key, 0))
		c.Add(clientv3.OpPut(key, value, clientv3.WithLease(lease)))
	}
	return c
}

// WriteIfFree is Write that writes only if no key is there that could block the entry. Otherwise its command reads the entry's
// first key and, for each queue, at most limit of the keys that may block the entry, with their leases: see etcd.ReadRangeLeases.
func WriteIfFree(queues []keyspace.Queue, keys []string, value string, lease clientv3.LeaseID, limit int64) *sender.Command {
	c := Write(queues, keys, value, lease, 0)
	c.Else = []clientv3.Op{clientv3.OpGet(keys[0])}
	for _, p := range queues {
		from, to := p.Blocking()
		c.If(clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
		c.Else = append(c.Else, clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithLimit(limit)))
	}
	return c
}

// ReadBlocking reads, for each queue, what WriteIfFree reads of it.
func ReadBlocking(queues []keyspace.Queue, limit int64) (reads []etcd.Read) {
	for _, p := range queues {
		reads = append(reads, etcd.ReadRangeLeases(p.Blocking()).Limit(limit))
	}
	return reads
}

// listing is a listing of no queue yet. OpGet applies its options several times to find out whether they go together.
var listing = clientv3.OpGet("", clientv3.WithKeysOnly())

// list lists some of the keys that may block an entry.
func list(q keyspace.Queue, some clientv3.OpOption) clientv3.Op {
	from, to := q.Blocking()
	op := listing
	op.WithKeyBytes([]byte(from))
	op.WithRangeBytes([]byte(to))
	some(&op)
	return op
}
