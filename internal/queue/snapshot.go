// A queue as somebody outside sees it, at one revision.

package queue

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// A Snapshot is what lies below a lock's prefix at one revision, as somebody sees it who only
// looks at the queue. It is as large as the queue is.
type Snapshot struct {
	Name    string
	Rev     int64
	Keys    map[string]Key // of entries
	Foreign map[string]struct{}
}

// A Key is a key of an entry.
type Key struct {
	Rev     int64 // of its creation
	Mod     int64 // of its last change
	Version int64
	Lease   int64
	Value   string
}

// NewSnapshot is an empty one.
func NewSnapshot(name string) *Snapshot {
	return &Snapshot{Name: name, Keys: make(map[string]Key), Foreign: make(map[string]struct{})}
}

// Put adds or changes a key. It reports whether the key is that of an entry.
func (s *Snapshot) Put(kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	if keyspace.KindOf(s.Name, key) == keyspace.Foreign {
		s.Foreign[key] = struct{}{}
		return false
	}
	s.Keys[key] = Key{kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, string(kv.Value)}
	return true
}

// Remove removes a key. It reports whether the key was that of an entry.
func (s *Snapshot) Remove(key string) bool {
	delete(s.Foreign, key)
	_, was := s.Keys[key]
	delete(s.Keys, key)
	return was
}

// First is the snapshot of the oldest entry alone: all keys of its revision.
func (s *Snapshot) First() *Snapshot {
	first, oldest := NewSnapshot(s.Name), int64(MaxRev)
	first.Rev = s.Rev
	for key, k := range s.Keys {
		if k.Rev < oldest {
			clear(first.Keys)
			oldest = k.Rev
		}
		if k.Rev == oldest {
			first.Keys[key] = k
		}
	}
	return first
}

// put is the type of an event that writes a key. Its name differs between etcd's versions 3.6 and 3.7, and clientv3, which
// has a name for both, is not for this package.
const put mvccpb.Event_EventType = 0

// Apply brings the snapshot from its revision to that of the last event, and reports whether
// an entry has changed. What it has seen already it passes over. Etcd never divides the events
// of a revision between two responses.
func (s *Snapshot) Apply(events []*mvccpb.Event) (changed bool) {
	at := s.Rev
	for _, ev := range events {
		switch {
		case ev.Kv.ModRevision <= at:
			continue // the read has shown it, or the watch began anew
		case ev.Type == put:
			changed = s.Put(ev.Kv) || changed
		default:
			changed = s.Remove(string(ev.Kv.Key)) || changed
		}
		s.Rev = ev.Kv.ModRevision
	}
	return changed
}

// An Acquisition is what somebody holds or waits for: an entry, or the two of a write lock.
type Acquisition struct {
	Key       string
	SharedKey string // the second key of a write lock
	Read      bool
	Holds     bool
	Rev       int64
	Mod       int64
	Version   int64
	Lease     int64
	Value     string
}

// LooksLikeData reports whether the key of an entry is most likely data that somebody keeps under the name of a lock.
// Each lock hangs on a lease, and each value that this package writes has a nonce. An entry that somebody has written
// anew by hand looks alike.
func (a Acquisition) LooksLikeData() bool {
	var v struct {
		Nonce string `json:"nonce"`
	}
	return a.Lease == 0 && (json.Unmarshal([]byte(a.Value), &v) != nil || v.Nonce == "")
}

// Acquisitions are those of the queue in its order.
func (s *Snapshot) Acquisitions() []Acquisition {
	out := make([]Acquisition, 0, len(s.Keys))
	type writer struct {
		rev   int64
		lease string
	}
	writers := make(map[writer]int)                        // to the place in out
	for _, key := range slices.Sorted(maps.Keys(s.Keys)) { // exclusive keys come first
		k := s.Keys[key]
		w := writer{k.Rev, keyspace.LeaseOf(s.Name, key)}
		read := keyspace.KindOf(s.Name, key) == keyspace.Shared
		if i, ok := writers[w]; ok && read && out[i].SharedKey == "" {
			out[i].SharedKey = key
			continue
		}
		if !read {
			writers[w] = len(out)
		}
		out = append(out, Acquisition{Key: key, Read: read, Rev: k.Rev, Mod: k.Mod, Version: k.Version, Lease: k.Lease, Value: k.Value})
	}
	slices.SortFunc(out, func(a, b Acquisition) int {
		return cmp.Or(cmp.Compare(a.Rev, b.Rev), strings.Compare(a.Key, b.Key))
	})
	s.markHolders(out)
	return out
}

// markHolders says which of the queue have the lock. The first entry and the first writer
// decide that alone: an exclusive entry waits for any before it, a shared one for a writer.
func (s *Snapshot) markHolders(queue []Acquisition) {
	var front []Entry
	for _, a := range queue {
		if len(front) == 0 || !a.Read {
			front = append(front, Entry{a.Key, a.Rev})
		}
		if !a.Read {
			break
		}
	}
	for i := range queue {
		a := &queue[i]
		a.Holds = !Blocked(s.Name, keyspace.KindOf(s.Name, a.Key), a.Rev, front)
	}
}
