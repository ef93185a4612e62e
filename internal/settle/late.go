// Late writes: keys that a request writes after it was given up. They are found and removed.

package settle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/removal"
)

// A late write is a key that a request has written after it was given up, or repeated. Nobody waits
// for it or holds it, and it would jam its lock until the session ends. So the session looks for
// late writes, and removes them.

const (
	settleFirst = 25 * time.Millisecond
	settleMax   = 4 * time.Second
	settleFor   = 20 * time.Second // three times as long as etcd lets a request live
)

// unsettled are the keys of an entry that nobody uses any more and that may yet be written. The entry's own requests write all
// of them at once. A restore may bring back what another entry wrote to one of them.
type unsettled struct {
	keys  []string
	since time.Time
}

// Settle is Free for keys of an entry if the outcome of an attempt to write them is unknown: a request that was given up may
// still be on its way. So Settle first looks for a late write, again and again for settleFor, and removes what it finds. Then
// the keys are free.
//
// Invariant (I6): no key is used anew while a write of its last user may yet come. So a key of the
// session that holds another entry's nonce is a late write and never a neighbour.
func (k *Keys) Settle(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubted = true
	u := &unsettled{keys, time.Now()}
	k.unsettled = append(k.unsettled, u)
	for _, key := range keys {
		k.vacant[key] = u
	}
	k.tellLocked()
	k.delay = settleFirst
	if k.timer == nil {
		k.timer = time.AfterFunc(0, func() { k.background(k.findLateWrites) })
	} else {
		k.timer.Reset(0)
	}
}

// findLateWrites looks for the late writes of all unsettled entries together. After a slow etcd there may be a thousand such
// entries, and one request looks for many.
func (k *Keys) findLateWrites(ctx context.Context) {
	k.mu.Lock()
	if k.scanning {
		k.mu.Unlock()
		return // the scan that goes on is followed by another one
	}
	k.scanning = true
	all := k.unsettled
	k.unsettled = nil
	k.mu.Unlock()
	var left []*unsettled
	for some := range slices.Chunk(all, etcd.Batch) {
		began := time.Now()
		err := k.removeLateWrites(ctx, some)
		for _, u := range some {
			if err == nil && began.Sub(u.since) >= settleFor {
				k.settled(u)
			} else {
				left = append(left, u)
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scanning = false
	k.unsettled = append(k.unsettled, left...)
	if len(k.unsettled) > 0 && ctx.Err() == nil {
		// A timer, not a goroutine that waits.
		k.timer.Reset(k.delay)
		k.delay = min(2*k.delay, settleMax)
	}
}

// settled frees the keys of an entry, except for those that were adopted meanwhile.
func (k *Keys) settled(u *unsettled) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range u.keys {
		if k.vacant[key] == u {
			delete(k.vacant, key)
			k.freeLocked(key)
		}
	}
}

// removeLateWrites removes what there is of the entries: two requests, or a few more if Multis are among
// them.
func (k *Keys) removeLateWrites(ctx context.Context, some []*unsettled) error {
	var keys []string
	for _, u := range some {
		keys = append(keys, u.keys...)
	}
	there, err := k.etcd.ReadValues(ctx, k.life, keys...)
	if n := len(some); n > 1 && err != nil && etcd.Refused(err) {
		// One of the keys may be forbidden by now. That must not keep the others from their removal.
		return errors.Join(k.removeLateWrites(ctx, some[:n/2]), k.removeLateWrites(ctx, some[n/2:]))
	}
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for _, kv := range there {
		// This entry has written it; or an earlier entry of the session has, and a restore has brought it back. Nobody uses the
		// key now. uses is asked last, since an adopted entry counts as written by the session from its adoption on.
		if k.wrote(kv) && !k.uses(string(kv.Key)) {
			ops = append(ops, removal.DeleteOps([]string{string(kv.Key)}, kv.CreateRevision)...)
		}
	}
	for some := range slices.Chunk(ops, 2*etcd.Batch) {
		if err := k.commit(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// commit carries out operations that need not be carried out together: etcd may refuse some of them, or all because they are
// many.
func (k *Keys) commit(ctx context.Context, ops []clientv3.Op) error {
	_, _, err := etcd.Do(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return k.etcd.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(ops...) })
	})
	if n := len(ops); n > 1 && etcd.Refused(err) {
		return errors.Join(k.commit(ctx, ops[:n/2]), k.commit(ctx, ops[n/2:]))
	}
	return err
}

// Sweep reads which keys hang on the lease, and removes those of the session that no entry uses. They are
// late writes: a member that hung for minutes may carry out, as it wakes, what was given up long ago, when
// findLateWrites does not look for it any more.
func (k *Keys) Sweep(ctx context.Context) (there map[string]struct{}, err error) {
	k.forgetRaw()
	attached, err := k.attached(ctx)
	if err != nil {
		return nil, err
	}
	there = make(map[string]struct{}, len(attached))
	var failed error
	for _, key := range attached {
		there[key] = struct{}{}
		if keyspace.IsKeyOf(key, int64(k.lease)) && !k.uses(key) {
			failed = cmp.Or(k.sweepKey(ctx, key), failed)
		}
	}
	k.mu.Lock()
	k.unswept = failed != nil
	k.mu.Unlock()
	return there, nil
}

func (k *Keys) sweepKey(ctx context.Context, key string) error {
	got, _, err := k.etcd.ReadAt(ctx, k.life, 0, etcd.ReadValue(key))
	// uses is asked again, since an entry may have been written under this key meanwhile. If none
	// uses it now, then what was read is a late write, or gone.
	if err == nil && len(got[0].Kvs) > 0 && k.wrote(got[0].Kvs[0]) && !k.uses(key) {
		return k.removeLateWrite(ctx, got[0].Kvs[0])
	}
	return err
}

// Skip leaves an entry's keys to another user of an adopted lease, or to a late write of this session that came after the keys
// were settled. Skip removes such a late write. The session does not use these keys again; Sweep finds what a late request may
// yet write there. kvs are what was read there.
func (k *Keys) Skip(keys []string, kvs []*mvccpb.KeyValue) {
	k.mu.Lock()
	// What Adopt takes from now on is no late write.
	late := slices.DeleteFunc(slices.Clone(kvs), func(kv *mvccpb.KeyValue) bool { return !k.wroteLocked(kv) })
	for _, key := range keys {
		k.vacant[key] = nil
	}
	k.tellLocked()
	k.mu.Unlock()
	for _, kv := range late {
		k.background(func(ctx context.Context) { _ = k.removeLateWrite(ctx, kv) })
	}
}

func (k *Keys) removeLateWrite(ctx context.Context, kv *mvccpb.KeyValue) error {
	_, err := removal.Remove(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, []string{string(kv.Key)}, kv.CreateRevision)
	return err
}
