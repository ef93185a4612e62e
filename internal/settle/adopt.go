// The entries that hang on an adopted lease: those of the session that had it before.

package settle

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/removal"
)

// An Adopted is an entry that hangs on the lease and that the session did not make.
type Adopted struct {
	Rev   int64
	At    int64 // the revision at which Holds was so
	Value string
	Holds bool   // it has the lock, or all locks of a Multi
	Multi bool   // it has Parts by the names of its value
	Parts []Part // one, but for a Multi

	names int // of a Multi
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

// Seen is what is before the entry in each queue, at revision At: nothing, which a nil reply says, if it Holds; else that is left
// open.
func (a *Adopted) Seen() (replies []*pb.ResponseOp) {
	if a.Holds {
		replies = make([]*pb.ResponseOp, len(a.Parts))
	}
	return replies
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
	var pause etcd.Backoff
	var waits <-chan struct{} // for the user of a key, since before the last reading
	for {
		a, err := k.oldest(ctx, name, limit, own)
		if a == nil || err != nil {
			return nil, err
		}
		if a.Multi && len(a.Parts) < a.names {
			if _, err = removal.Remove(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, a.keys(), a.Rev); err != nil {
				return nil, err
			}
			continue
		}
		switch inUse := k.claim(a); {
		case inUse == nil:
			// The claim came first. Else another Adopt may take the entry, and release it, between the reading and the claim.
			var there bool
			if there, err = k.judge(ctx, a); there {
				k.keep(a)
				return a, nil
			}
			if k.Unclaim(a); err == nil {
				err = pause.Wait(ctx) // it was removed meanwhile
			}
		case inUse != waits:
			waits = inUse // what happened between the reading and the claim is not told
		default:
			select {
			case <-inUse:
			case <-ctx.Done():
				err = etcd.CtxError(ctx, nil)
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// oldest is the oldest entry of that name: see Adopt. It has no vacant and no Holds yet.
func (k *Keys) oldest(ctx context.Context, name string, limit int, own func(name string, rev int64) bool) (*Adopted, error) {
	var reads []etcd.Read
	for _, kind := range []keyspace.Kind{keyspace.Exclusive, keyspace.Shared} {
		reads = append(reads, etcd.ReadRangeValues(keyspace.Own(keyspace.Base(name, kind, int64(k.lease)))))
	}
	got, _, err := k.etcd.ReadAt(ctx, k.life, 0, reads...)
	if err != nil {
		return nil, err
	}
	kvs := slices.Concat(got[0].Kvs, got[1].Kvs)
	found := slices.DeleteFunc(k.parts(name, kvs), func(p Part) bool { return own(name, p.Rev) || k.wrote(p.kv()) })
	if len(found) == 0 {
		return nil, nil
	}
	a := &Adopted{Rev: found[0].Rev, Value: found[0].Value, Parts: found[:1]}
	names := ParseValue(a.Value, limit).Names
	if !slices.Contains(names, name) {
		return a, nil
	}
	a.Multi, a.names, a.Parts = true, len(names), nil
	reads = nil
	for _, name := range names {
		reads = append(reads, written(name, a.Rev))
	}
	got, _, err = k.etcd.ReadAt(ctx, k.life, 0, reads...)
	for i := range got {
		a.Parts = append(a.Parts, k.parts(names[i], got[i].Kvs)...)
	}
	return a, err
}

// written reads the keys of that name that were written at a revision.
func written(name string, rev int64) etcd.Read {
	from, to := keyspace.All(name)
	return etcd.ReadRangeValues(from, to, clientv3.WithMinCreateRev(rev), clientv3.WithMaxCreateRev(rev))
}

// parts are the entries of that name that hang on the lease, the oldest first.
func (k *Keys) parts(name string, kvs []*mvccpb.KeyValue) (all []Part) {
	s := queue.NewSnapshot(name)
	for _, kv := range kvs {
		if kv.Lease == int64(k.lease) && keyspace.IsKeyOf(string(kv.Key), int64(k.lease)) {
			s.Put(kv)
		}
	}
	for _, a := range s.Acquisitions() {
		all = append(all, Part{name, a})
	}
	return all
}

// judge says whether the entry is there, with these keys and no others, and whether it has its locks.
//
// Invariant (I3): it is one linearizable read, in which the entry is. Whatever blocks the entry is below it, and
// nothing is ever added there.
func (k *Keys) judge(ctx context.Context, a *Adopted) (there bool, err error) {
	var reads []etcd.Read
	for _, p := range a.Parts {
		from, to := keyspace.Blocking(p.Name, keyspace.KindOf(p.Name, p.Key))
		reads = append(reads, written(p.Name, a.Rev), etcd.ReadRange(from, to, clientv3.WithMaxCreateRev(a.Rev-1)))
	}
	got, at, err := k.etcd.ReadAt(ctx, k.life, 0, reads...)
	if err != nil {
		return false, err
	}
	a.At, a.Holds = at, true
	for i, p := range a.Parts {
		if now := k.parts(p.Name, got[2*i].Kvs); len(now) != 1 || now[0].Key != p.Key || now[0].SharedKey != p.SharedKey {
			return false, nil
		}
		if queue.Blocked(p.Name, keyspace.KindOf(p.Name, p.Key), a.Rev, queue.Entries(got[2*i+1].Kvs)) {
			a.Holds = false
		}
	}
	return true, nil
}
