// How entries are taken out of the queue.

package etcdlock

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
)

// maxLooked is how many entries a request that removes one looks for. With the 32 keys of a Multi that makes about
// half of the 128 operations that etcd allows in a txn.
const maxLooked = 32

// remove removes the entry from the queue: see settle.Remove. found says whether the key that the entry is known by
// was there, or may have been; of a Multi, all keys. next are the entries of the session behind it.
func (e *entry) remove(ctx, life context.Context, next []queue.Entry) (found bool, err error) {
	r, err := settle.Remove(ctx, e.s.etcd, etcd.Policy{Life: life, Hedge: true}, e.allKeys(), e.rev, next...)
	if err != nil {
		return r.Ambiguous, e.s.lease.Translate(err)
	}
	e.delist(&r, next)
	found = r.Removed[0]
	if e.first != nil {
		found = !slices.Contains(r.Removed, false)
	}
	return r.Ambiguous || found, nil
}

// release removes the entry of a hold that was given back in this process.
func (h *Held) release(ctx context.Context, next []queue.Entry) error {
	found, err := h.remove(ctx, h.s.lease.Ctx, next)
	switch {
	case err != nil:
		h.s.lease.Go(func(ctx context.Context) { h.discard(ctx, next) })
		if cause := h.s.Err(); cause != nil && ctx.Err() == nil {
			err = lossOf(cause)
		}
		return err
	case !found:
		err = ErrLost
	}
	h.settle()
	return err
}

// abandon gives up an entry that its owner did not get: whatever of it is in the queue, or comes there late, is
// removed in the background.
func (e *entry) abandon(cause error) {
	at := time.Now() // before it is handed over
	e.mu.Lock()
	ok := e.transition(abandoned)
	var next []queue.Entry
	if ok {
		next = e.leaveLocked()
	}
	e.mu.Unlock()
	switch {
	case !ok:
		return
	case e.rev == 0 && !e.ambiguous:
		e.s.keys.Free(e.allKeys()...) // never written
	default:
		e.s.lease.Go(func(ctx context.Context) { e.discard(ctx, next) })
	}
	e.notifyAbandoned(at, cause)
}

// A leaver is an entry that was given back and is still to be removed. next are the entries behind it.
type leaver struct {
	*entry
	next []queue.Entry
}

// maxLeaverOps bounds what a txn that writes an entry does for leavers. Etcd may allow less than 128 operations.
const maxLeaverOps = 16

// removeSoon removes the entry in the background, unless the next txn of the session that writes an entry of the same
// name comes first: that removes it too. So a caller that takes the lock again at once needs one commit for both.
// Nothing waits for such a txn.
func (l leaver) removeSoon() {
	l.s.offer(l)
	l.s.lease.Go(func(ctx context.Context) {
		if l.s.take(l) {
			l.discard(ctx, l.next)
		}
	})
}

// offer leaves the removal to whoever takes it.
func (s *Session) offer(l leaver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leavers[l.name] = append(s.leavers[l.name], l)
}

// take reports whether the removal is still to be had.
func (s *Session) take(l leaver) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.leavers[l.name], func(o leaver) bool { return o.entry == l.entry })
	if i >= 0 {
		s.setLeaversLocked(l.name, slices.Delete(s.leavers[l.name], i, i+1))
	}
	return i >= 0
}

// takeSome takes as many removals of that name as fit into a txn.
func (s *Session) takeSome(name string) (some []leaver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, ops := s.leavers[name], 0
	for _, l := range all {
		if ops += len(l.next) + len(l.allKeys()); ops > maxLeaverOps {
			break
		}
		some = append(some, l)
	}
	s.setLeaversLocked(name, all[len(some):])
	return some
}

func (s *Session) setLeaversLocked(name string, left []leaver) {
	if len(left) == 0 {
		delete(s.leavers, name)
	} else {
		s.leavers[name] = left
	}
}

// left takes note of how a txn at revision at has replied to what it did for the leaver, and returns the other
// replies.
func (l leaver) left(at int64, replies []*pb.ResponseOp) []*pb.ResponseOp {
	n := len(l.next) + len(l.allKeys())
	r := settle.Result(at, replies[:n], len(l.next))
	l.delist(&r, l.next)
	l.settle()
	return replies[n:]
}

// discard removes the entry and settles it. ctx ends with the lease, which removes the entry too.
func (e *entry) discard(ctx context.Context, next []queue.Entry) {
	for e.rev != 0 {
		_, err := e.remove(ctx, e.s.lease.Gone, next)
		if err == nil {
			break
		}
		if etcd.Sleep(ctx, etcd.RetryMax) != nil { // a refusal, which may pass
			return
		}
	}
	e.settle()
}

// settle frees the entry's keys, once nothing of it is left or to come.
func (e *entry) settle() {
	if e.ambiguous {
		e.s.keys.Settle(e.acquiring.value, e.allKeys()...)
	} else {
		e.s.keys.Free(e.allKeys()...)
	}
}
