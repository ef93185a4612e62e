// How one key of an entry is removed beside another one, which stays.

package removal

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/sender"
)

// RemoveBeside removes the key of an entry of that name that has another key too, provided that kept, the other one, is there. It
// looks for the entries next, as Remove does, and goes on until etcd has confirmed it, or life or the client ends. What
// etcd refuses it sends again after a pause, since the refusal may pass, and an attempt before may have been carried out:
// refused is told each time.
func (r *Removals) RemoveBeside(life context.Context, name, kept, key string, rev int64, next []queue.Entry, refused func(error)) (got Result, there bool, err error) {
	for ambiguous := false; ; {
		c := &sender.Command{Did: removed}
		c.To(name)
		c.If(CreatedAt(kept, rev))
		c.Add(removeOps([]string{key}, rev, next...)...)
		reply, again, err := r.sender.Do(context.Background(), life, c)
		ambiguous = ambiguous || again
		got = result(reply.At, reply.Responses, len(next))
		got.Ambiguous, got.Sought = ambiguous, next
		switch {
		case err == nil, life.Err() != nil, errors.Is(err, etcd.ErrClientClosed):
			return got, reply.Succeeded, err
		case len(next) > 0: // etcd may allow no more operations than the removal itself needs
			next = nil
		default:
			refused(err)
			_ = etcd.Sleep(life, etcd.RetryMax) // life is looked at next
		}
	}
}
