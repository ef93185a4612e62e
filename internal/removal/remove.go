// What the requests that remove keys are made of, and the removal of an entry that is not the session's.

package removal

import (
	"context"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
)

// A Result is what etcd has answered to a request that removes keys of an entry.
type Result struct {
	At        int64         // the revision at which it was carried out
	Removed   []bool        // for each key, whether it was there
	Ambiguous bool          // another attempt, which has no answer, may have removed what was not there
	Sought    []queue.Entry // the entries that it looked for
	There     []queue.Entry // the entries of Sought that it found
}

// Found reports whether the entry's first key was there or may have been; with all, whether all of its keys were.
func (r *Result) Found(all bool) bool {
	return r.Ambiguous || r.Removed[0] && (!all || !slices.Contains(r.Removed, false))
}

// CreatedAt is the comparison that the key has this create revision, and so is that of the entry. From client 3.7 on Compare copies
// the comparison by reflection. So where a comparison shows its message, CreatedAt fills in the rest.
func CreatedAt(key string, rev int64) clientv3.Cmp {
	if !shown {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
	}
	c := clientv3.CreateRevision(key)
	m := any(&c).(shows).GetCompare()
	m.Result, m.TargetUnion = pb.Compare_EQUAL, &pb.Compare_CreateRevision{CreateRevision: rev}
	return c
}

// shows is a comparison that shows its message, as from client 3.7 on.
type shows interface{ GetCompare() *pb.Compare }

var _, shown = any(&clientv3.Cmp{}).(shows)

// deletion is OpDelete of no key yet. OpDelete applies its options, which are none, several times to find out whether they go together.
var deletion = clientv3.OpDelete("")

// deleteOp is OpDelete.
func deleteOp(key string) clientv3.Op {
	op := deletion
	op.WithKeyBytes([]byte(key))
	return op
}

// DeleteOps delete the keys as far as they are at rev, each on its own: one may be gone already.
func DeleteOps(keys []string, rev int64) (ops []clientv3.Op) {
	for _, key := range keys {
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{CreatedAt(key, rev)}, []clientv3.Op{deleteOp(key)}, nil))
	}
	return ops
}

// Remove deletes the keys of an entry as far as they are at rev, until etcd has confirmed it or ctx or p.Life ends.
// It sends the request without a Sender. After an error only Ambiguous is known.
func Remove(ctx context.Context, c *etcd.Client, p etcd.Policy, keys []string, rev int64) (Result, error) {
	l := Leaving{Keys: keys, Rev: rev}
	reply, ambiguous, err := sender.Send(ctx, c, p, l.command(&sender.Command{}))
	return l.resultOf(reply, ambiguous), err
}

// RemoveAny removes an entry of any session, known by its keys, and skips empty keys. found is false if none of the
// keys was there.
func RemoveAny(ctx context.Context, c *etcd.Client, name string, rev int64, keys ...string) (found bool, err error) {
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == "" })
	for _, key := range keys {
		if keyspace.KindOf(name, key) == keyspace.Foreign {
			return false, notEntry(key, rev)
		}
	}
	if len(keys) == 0 || rev <= 0 { // a revision of 0 would compare with keys that do not exist
		return false, notEntry("", rev)
	}
	// Each key on its own: a downgrade may have removed the first meanwhile.
	r, err := Remove(ctx, c, etcd.Policy{}, keys, rev)
	return r.Ambiguous || slices.Contains(r.Removed, true), err
}

func notEntry(key string, rev int64) error {
	return fmt.Errorf("key %q with token %d is no entry: take one from Inspect or Watch", key, rev)
}

// find are operations that look for entries.
func find(next []queue.Entry) []clientv3.Op {
	gets := make([]clientv3.Op, 0, len(next))
	for _, q := range next {
		gets = append(gets, clientv3.OpGet(q.Key, clientv3.WithKeysOnly()))
	}
	return gets
}
