// How one key of an entry is removed beside another one, which stays.

package settle

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// RemoveBeside removes the key of an entry that has another key too, provided that kept, the other one, is there. It
// looks for the entries next, as Remove does, and goes on until etcd has confirmed it, or life or the client ends. What
// etcd refuses it sends again after a pause, since the refusal may pass, and an attempt before may have been carried out:
// refused is told each time.
func RemoveBeside(life context.Context, c *etcd.Client, kept, key string, rev int64, next []queue.Entry, refused func(error)) (r Removal, there bool, err error) {
	for ambiguous := false; ; {
		ops := removeOps([]string{key}, rev, next...)
		r, there, err = remove(context.Background(), c, etcd.Policy{Life: life, Hedge: true}, len(next), func(t clientv3.Txn) clientv3.Txn {
			return t.If(CreatedAt(kept, rev)).Then(ops...)
		})
		ambiguous = ambiguous || r.Ambiguous
		r.Ambiguous, r.Sought = ambiguous, next
		switch {
		case err == nil, life.Err() != nil, errors.Is(err, etcd.ErrClientClosed):
			return r, there, err
		case len(next) > 0: // etcd may allow no more operations than the removal itself needs
			next = nil
		default:
			refused(err)
			_ = etcd.Sleep(life, etcd.RetryMax) // life is looked at next
		}
	}
}
