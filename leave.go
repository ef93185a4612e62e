package etcdlock

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// How entries are taken out of the queue, also those of which it is not known
// whether they are in it.

// passOver leaves the entry's keys to whoever has them: another user of an
// adopted lease, for as long as the session lives, or a ghost of this session
// that came after its settling, which is removed.
func (e *entry) passOver(kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if strings.Contains(string(kv.Value), `"`+e.s.nonce) {
			ghost := &entry{s: e.s, name: e.name, key: slot{key: string(kv.Key)}}
			e.s.background(func(ctx context.Context) { _, _ = ghost.remove(ctx, kv.CreateRevision) })
		}
	}
}

// remove deletes the keys of the entry as far as they are at rev, until etcd
// has confirmed it or ctx ends. found says whether the entry was there, or may
// have been removed by an earlier attempt of this call.
func (e *entry) remove(ctx context.Context, rev int64) (found bool, err error) {
	is := func(k slot) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(k.key), "=", rev) }
	resp, doubt, err := hedged(ctx, e.s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		txn := e.s.client.Txn(ctx)
		if e.other.key == "" {
			return txn.If(is(e.key)).Then(clientv3.OpDelete(e.key.key)).Commit()
		}
		del := func(k slot) clientv3.Op { // each on its own: one may be gone already
			return clientv3.OpTxn([]clientv3.Cmp{is(k)}, []clientv3.Op{clientv3.OpDelete(k.key)}, nil)
		}
		return txn.Then(del(e.key), del(e.other)).Commit()
	})
	switch {
	case err != nil:
		return doubt, err
	case e.other.key == "":
		found = resp.Succeeded
	default:
		found = resp.Responses[0].GetResponseTxn().Succeeded
	}
	return found || doubt, nil
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
	e.settle(settleFirst)
}

const (
	settleFirst = 25 * time.Millisecond
	settleMax   = 4 * time.Second
	settleTimes = 12 // over some 20 s, three times as long as etcd lets a request live
)

// settle frees the entry's keys. Where an attempt's outcome is in doubt, it
// first looks for a late write, again and again for a while, and removes what
// it finds: a request that was given up may still be on its way.
//
// Invariant (I6): no key is used anew while a write of its last user may yet
// come, so a key that holds another's nonce is a ghost and never a neighbour.
func (e *entry) settle(delay time.Duration) {
	if !e.doubt {
		e.freeKeys()
		return
	}
	e.lookForGhost(delay, settleTimes)
	e.s.mu.Lock()
	first := !e.s.sweeping
	e.s.sweeping = true
	e.s.mu.Unlock()
	if first {
		e.s.sweep()
	}
}

func (e *entry) lookForGhost(delay time.Duration, times int) {
	e.s.background(func(ctx context.Context) {
		got, _, err := e.s.get(ctx, 0, e.key.key)
		if err == nil && len(got.Kvs) > 0 && string(got.Kvs[0].Value) == e.value {
			_, err = e.remove(ctx, got.Kvs[0].CreateRevision)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			times++ // no answer: this look does not count
		case times == 0:
			e.freeKeys()
			return
		}
		// A timer, not a goroutine: there may be many to settle.
		time.AfterFunc(delay, func() { e.lookForGhost(min(2*delay, settleMax), times-1) })
	})
}

// sweep looks each TTL, from the first doubt on and for as long as the session
// lives, for keys that its lease has and no entry uses. A member that hung for
// minutes may carry out, as it wakes, what was given up long ago, when nobody
// looks for it any more; and such a ghost would jam its lock.
func (s *Session) sweep() {
	time.AfterFunc(s.ttl, func() {
		s.background(func(ctx context.Context) {
			defer s.sweep()
			lease, _, err := hedged(ctx, s, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
				return s.client.TimeToLive(ctx, s.id, clientv3.WithAttachedKeys())
			})
			if err != nil {
				return
			}
			for _, key := range lease.Keys {
				if k, ok := slotOf(string(key), s.id); ok && !s.uses(k) {
					s.sweepKey(ctx, k)
				}
			}
		})
	})
}

func (s *Session) sweepKey(ctx context.Context, k slot) {
	got, _, err := s.get(ctx, 0, k.key)
	// Asked again, since an entry may have been written under this key meanwhile.
	// If none uses it now, then what was read is a ghost, or gone.
	if err == nil && len(got.Kvs) > 0 && strings.Contains(string(got.Kvs[0].Value), `"`+s.nonce) && !s.uses(k) {
		ghost := &entry{s: s, key: k}
		_, _ = ghost.remove(ctx, got.Kvs[0].CreateRevision)
	}
}

func (s *Session) uses(k slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots.uses(k)
}
