package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// How entries are taken out of the queue.

// remove deletes the keys of the entry as far as they are at rev, until etcd
// has confirmed it or ctx ends. found says whether the entry was there, or may
// have been removed by an earlier attempt of this call.
func (e *entry) remove(ctx context.Context, rev int64) (found bool, err error) {
	removals := e.removals(rev)
	resp, doubt, err := hedged(ctx, e.s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.s.client.Txn(ctx).Then(removals...).Commit()
	})
	if err != nil {
		return doubt, err
	}
	return doubt || resp.Responses[0].GetResponseTxn().Succeeded, nil
}

// removals delete the entry's keys as far as they are at rev, each on its own: one
// may be gone already.
func (e *entry) removals(rev int64) (ops []clientv3.Op) {
	for _, key := range e.keys() {
		is := clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{is}, []clientv3.Op{clientv3.OpDelete(key)}, nil))
	}
	return ops
}

// abandon gives up an entry that its owner did not get: whatever of it is in
// the queue, or comes there late, is removed in the background.
func (e *entry) abandon(cause error) {
	e.mu.Lock()
	ok := e.becomeLocked(abandoned, cause)
	e.mu.Unlock()
	switch {
	case !ok:
		return
	case e.rev == 0 && !e.doubt:
		e.freeKeys() // never written
	default:
		e.s.background(e.discard)
	}
	e.tellAbandoned(cause)
}

// discard removes the entry and settles it. ctx ends with the lease, which
// removes the entry too.
func (e *entry) discard(ctx context.Context) {
	for e.rev != 0 {
		_, err := e.remove(ctx, e.rev)
		if err == nil {
			break
		}
		if pause(ctx, retryMax) != nil { // refused, which may pass
			return
		}
	}
	e.settle()
}
