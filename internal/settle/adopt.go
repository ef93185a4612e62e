// The entries that hang on an adopted lease: those of the session that had it before.

package settle

import (
	"context"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
// It begins with the keys that an earlier call has listed, since each of many calls would list all keys of the lease. What was
// written since is younger, but for a key that was written anew. So if an entry from there does not have the lock, or if there
// is none, Adopt lists the keys itself.
//
// Invariant (I6): a key has one user. An acquisition of the session may be about to write where the entry is, as both derive
// their keys from the lease. Etcd refuses that write, so Adopt waits until the acquisition has taken other keys, or was given up.
func (k *Keys) Adopt(ctx context.Context, name string, limit int, own func(name string, rev int64) bool) (*Adopted, error) {
	var pause etcd.Backoff
	listing, listed := k.listed(), false
	for {
		changed := k.nextChange() // before the reading
		a, err := k.oldest(ctx, k.listedOf(listing, name), name, limit, own)
		again := false
		switch {
		case err != nil:
		case a == nil && listed:
			return nil, nil
		case a == nil:
			again = true
		case a.Multi && len(a.Parts) < a.names:
			_, err = removal.Remove(ctx, k.etcd, etcd.Policy{Life: k.life, Hedge: true}, a.keys(), a.Rev)
		case !k.claim(a):
			select {
			case <-changed:
				listed = false
			case <-ctx.Done():
				err = etcd.CtxError(ctx, nil)
			}
		default:
			// The claim came first. Else another Adopt may take the entry, and release it, between the reading and the claim.
			var there bool
			if there, err = k.judge(ctx, a); there && (a.Holds || listed) {
				k.keep(a)
				return a, nil
			}
			if k.Unclaim(a); err == nil && !there {
				err = pause.Wait(ctx) // it was removed meanwhile, or was listed while it was written
			}
			again = true
		}
		if again && err == nil {
			listing, err = k.list(ctx)
			listed = true
		}
		if err != nil {
			return nil, err
		}
	}
}

// attachments are the keys on the lease that have the form of the session's, by name. The mutex of Keys guards it.
type attachments map[string][]string

// list lists the keys on the lease, also for the calls of Adopt to come. Keys that are written at the moment may be missing,
// even some keys of one entry.
func (k *Keys) list(ctx context.Context) (attachments, error) {
	attached, err := k.attached(ctx)
	if err != nil {
		return nil, err
	}
	l := make(attachments)
	for _, key := range attached {
		if keyspace.IsKeyOf(key, int64(k.lease)) {
			name := key[:strings.LastIndexByte(key, '/')]
			l[name] = append(l[name], key)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = l
	return l, nil
}

// listed is the last listing, without what was adopted since.
func (k *Keys) listed() attachments {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.left
}

func (k *Keys) listedOf(l attachments, name string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(l[name])
}

// oldest is the oldest entry of that name under the keys that were listed: see Adopt. It has no vacant and no Holds yet.
func (k *Keys) oldest(ctx context.Context, keys []string, name string, limit int, own func(name string, rev int64) bool) (*Adopted, error) {
	kvs, err := k.etcd.ReadValues(ctx, k.life, keys...)
	if err != nil {
		return nil, err
	}
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
	var reads []etcd.Read
	for _, name := range names {
		reads = append(reads, written(name, a.Rev))
	}
	got, _, err := k.etcd.ReadAt(ctx, k.life, 0, reads...)
	for i := range got {
		a.Parts = append(a.Parts, k.parts(names[i], got[i].Kvs)...)
	}
	return a, err
}

// written reads the keys of that name that were written at a revision.
func written(name string, rev int64) etcd.Read {
	from, to := keyspace.All(name)
	return etcd.ReadRange(from, to, clientv3.WithMinCreateRev(rev), clientv3.WithMaxCreateRev(rev))
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
