// What a random world does with the entries of the process before, on whose lease the session goes on.

package waitlist

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// ownLease is the session's, in the keys.
const ownLease = "5"

// inherit has the process before leave entries in the queue, readers most of all, behind others.
func (w *world) inherit() {
	if !w.heir {
		return
	}
	w.otherPuts("a/3", keyspace.Exclusive)
	for i := range 2 + w.choose(5) {
		kind := keyspace.Shared
		if w.choose(6) == 0 {
			kind = keyspace.Exclusive
		}
		w.otherPuts(fmt.Sprintf("%s-%x", keyspace.Base("a", kind, 5), i+1), kind)
	}
}

// orphan is the oldest entry on the session's lease that the session did not make, if it can be adopted now.
func (w *world) orphan() (i int, ok bool) {
	i = -1
	for j, o := range w.others {
		if keyspace.LeaseOf("a", o.Key) == ownLease && w.state()[o.Key] == o.Rev && (i < 0 || o.Rev < w.others[i].Rev) {
			i = j
		}
	}
	return i, i >= 0 && (!w.used[w.others[i].Key] || w.vacant[w.others[i].Key])
}

// adopt takes an entry over that is in the queue since long: it is judged by a reading, and then it enters at its old revision.
func (w *world) adopt() bool {
	i, ok := w.orphan()
	if !ok {
		return false
	}
	o, at := w.others[i], w.now()
	w.others = append(w.others[:i:i], w.others[i+1:]...)
	w.used[o.Key] = true
	delete(w.vacant, o.Key)
	holds := len(inWay(w.state(), o.Rev, o.kind)) == 0
	a := &actor{name: fmt.Sprint("p", len(w.own)), kind: o.kind, keys: []string{o.Key}, rev: o.Rev, put: true, woken: true, adopted: true}
	w.own = append(w.own, a)
	w.logf("%s is read, to be adopted as %s, holds %t", o.Key, a.name, holds)
	a.next = func() {
		a.p = register(w.l, a.kind, a.keys...)
		a.p.Owner = a
		if w.choose(4) == 0 {
			a.part = true
			a.p.WakeWith(a.p)
		}
		a.next = func() {
			a.next = nil
			w.logf("%s is adopted, a part %t", a.name, a.part)
			if !holds {
				w.lose(a.p.Enqueued(a.rev, nil))
				return
			}
			seen := Shown(at, a.rev, nil, a.kind == keyspace.Exclusive)
			w.lose(a.p.Enqueued(a.rev, &seen))
		}
	}
	return true
}

// reply is what etcd answers to a request that lists keys.
func reply(q []queue.Entry, more bool, size int) *pb.RangeResponse {
	r := &pb.RangeResponse{More: more, Count: int64(size)}
	for _, e := range q {
		r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(e.Key), CreateRevision: e.Rev})
	}
	return r
}
