// Looking at queues from outside: once, or for as long as one likes, and removing an entry. What such a look shows.

package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/settle"
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
	// Owner and Queued are what the maker of the entry says: see WithOwner, and the time by the clock of the maker's
	// machine. Anybody may have written anything there: quote the owner where it is printed.
	Owner  string    `json:"owner,omitempty"`
	Queued time.Time `json:"queued,omitzero"`
	// Names are all names that the entry's Multi locks, with a line feed between them, as its owner says. In the queue of each
	// name is an entry of the same token; the Multi has its locks when all these entries hold. If the entry is of no Multi,
	// Names is empty.
	Names string `json:"-"`
	// Data: the entry has no lease, and this package did not write its value. So the entry looks like data that somebody keeps
	// under the name of a lock. It blocks all the same, and Break deletes it. Value is all of the data.
	Data bool `json:"data,omitempty"`
	// Value is what the entry publishes, by WithValue, SetValue or Raw; of entries of etcd's own locks and elections it
	// is all that they wrote. As with Owner, anybody may have written anything there.
	Value string `json:"value,omitempty"`
	// ModRevision is the revision at which the value was last written, Version how often it was.
	ModRevision int64 `json:"-"`
	Version     int64 `json:"-"`
	// Lease is what the entry hangs on: the entry goes with the lease. An entry with no lease (0), which this package does
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

// Inspect reads the queue of a lock, of any kind. The queue of a lock that nobody uses is empty. It needs no session,
// and read rights on the prefix name + "/" only.
//
// It costs a linearizable read for each thousand keys, all at one revision, and then a request for each lease in the queue,
// eight at a time, since etcd reports TTLs apart from keys: the TTLs are of a moment later. The first
// state of Watch costs one read and has no TTLs.
//
// It blocks until etcd has answered, through leader changes and members that hang, or ctx ends.
func (c *Client) Inspect(ctx context.Context, name string) (_ Queue, err error) {
	defer func() { err = wrapNeeding("read", name+"/", "inspect", name, err) }()
	if err = c.checkLook(name); err != nil {
		return Queue{}, err
	}
	client := etcd.NewClient(c.etcd)
	s, err := inspect.Read(ctx, client, name)
	if err != nil {
		return Queue{}, err
	}
	q := newQueue(s)
	if err = inspect.TTLs(ctx, client, q.Entries, func(e Entry) clientv3.LeaseID { return e.Lease }, func(e *Entry, ttl inspect.TTL) {
		e.TTL, e.GrantedTTL = ttl.Left, ttl.Granted
	}); err != nil {
		return Queue{}, err
	}
	return q, nil
}

// Watch yields the queue of a lock as it is, then again whenever an entry has come, gone, been downgraded or got another
// value, each time the newest state there is. A loop that is slow misses states in between, and costs no more memory than one
// queue. Every state is one that the lock had at its Revision, and is newer than the one before (unless etcd itself
// was restored from a snapshot). The queue of a lock that nobody uses is empty, and is yielded too.
//
// Leader changes, compaction, lost connections and members that hang delay the next state, by some ten seconds at the
// most once a majority of etcd answers again; nothing is yielded for them. An error is the last thing that is
// yielded: ctx's error when that has ended, or why it is useless to go on, for example that a right is missing, or that the
// etcd client was closed. So the loop ends with an error, unless you leave it.
//
// It needs no session, and read rights on the prefix name + "/" only. It costs a watch and a read (see [Client.Inspect], but no
// TTLs are read), one small read each five seconds, and a goroutine that has ended when the loop has.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		if err := c.checkLook(name); err != nil {
			yield(Queue{}, wrapNeeding("read", name+"/", "watch", name, err))
			return
		}
		for q, err := range inspect.Follow(ctx, inspect.NewFollower(c.etcd, name), newQueue) {
			if !yield(q, wrapNeeding("read", name+"/", "watch", name, err)) {
				return
			}
		}
	}
}

// ListNames yields the names of all locks that have entries, holding or waiting, and whose names start with prefix,
// "" for all: each once, and a nested name, such as "a/b", before the name that it is nested in, "a". It goes by the
// keys alone: any key "<name>/<hex>" is an entry of that name, no matter who wrote it.
//
// It costs a linearizable read of keys for each ten thousand keys that start with prefix, made when the loop comes so
// far, and holds no more keys at a time. The reads show different revisions: a name whose entries come or go
// during the loop may be missed or not, all others are yielded.
//
// It blocks while etcd does not answer, until ctx ends. An error is the last thing that is yielded; without one, the
// loop has seen all.
func (c *Client) ListNames(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ok, err := true, c.usable()
		if err == nil {
			err = inspect.Names(ctx, etcd.NewClient(c.etcd), prefix, inspect.NamesPage, func(name string) bool {
				ok = yield(name, nil)
				return ok
			})
		}
		if ok && err != nil {
			yield("", wrapNeeding("read", prefix, "list the names below", prefix, err))
		}
	}
}

// checkLook is the error of a call that looks at a queue.
func (c *Client) checkLook(name string) error { return cmp.Or(c.usable(), checkName(name, c.slash())) }

// newQueue is the public form of a snapshot.
func newQueue(s *queue.Snapshot) Queue {
	q := Queue{Name: s.Name, Revision: s.Rev, Entries: make([]Entry, 0, len(s.Keys)), Foreign: slices.Sorted(maps.Keys(s.Foreign))}
	for _, a := range s.Acquisitions() {
		e := Entry{Name: s.Name, Key: a.Key, SharedKey: a.SharedKey, Token: a.Rev, Holds: a.Holds, Read: a.Read, ModRevision: a.Mod, Version: a.Version, Lease: clientv3.LeaseID(a.Lease)}
		v := settle.ParseValue(a.Value, maxParts)
		if e.Data = a.LooksLikeData(); e.Data {
			v = settle.Parsed{Published: a.Value}
		}
		e.Owner, e.Queued, e.Names, e.Value = v.Owner, v.Queued, strings.Join(v.Names, "\n"), v.Published
		q.Entries = append(q.Entries, e)
	}
	return q
}

// Break removes an entry from its queue: that very acquisition, and no other of the same owner, lease or key. It is
// for a lock that does not come back by itself: its holder hangs and renews its lease all the same, or the entry has
// no lease. An entry with Data is most likely no lock but what somebody has stored: Break destroys that. e is what Inspect or
// Watch showed; its Name, Key, SharedKey and Token count.
//
// Of a Multi Break removes the entry of this name. Then all of the Multi is lost: the holder, when it hears of the loss,
// removes the other entries.
//
// A waiter then gets ErrLost from Lock. A holder's Context ends with ErrLost within 500 ms, if it reaches etcd and
// uses it; see [Held.Context]. The next entry is granted at once, so until then two may be in the section: what
// matters must be protected by [Held.Token] or [Held.Txn].
//
// It blocks until etcd has confirmed, one request and one commit, or ctx ends; if ctx ends, the entry may be gone or not.
// ErrNotFound says that it was gone already: released, broken or expired. If a reply was lost, and the request
// repeated, nobody can tell who removed the entry, and Break returns nil.
func (c *Client) Break(ctx context.Context, e Entry) error {
	err, found := c.checkLook(e.Name), true
	if err == nil {
		found, err = removal.RemoveAny(ctx, etcd.NewClient(c.etcd), e.Name, e.Token, e.Key, e.SharedKey)
	}
	if err == nil && !found {
		err = fmt.Errorf("%w: %s with token %d", ErrNotFound, e.Key, e.Token)
	}
	return wrapNeeding("readwrite", e.Name+"/", "break an entry of", e.Name, err)
}
