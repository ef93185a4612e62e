// The entries that hang on an adopted lease: those of the session that had it before.

package settle

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/removal"
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
	At    int64 // the revision at which Holds was so
	Value string
	Holds bool   // it has the lock, or all locks of a Multi
	Multi bool   // it has Parts by the names of its value
	Parts []Part // one, but for a Multi

	// Of its keys, those that were vacant before the claim, and their raw values before keep.
	vacant map[string]*unsettled
	raw    map[string]rawValue
}

// A Part is what an Adopted has in one queue.
type Part struct {
	Name string
	queue.Acquisition
}

func (p *Part) kv() *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(p.Key), CreateRevision: p.Rev, Value: []byte(p.Value)}
}

// Queues are those of the entry, as it sees them.
func (a *Adopted) Queues() (all []keyspace.Queue) {
	for _, p := range a.Parts {
		all = append(all, keyspace.Queue{Name: p.Name, Kind: keyspace.KindOf(p.Name, p.Key)})
	}
	return all
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

// Adopt finds the oldest entry of that name which hangs on the lease and which the session did not make, and reserves
// its keys. If it is that of a Multi, of limit names at most, its other names come with it. Such an entry is lost if one
// of them is missing: then the rest is removed, as its owner would do. It returns nil if there is no entry. own reports
// whether an acquisition of the session has the entry of a name with that revision.
//
// Invariant (I6): a key has one user. An acquisition of the session may be about to write where the entry is, as both derive
// their keys from the lease. Etcd refuses that write, so Adopt waits until the acquisition has taken other keys, or was given up.
func (k *Keys) Adopt(ctx context.Context, name string, limit int, own func(name string, rev int64) bool) (*Adopted, error) {
	for {
		changed := k.nextChange() // before the reading
		attached, err := k.attached(ctx)
		if err != nil {
			return nil, err
		}
		found, err := k.find(ctx, attached, name)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(p Part) bool { return own(name, p.Rev) || k.wrote(p.kv()) })
		if len(found) == 0 {
			return nil, nil
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
				if _, err := removal.Remove(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, a.keys(), a.Rev); err != nil {
					return nil, err
				}
				continue
			}
		}
		// The claim comes first. Else another Adopt may take the entry, and release it, between the reading and the claim.
		if k.claim(a) {
			there, err := k.judge(ctx, a)
			if err == nil && there {
				k.keep(a)
				return a, nil
			}
			if k.Unclaim(a); err != nil {
				return nil, err
			}
			continue // it was removed meanwhile
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, etcd.CtxError(ctx, nil)
		}
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
	got, at, err := k.etcd.ReadAt(ctx, k.life, 0, reads...)
	if err != nil {
		return false, err
	}
	a.At, a.Holds = at, true
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

// find finds the entries of that name that hang on the lease, the oldest first.
func (k *Keys) find(ctx context.Context, attached []string, name string) (found []Part, err error) {
	var keys []string
	for _, key := range attached {
		if keyspace.KindOf(name, key) != keyspace.Foreign && keyspace.IsKeyOf(key, int64(k.lease)) {
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

// claim reserves the keys of a, unless the session uses one of them.
func (k *Keys) claim(a *Adopted) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := a.keys()
	if slices.ContainsFunc(keys, k.usesLocked) {
		return false
	}
	a.vacant = make(map[string]*unsettled)
	for _, key := range keys {
		if u, ok := k.vacant[key]; ok {
			a.vacant[key] = u
			delete(k.vacant, key) // who settles it leaves it alone from now on
		}
		k.inUse.Claim(key)
	}
	return true
}

// Unclaim leaves the entry to the next Adopt. What was vacant is settled from the start, since who settled it may have left it
// alone meanwhile.
func (k *Keys) Unclaim(a *Adopted) {
	var again []string
	k.mu.Lock()
	for key, raw := range a.raw {
		if k.raw[key] = raw; raw == (rawValue{}) {
			delete(k.raw, key)
		}
	}
	for _, key := range a.keys() {
		switch u, vacant := a.vacant[key]; {
		case !vacant:
			k.inUse.Free(key)
		case u == nil: // left to others by Skip
			k.vacant[key] = nil
		default:
			again = append(again, key)
		}
	}
	k.tellLocked()
	k.mu.Unlock()
	if len(again) > 0 {
		k.Settle(again...)
	}
}

// keep ends a claim that has found the entry there. From then on a late write of the process before, which has the same value,
// is the session's own.
func (k *Keys) keep(a *Adopted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.raw = make(map[string]rawValue)
	for _, key := range a.keys() {
		a.raw[key] = k.raw[key]
		k.raw[key] = rawValue{value: a.Value}
	}
}

// nextChange is closed when Adopt may find something else, or may claim a key that is in use now.
func (k *Keys) nextChange() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

// Entered takes note that an entry has its place. On an adopted lease an Adopt may wait for that.
func (k *Keys) Entered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tellLocked()
}

func (k *Keys) tellLocked() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}
