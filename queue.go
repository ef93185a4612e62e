// What Inspect and Watch show: a queue, and its entries.

package etcdlock

import (
	"encoding/json"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/inspect"
)

// An Entry is one acquisition in a lock's queue, holding or waiting, as somebody who looks at the queue sees it. It
// is a value, of the moment that its Queue names; who holds the lock itself has a [Held] or a [Ticket].
//
// Entries of other programs that queue on the same name (etcd's concurrency.Mutex, `etcdctl lock`, v3lock) are entries too;
// they tell no owner and no time, and an Election tells its value.
type Entry struct {
	Name string `json:"name"` // of the lock
	Key  string `json:"key"`  // that it is known by
	// SharedKey is the second key of a write lock, which a downgrade leaves; it is empty for any other entry.
	SharedKey string `json:"sharedKey,omitempty"`
	// Token is the create revision of its keys: its place in the queue, and what Held.Token returns. Name, key and
	// token together are the entry: the same key with another token is a later acquisition.
	Token int64 `json:"token"`
	Holds bool  `json:"holds"` // it has the lock; false: it waits
	Read  bool  `json:"read"`  // for reading, so beside other readers; false: for itself alone
	// Owner and Queued are what the one who made the entry says: see WithOwner, and the time by the clock of its
	// machine. Anybody may have written anything there: quote the owner where it is printed.
	Owner  string    `json:"owner,omitempty"`
	Queued time.Time `json:"queued,omitzero"`
	// Names are, of an entry of a Multi, all names that it locks, with a line feed between them, as its owner says.
	// In the queue of each is an entry of the same token; the acquisition has its locks when all of them hold. Of
	// other entries it is empty.
	Names string `json:"-"`
	// Data: it has no lease, and this package did not write its value. So it looks like data that somebody keeps under
	// the name of a lock. It blocks all the same, and Break deletes it. Value is all of that.
	Data bool `json:"data,omitempty"`
	// Value is what the entry publishes, by WithValue, SetValue or Raw; of entries of etcd's own locks and elections it
	// is all that they wrote. As with Owner, anybody may have written anything there.
	Value string `json:"value,omitempty"`
	// ModRevision is the revision at which the value was last written, Version how often it was.
	ModRevision int64 `json:"-"`
	Version     int64 `json:"-"`
	// Lease is what the entry hangs on: with it the entry goes. An entry with no lease (0), which this package does
	// not make, stays until somebody deletes its key; see Break.
	Lease clientv3.LeaseID `json:"-"`
	// TTL is for how long the lease still lives if nobody renews it, in whole seconds, GrantedTTL how long it lives
	// after a renewal. Both are zero if there is no lease, if it has expired meanwhile, and in what Watch yields.
	TTL        time.Duration `json:"-"`
	GrantedTTL time.Duration `json:"-"`
}

// A Queue is the state of a lock at one revision of etcd: who has it and who waits for it.
type Queue struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	// Entries are in the order of the queue, oldest first: by their tokens.
	Entries []Entry `json:"entries"`
	// Foreign are the keys below the name that are no entries, in key order: those of locks nested in it, such as
	// "a/b" in "a", and stray ones. This package passes them over; a concurrency.Mutex of that name waits for them.
	Foreign []string `json:"foreign,omitempty"`
}

// Holders are the entries that have the lock: none, one, or readers.
func (q Queue) Holders() []Entry {
	return slices.DeleteFunc(slices.Clone(q.Entries), func(e Entry) bool { return !e.Holds })
}

// Waiters are the entries that wait for the lock, the next one first.
func (q Queue) Waiters() []Entry {
	return slices.DeleteFunc(slices.Clone(q.Entries), func(e Entry) bool { return e.Holds })
}

// entryJSON is an Entry for people and scripts.
type entryJSON struct {
	plainEntry
	inspect.JSON
}

type plainEntry Entry // has no methods

// MarshalJSON writes the lease in hex, and the TTLs in seconds.
func (e Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(entryJSON{plainEntry(e), inspect.ToJSON(e.Names, e.Lease, e.TTL, e.GrantedTTL)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Entry) UnmarshalJSON(b []byte) (err error) {
	var j entryJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*e = Entry(j.plainEntry)
	e.Names, e.Lease, e.TTL, e.GrantedTTL, err = j.Values()
	return err
}
