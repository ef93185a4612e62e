// The entries that hang on an adopted lease: those of the session that had it before.

package settle

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// attached are the keys that hang on the lease.
func (k *Keys) attached(ctx context.Context) (keys []string, err error) {
	lease, _, err := etcd.Do(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return k.etcd.TimeToLive(ctx, k.lease, clientv3.WithAttachedKeys())
	})
	if err != nil {
		return nil, err
	}
	for _, key := range lease.Keys {
		keys = append(keys, string(key))
	}
	return keys, nil
}

// An Adopted is an entry that hangs on the lease and that the session did not make.
type Adopted struct {
	Rev   int64
	Value string
	Holds bool   // it has the lock, or all locks of a Multi
	Multi bool   // it has Parts by the names of its value
	Parts []Part // one, but for a Multi
}

// A Part is what an Adopted has in one queue.
type Part struct {
	Name string
	queue.Acquisition
}

// keys are all keys of the entry.
func (a *Adopted) keys() (keys []string) {
	for _, p := range a.Parts {
		keys = append(keys, p.Key)
		if p.SharedKey != "" {
			keys = append(keys, p.SharedKey)
		}
	}
	return keys
}

// Adopt finds the oldest entry of that name which hangs on the lease and which the session does not use, and reserves
// its keys. If it is that of a Multi, of limit names at most, its other names come with it. Such an entry is lost if one
// of them is missing: then the rest is removed, as its owner would do. It returns nil if there is no entry.
func (k *Keys) Adopt(ctx context.Context, name string, limit int) (*Adopted, error) {
	for {
		attached, err := k.attached(ctx)
		if err != nil {
			return nil, err
		}
		found, err := k.find(ctx, attached, name)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		a := &Adopted{Rev: found[0].Rev, Value: found[0].Value, Parts: found[:1]}
		if names := ParseValue(a.Value, limit).Names; slices.Contains(names, name) {
			a.Multi, a.Parts = true, nil
			for _, name := range names {
				parts, err := k.find(ctx, attached, name)
				if err != nil {
					return nil, err
				}
				if i := slices.IndexFunc(parts, func(p Part) bool { return p.Rev == a.Rev }); i >= 0 {
					a.Parts = append(a.Parts, parts[i])
				}
			}
			if len(a.Parts) < len(names) {
				if _, err := Remove(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, a.keys(), a.Rev); err != nil {
					return nil, err
				}
				continue
			}
		}
		there, err := k.judge(ctx, a)
		if err != nil {
			return nil, err
		}
		if there && k.claim(a) {
			return a, nil
		}
		// It was removed meanwhile, or adopted by another call.
	}
}

// judge says whether the entry is there, and whether it has its locks.
//
// Invariant (I3): it is one linearizable read, in which the entry is. Whatever blocks the entry is below it, and
// nothing is ever added there.
func (k *Keys) judge(ctx context.Context, a *Adopted) (there bool, err error) {
	var reads []etcd.Read
	for _, p := range a.Parts {
		from, to := keyspace.Blocking(p.Name, keyspace.KindOf(p.Name, p.Key))
		reads = append(reads, etcd.ReadKey(p.Key), etcd.ReadRange(from, to, clientv3.WithMaxCreateRev(a.Rev-1)))
	}
	got, _, err := k.etcd.ReadAt(ctx, k.life, 0, reads...)
	if err != nil {
		return false, err
	}
	a.Holds = true
	for i, p := range a.Parts {
		if !slices.Contains(queue.Entries(got[2*i].Kvs), queue.Entry{Key: p.Key, Rev: a.Rev}) {
			return false, nil
		}
		if queue.Blocked(p.Name, keyspace.KindOf(p.Name, p.Key), a.Rev, queue.Entries(got[2*i+1].Kvs)) {
			a.Holds = false
		}
	}
	return true, nil
}

// find finds entries of that name which the session does not use, the oldest first.
func (k *Keys) find(ctx context.Context, attached []string, name string) (found []Part, err error) {
	var keys []string
	for _, key := range attached {
		if keyspace.KindOf(name, key) != keyspace.Foreign && keyspace.IsKeyOf(key, int64(k.lease)) && !k.uses(key) {
			keys = append(keys, key)
		}
	}
	kvs, err := k.etcd.ReadValues(ctx, k.life, keys...)
	if err != nil {
		return nil, err
	}
	s := queue.NewSnapshot(name)
	for _, kv := range kvs {
		if kv.Lease == int64(k.lease) {
			s.Put(kv)
		}
	}
	for _, a := range s.Acquisitions() {
		found = append(found, Part{name, a})
	}
	return found, nil
}

// claim reserves the keys of a, which nobody uses, all or none. From then on a late write of the process before, which has
// the same value, is the session's own.
func (k *Keys) claim(a *Adopted) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := a.keys()
	for i, key := range keys {
		if _, skipped := k.skipped[key]; skipped {
			delete(k.skipped, key) // it is in use by whom it was left to
		} else if !k.inUse.Claim(key) {
			for _, key := range keys[:i] {
				k.inUse.Free(key)
			}
			return false
		}
	}
	for _, key := range keys {
		k.raw[key] = rawValue{value: a.Value}
	}
	return true
}
