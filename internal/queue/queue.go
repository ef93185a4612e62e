// Package queue says which entries block which, and what a queue looks like to somebody
// outside. It is given what was read and what happened; it makes no request.
package queue

import (
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// MaxRev is above every revision: the whole queue is below it.
const MaxRev = math.MaxInt64

// An Entry is one key of a lock's queue as etcd has it. Its Rev, the key's CreateRevision, is
// its place: the queue is ordered by it alone.
type Entry struct {
	Key string
	Rev int64
}

// Entries are the keys that were read, those of no entry included.
func Entries(kvs []*mvccpb.KeyValue) []Entry {
	q := make([]Entry, len(kvs))
	for i, kv := range kvs {
		q[i] = Entry{string(kv.Key), kv.CreateRevision}
	}
	return q
}

// Blocks reports whether an entry of one kind blocks a later one of another.
//
// Invariant (I2): exclusive entries wait for all lower ones, shared entries for all lower
// exclusive ones. So consecutive readers run together, and no reader passes a writer that was
// there before it.
func Blocks(lower, higher keyspace.Kind) bool {
	return lower == keyspace.Exclusive || lower == keyspace.Shared && higher == keyspace.Exclusive
}

// Blocked reports whether one of the entries is below rev and blocks an entry of that kind there.
func Blocked(name string, kind keyspace.Kind, rev int64, entries []Entry) bool {
	return slices.ContainsFunc(entries, func(e Entry) bool {
		return e.Rev < rev && Blocks(keyspace.KindOf(name, e.Key), kind)
	})
}

// WithoutLease is the key of the first entry that hangs on no lease, as data does that somebody keeps under the name of
// a lock. It is "" if there is none.
func WithoutLease(name string, kvs []*mvccpb.KeyValue) string {
	for _, kv := range kvs {
		if kv.Lease == 0 && keyspace.KindOf(name, string(kv.Key)) != keyspace.Foreign {
			return string(kv.Key)
		}
	}
	return ""
}

// Ahead counts those that leave before an acquisition at rev is granted. got are, for each of its names, the keys of the
// range that can block it: see keyspace.Blocking. A revision is one acquisition, which counts once: a write lock has
// two keys, and a Multi has one in several of the queues.
func Ahead(names []string, rev int64, got []*pb.RangeResponse) int {
	revs := make(map[int64]struct{})
	for i, name := range names {
		for _, e := range Entries(got[i].Kvs) {
			if e.Rev < rev && keyspace.KindOf(name, e.Key) != keyspace.Foreign {
				revs[e.Rev] = struct{}{}
			}
		}
	}
	return len(revs)
}
