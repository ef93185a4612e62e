// Package settle has the keys of a session's entries: which of them are in use, and what their value says. It makes sure
// that nothing of a key is left or to come. Only then is the key used anew. It knows nothing of sessions, waits or holds.
package settle

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// Keys are the keys that the entries of one session have, all on its lease: which of them are in use, and
// which may yet be written by a request that was given up. They are safe for concurrent use.
type Keys struct {
	etcd  *etcd.Client
	lease clientv3.LeaseID
	// life ends when the lease is known to be gone. Until then it is worth while to remove keys.
	life context.Context
	// background runs f until life ends at the latest. It does not run f if that is near.
	background func(f func(ctx context.Context)) bool
	owner      []byte        // in JSON
	nonce      string        // begins the nonce of every value: 65 random bits
	seq        atomic.Uint64 // of the last nonce
	rights     rights

	mu    sync.Mutex // a leaf: no other mutex is taken while it is held
	inUse keyspace.InUse
	// entering are the keys in use that may not be written yet: see Entered.
	entering map[string]struct{}
	// vacant are the keys in use that no entry of the session has. The value is what settles the key.
	vacant  map[string]*unsettled
	raw     map[string]rawValue      // by key, the value there that has no nonce of the session, see WriteRaw and claim
	changed map[string]chan struct{} // by key, closed when an entry has come to the key or left it; only keys that an Adopt waits for
	// What follows is for the search for late writes.
	doubted   bool // ever: a request may write a key late
	unswept   bool // the last Sweep has left some
	unsettled []*unsettled
	timer     *time.Timer // of the next search
	searching bool
	searched  time.Time // when the last search ended
}

// New makes the Keys of a lease. life ends with the lease; background runs a function in the background
// until then, or returns false. owner is who the values say has the entries.
//
// The system draws the nonce, as a clone of this virtual machine would draw the same one from math/rand.
func New(life context.Context, client *etcd.Client, lease clientv3.LeaseID, owner string, background func(f func(ctx context.Context)) bool) *Keys {
	return &Keys{
		etcd: client, lease: lease, life: life, background: background,
		owner: inJSON(owner), nonce: rand.Text()[:13] + ".", rights: rights{turn: make(chan struct{}, 1)},
		inUse: make(keyspace.InUse), entering: make(map[string]struct{}), vacant: make(map[string]*unsettled), raw: make(map[string]rawValue), changed: make(map[string]chan struct{}),
	}
}

// SetLease is called when etcd has granted another lease than New was told of, before any key is taken.
func (k *Keys) SetLease(id clientv3.LeaseID) { k.lease = id }

// Take reserves the lowest free key of that name and kind.
func (k *Keys) Take(name string, kind keyspace.Kind) (key string) {
	base := keyspace.Base(name, kind, int64(k.lease))
	k.mu.Lock()
	defer k.mu.Unlock()
	key = k.inUse.Take(base)
	k.entering[key] = struct{}{}
	return key
}

// Free makes keys free that were never written or are removed: nothing of them is left or to come.
// If that is not known, use Settle.
func (k *Keys) Free(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		k.freeLocked(key)
	}
	k.tellLocked(keys)
}

func (k *Keys) freeLocked(key string) {
	k.inUse.Free(key)
	delete(k.entering, key)
	if raw, ok := k.raw[key]; ok {
		raw.freed = time.Now()
		k.raw[key] = raw
	}
}

// InUse reports whether any key is in use. It is for tests.
func (k *Keys) InUse() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.inUse) > 0
}

// None reports whether the lease has no keys of the session, nor ever had a request that may yet write one, as far as
// the session can know.
func (k *Keys) None() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.doubted && len(k.inUse) == 0
}

// Swept reports whether the last Sweep has left no late write.
func (k *Keys) Swept() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.unswept
}

// uses reports whether an entry uses the key.
func (k *Keys) uses(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.usesLocked(key)
}

func (k *Keys) usesLocked(key string) bool {
	_, vacant := k.vacant[key]
	return !vacant && k.inUse.Has(key)
}
