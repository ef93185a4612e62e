// Late writes: keys that a request writes after it was given up. They are found and removed.

package settle

import (
	"cmp"
	"context"
	"math"
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
	// settleRefused is the longest pause while etcd refuses to say what is there: it may do so for good.
	settleRefused = time.Minute
)

// unsettled are the keys of an entry that nobody uses any more and that may yet be written. The entry's own requests write all
// of them at once. A restore may bring back what another entry wrote to one of them.
type unsettled struct {
	keys  []string
	since time.Time
	due   time.Time // of the next search for them
	// refused: in the last search etcd refused to say what is there, or to remove it.
	refused bool
}

// pause is how long the search after one at that time waits: as long as it was from the beginning up to then, within bounds. So entries
// that became unsettled at about the same time are looked for together.
func (u *unsettled) pause(searched time.Time) time.Duration {
	most := settleMax
	if u.refused {
		most = settleRefused
	}
	return min(max(searched.Sub(u.since), settleFirst), most)
}

// Settle is Free for keys of an entry if the outcome of an attempt to write them is unknown: a request that was given up may
// still be on its way. So Settle first looks for a late write, again and again for settleFor, and removes what it finds. Then
// the keys are free. It is also for keys that somebody else has, another user of an adopted lease for example, or a late write: whoever
// takes them after settleFor looks anew.
//
// Invariant (I6): no key is used anew while a write of its last user may yet come. So a key of the
// session that holds another entry's nonce is a late write and never a neighbour.
func (k *Keys) Settle(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubted = true
	now := time.Now()
	u := &unsettled{keys: slices.Clone(keys), since: now, due: now} // the part that they are of may take others
	k.unsettled = append(k.unsettled, u)
	for _, key := range keys {
		k.vacant[key] = u
	}
	k.tellLocked(keys)
	k.searchLocked(now)
}

// searchLocked has a search begin when it is due, and not sooner than settleFirst after the last one: after a slow etcd each
// release may leave an unsettled entry, and a search for each of them would keep etcd slow.
func (k *Keys) searchLocked(due time.Time) {
	wait := max(0, time.Until(due), time.Until(k.searched.Add(settleFirst)))
	switch {
	case k.searching: // what is due then is found at its end
	case k.timer == nil:
		k.timer = time.AfterFunc(wait, func() { k.background(k.findLateWrites) })
	default: // a timer, not a goroutine that waits
		k.timer.Reset(wait)
	}
}

// findLateWrites looks for the late writes of all unsettled entries that are due, or will be soon, together. After a slow etcd
// there may be a thousand such entries, and one request looks for many.
func (k *Keys) findLateWrites(ctx context.Context) {
	k.mu.Lock()
	if k.searching {
		k.mu.Unlock()
		return
	}
	k.searching = true
	now := time.Now()
	var some []*unsettled
	k.unsettled = slices.DeleteFunc(k.unsettled, func(u *unsettled) bool {
		due := u.due.Sub(now) <= u.pause(now)/4
		if due {
			some = append(some, u)
		}
		return due
	})
	k.mu.Unlock()
	var keys []string
	for _, u := range some {
		keys = append(keys, u.keys...)
	}
	known, _ := k.removeLateWrites(ctx, keys) // while the client and the lease live, only a refusal leaves any: see etcd.Do
	k.mu.Lock()
	defer k.mu.Unlock()
	k.searching, k.searched = false, time.Now()
	for _, u := range some {
		u.refused = slices.ContainsFunc(u.keys, func(key string) bool { return !known[key] })
		if !u.refused && now.Sub(u.since) >= settleFor {
			k.settledLocked(u)
			continue
		}
		u.due = k.searched.Add(u.pause(k.searched))
		k.unsettled = append(k.unsettled, u)
	}
	if len(k.unsettled) > 0 && ctx.Err() == nil {
		k.searchLocked(slices.MinFunc(k.unsettled, func(u, v *unsettled) int { return u.due.Compare(v.due) }).due)
	}
}

// settledLocked frees the keys of an entry, except for those that were adopted meanwhile.
func (k *Keys) settledLocked(u *unsettled) {
	for _, key := range u.keys {
		if k.vacant[key] == u {
			delete(k.vacant, key)
			k.freeLocked(key)
		}
	}
}

// removeLateWrites removes what there is of keys that no entry uses: two requests, or a few more if there are many, or etcd refuses
// some. known are the keys that have no late write now; the others may have one because of err.
func (k *Keys) removeLateWrites(ctx context.Context, keys []string) (known map[string]bool, err error) {
	known = make(map[string]bool, len(keys))
	var late []*mvccpb.KeyValue
	err = Apart(keys, math.MaxInt, func(some []string) error {
		there, err := k.etcd.ReadValues(ctx, k.life, some...)
		if err != nil {
			return err
		}
		for _, key := range some {
			known[key] = true
		}
		for _, kv := range there {
			// This entry has written it; or an earlier entry of the session has, and a restore has brought it back. Nobody uses the
			// key now. uses is asked last, since an entry may have taken the key meanwhile, and an adopted entry counts as written
			// by the session from its adoption on.
			if k.wrote(kv) && !k.uses(string(kv.Key)) {
				late = append(late, kv)
			}
		}
		return nil
	})
	// They need not be removed together.
	failed := Apart(late, math.MaxInt, func(some []*mvccpb.KeyValue) error {
		var ops []clientv3.Op
		for _, kv := range some {
			ops = append(ops, removal.DeleteOps([]string{string(kv.Key)}, kv.CreateRevision)...)
		}
		_, _, err := etcd.Do(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return k.etcd.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(ops...) })
		})
		for _, kv := range some {
			known[string(kv.Key)] = err == nil
		}
		return err
	})
	return known, cmp.Or(err, failed)
}

// Sweep reads which keys hang on the lease, and removes those of the session that no entry uses. They are
// late writes: a member that hung for minutes may carry out, as it wakes, what was given up long ago, when
// findLateWrites does not look for it any more.
func (k *Keys) Sweep(ctx context.Context) (there map[string]struct{}, err error) {
	k.forgetRaw()
	began := time.Now()
	lease, _, err := etcd.Do(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return k.etcd.TimeToLive(ctx, k.lease, true)
	})
	if err != nil {
		return nil, err
	}
	there = make(map[string]struct{}, len(lease.Keys))
	var unused []string
	for _, b := range lease.Keys {
		key := string(b)
		there[key] = struct{}{}
		if keyspace.IsKeyOf(key, int64(k.lease)) && !k.uses(key) {
			unused = append(unused, key)
		}
	}
	k.settleUnlisted(began, there)
	_, err = k.removeLateWrites(ctx, unused)
	k.mu.Lock()
	k.unswept = err != nil
	k.mu.Unlock()
	return there, nil
}

// settleUnlisted frees keys that etcd refuses to show, if they are not there: among the keys of the lease, as etcd has listed them
// since began. Else a name on which the client has no rights would have more such keys with each Lock whose request had no answer.
func (k *Keys) settleUnlisted(began time.Time, there map[string]struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unsettled = slices.DeleteFunc(k.unsettled, func(u *unsettled) bool {
		listed := slices.ContainsFunc(u.keys, func(key string) bool { _, is := there[key]; return is })
		over := u.refused && !listed && began.Sub(u.since) >= settleFor
		if over {
			k.settledLocked(u)
		}
		return over
	})
}
