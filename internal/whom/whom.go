// Package whom knows, for the waits of a session, whom they wait for: so that a wait that is given up can say
// so. One read serves all the waits for a name. It is made once one of them has lasted for a while or is about to
// end, so most waits cost none, and long ones no more.
package whom

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

const (
	// The read is made when a wait has lasted for after, or before earlier than its ctx ends; but not sooner than soon.
	after  = 2 * time.Second
	before = 500 * time.Millisecond
	soon   = 100 * time.Millisecond
	// limit is how many keys are read: those in front.
	limit = 64
	// readFor bounds the read. It is not repeated: what it is for matters less than what etcd has to do.
	readFor = time.Second
	// old is when an age is told too.
	old = 10 * time.Second
)

// Waits are those of a session. It is safe for concurrent use.
type Waits struct {
	KV clientv3.KV
	// Go runs a function on a goroutine with the session's ctx, or not at all.
	Go func(func(ctx context.Context)) bool

	mu    sync.Mutex
	names map[string]*waits
}

// waits are those for one name.
type waits struct {
	count  int
	last   int64       // the highest revision of their entries
	due    time.Time   // of the next read; zero if no wait has begun since the last read did
	timer  *time.Timer // of the read, and while it is made; nil if none is to come
	cancel func()      // of the read, nil before
	front  *queue.Snapshot
	more   bool // there is more behind front
	at     time.Time
}

// Enter notes that the entry of that revision waits for name until ctx ends.
func (w *Waits) Enter(ctx context.Context, name string, rev int64) {
	wait := after
	if end, ok := ctx.Deadline(); ok {
		wait = max(soon, min(after, time.Until(end)-before))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.names[name]
	if q == nil {
		if w.names == nil {
			w.names = make(map[string]*waits)
		}
		q = &waits{}
		w.names[name] = q
	}
	q.count++
	q.last = max(q.last, rev)
	if due := time.Now().Add(wait); q.due.IsZero() || due.Before(q.due) {
		q.due = due
		w.readLaterLocked(name, q)
	}
}

// readLaterLocked has the front of the queue read when that is due, or again after the read that is being made.
func (w *Waits) readLaterLocked(name string, q *waits) {
	switch {
	case q.timer == nil:
		q.timer = time.AfterFunc(time.Until(q.due), func() { w.Go(func(ctx context.Context) { w.read(ctx, name, q) }) })
	case q.timer.Stop():
		q.timer.Reset(time.Until(q.due))
	}
}

// Leave notes that a wait for name has ended. With the last of them a read ends too.
func (w *Waits) Leave(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.names[name]
	if q.count--; q.count > 0 {
		return
	}
	delete(w.names, name)
	if q.timer != nil {
		q.timer.Stop() // else it would start a goroutine for nothing
	}
	if q.cancel != nil {
		q.cancel()
	}
}

// read reads the front of the queue from any member. It is read again only for entries that came meanwhile.
func (w *Waits) read(ctx context.Context, name string, q *waits) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	w.mu.Lock()
	q.due, q.cancel = time.Time{}, cancel
	waited := q.count > 0
	w.mu.Unlock()
	if !waited {
		return
	}
	from, to := keyspace.All(name)
	got, err := w.KV.Get(ctx, from, clientv3.WithRange(to), clientv3.WithSerializable(), clientv3.WithLimit(limit),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	w.mu.Lock()
	defer w.mu.Unlock()
	q.timer = nil
	if err == nil {
		q.front, q.more, q.at = queue.NewSnapshot(name), got.More, time.Now()
		q.front.Rev = got.Header.Revision
		for _, kv := range got.Kvs {
			q.front.Put(kv)
		}
	}
	switch {
	case q.count == 0 || q.due.IsZero():
	case err != nil || q.last > q.front.Rev:
		w.readLaterLocked(name, q)
	default:
		q.due = time.Time{} // it has shown those that came meanwhile
	}
}

// Explain adds to err, that of a wait which was given up, whom the entry of that kind and revision waited for.
// It makes no request.
func (w *Waits) Explain(err error, name string, kind keyspace.Kind, rev int64) error {
	if ahead := w.ahead(name, kind, rev); ahead != "" {
		return fmt.Errorf("%s: %w", ahead, err)
	}
	return err
}

// ahead says how many are ahead of the entry, and who holds the lock. It is empty if nothing is known.
func (w *Waits) ahead(name string, kind keyspace.Kind, rev int64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.names[name]
	if q == nil || q.front == nil || q.front.Rev < rev { // of a member that lags, or before the entry came
		return ""
	}
	ahead, holders := 0, 0
	var first, last queue.Acquisition
	for _, a := range q.front.Acquisitions() {
		if last = a; a.Rev >= rev {
			break
		}
		if a.Holds {
			if holders++; holders == 1 {
				first = a
			}
		}
		if kind == keyspace.Exclusive || !a.Read {
			ahead++
		}
	}
	if ahead == 0 || holders == 0 {
		return ""
	}
	least := ""
	if q.more && last.Rev < rev {
		least = "at least "
	}
	text := fmt.Sprintf("%s%d ahead, held by %s (token %d)", least, ahead, ownerOf(first), first.Rev)
	if holders > 1 {
		text += fmt.Sprintf(" and %d more", holders-1)
	}
	if age := time.Since(q.at); age >= old {
		text += fmt.Sprintf(", as seen %v ago", age.Round(time.Second))
	}
	return text
}

// ownerOf is what the entry says of its owner, or else its key: others leave the value empty, or write what
// they like.
func ownerOf(a queue.Acquisition) string {
	var v struct {
		Owner string `json:"owner"`
	}
	if json.Unmarshal([]byte(a.Value), &v) != nil || v.Owner == "" {
		return a.Key
	}
	return v.Owner
}
