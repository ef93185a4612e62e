// What a random world does with the entries of the process before, on whose lease the session goes on.

package waitlist

import (
	"fmt"
	"slices"

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
	w.otherPuts("a/3", "")
	for i := range 2 + w.choose(5) {
		key, shared := fmt.Sprintf("a/r5-%x", i+1), ""
		switch w.choose(8) {
		case 0:
			key = fmt.Sprintf("a/5-%x", i+1)
		case 1:
			key, shared = fmt.Sprintf("a/5-%x", i+1), key
		}
		w.otherPuts(key, shared)
	}
}

// orphan is the oldest entry on the session's lease that the session did not make, if it can be adopted now.
func (w *world) orphan() (i int, ok bool) {
	i = -1
	for j, o := range w.others {
		if keyspace.LeaseOf("a", o.Key) == ownLease && len(o.keys(w.state())) > 0 && (i < 0 || o.Rev < w.others[i].Rev) {
			i = j
		}
	}
	return i, i >= 0 && !slices.ContainsFunc(w.others[i].keys(w.state()), func(k string) bool { return w.used[k] && !w.vacant[k] })
}

// adopt takes an entry over that is in the queue since long: it is judged by a reading, and then it enters at its old revision.
func (w *world) adopt() bool {
	i, ok := w.orphan()
	if !ok {
		return false
	}
	o, at := w.others[i], w.now()
	w.others = append(w.others[:i:i], w.others[i+1:]...)
	keys := o.keys(w.state())
	for _, k := range keys {
		w.used[k] = true
		delete(w.vacant, k)
	}
	kind := keyspace.KindOf("a", keys[0])
	holds := len(inWay(w.state(), o.Rev, kind)) == 0
	a := &actor{name: fmt.Sprint("p", len(w.own)), kind: kind, keys: keys, rev: o.Rev, put: true, woken: true, adopted: true}
	w.own = append(w.own, a)
	w.logf("%v are read, to be adopted as %s, hold %t", keys, a.name, holds)
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
			if w.choose(4) == 0 {
				a.next = func() { w.unadopt(a, o) }
			}
		}
	}
	return true
}

// unadopt leaves an entry that nobody has been given yet to the next one who adopts it.
func (w *world) unadopt(a *actor, o other) {
	if a.next = nil; a.over {
		return
	}
	w.logf("%s is left", a.name)
	a.p.Forget()
	w.own = slices.DeleteFunc(slices.Clone(w.own), func(b *actor) bool { return b == a })
	w.others = append(w.others, o)
	for _, k := range a.keys {
		delete(w.used, k)
	}
}

// reply is what etcd answers to a request that lists keys.
func reply(q []queue.Entry, more bool, size int) *pb.RangeResponse {
	r := &pb.RangeResponse{More: more, Count: int64(size)}
	for _, e := range q {
		r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(e.Key), CreateRevision: e.Rev})
	}
	return r
}
