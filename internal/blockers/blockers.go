// Package blockers knows whom the waits of a session wait for. So the error of a wait that is given up can name the holder, and
// the log can name a key that looks like data. One read serves all waits for a name. It is made once one of them has lasted
// for a while or is about to end, so most waits cost no read.
package blockers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
)

const (
	// The read is made when a wait has lasted for after, or before earlier than its ctx ends; but not sooner than soon.
	after  = time.Second
	before = 500 * time.Millisecond
	soon   = 100 * time.Millisecond
	// limit is how many keys are read: those in front.
	limit = 64
	// readFor bounds the read: a stall of some seconds is no reason to do without. The read is not repeated, since what it is for
	// matters less than what etcd has to do; nor by the client itself, as it would repeat a Get.
	readFor = 5 * time.Second
	// old is when an age is told too.
	old = 10 * time.Second
	// logAgain is after how long the log says again that data is in the way, and logKeys is of how many keys in that time.
	logAgain = time.Minute
	logKeys  = 16
)

// Waits are those of a session. It is safe for concurrent use.
type Waits struct {
	KV clientv3.KV
	// Go runs a function on a goroutine with the session's ctx, or not at all.
	Go  func(func(ctx context.Context)) bool
	Log *slog.Logger

	mu     sync.Mutex
	names  map[string]*waits
	logged map[string]time.Time // when the log has named a key
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
	got, err := w.KV.Txn(ctx).Then(clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithSerializable(), clientv3.WithLimit(limit),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))).Commit()
	if data := w.note(name, q, got, err); data != "" {
		w.Log.Warn("a lock waits for a key that has no lease: it looks like data; keep data and lock names apart", "lock", name, "key", data)
	}
}

// note takes note of what was read, and returns the key that the log is to name, if there is one.
func (w *Waits) note(name string, q *waits, got *clientv3.TxnResponse, err error) (data string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.timer = nil
	if err == nil {
		front := got.Responses[0].GetResponseRange()
		q.front, q.more, q.at = queue.NewSnapshot(name), front.More, time.Now()
		q.front.Rev = got.Header.Revision
		for _, kv := range front.Kvs {
			q.front.Put(kv)
		}
		for _, a := range q.front.Acquisitions() {
			if a.Rev < q.last && a.LooksLikeData() && q.count > 0 {
				data = a.Key
				break
			}
		}
	}
	switch {
	case q.count == 0 || q.due.IsZero():
	case err != nil || q.last > q.front.Rev:
		w.readLaterLocked(name, q)
	default:
		q.due = time.Time{} // it has shown those that came meanwhile
	}
	if data == "" {
		return ""
	}
	maps.DeleteFunc(w.logged, func(_ string, at time.Time) bool { return time.Since(at) >= logAgain })
	if !w.logged[data].IsZero() || len(w.logged) >= logKeys {
		return ""
	}
	if w.logged == nil {
		w.logged = make(map[string]time.Time)
	}
	w.logged[data] = time.Now()
	return data
}

// Blockers are what a wait that was given up has waited for.
type Blockers struct {
	Count  int    // of acquisitions, at least
	Holder string // the owner of the lock, or of the first of its readers, as it says itself
	Token  int64  // of the holder
	Text   string // all of that in words, and what looks like data
}

// Of says whom the entry of that kind and revision waits for. It is false if nothing is known. It makes no request.
func (w *Waits) Of(name string, kind keyspace.Kind, rev int64) (b Blockers, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.names[name]
	if q == nil || q.front == nil || q.front.Rev < rev { // of a member that lags, or before the entry came
		return Blockers{}, false
	}
	holders, data := 0, ""
	var last queue.Acquisition
	for _, a := range q.front.Acquisitions() {
		if last = a; a.Rev >= rev {
			break
		}
		if a.Holds {
			if holders++; holders == 1 {
				b.Holder, b.Token = ownerOf(a), a.Rev
			}
		}
		if kind == keyspace.Exclusive || !a.Read {
			b.Count++
			if data == "" && a.LooksLikeData() {
				data = a.Key
			}
		}
	}
	if b.Count == 0 || holders == 0 {
		return Blockers{}, false
	}
	least := ""
	if q.more && last.Rev < rev {
		least = "at least "
	}
	b.Text = fmt.Sprintf("%s%d ahead, held by %s (token %d)", least, b.Count, b.Holder, b.Token)
	if holders > 1 {
		b.Text += fmt.Sprintf(" and %d more", holders-1)
	}
	if age := time.Since(q.at); age >= old {
		b.Text += fmt.Sprintf(", as seen %v ago", age.Round(time.Second))
	}
	if data != "" {
		b.Text += "; " + data + " has no lease: it looks like data; keep data and lock names apart"
	}
	return b, true
}

// maxOwner is how much of an owner's text an error shows, in bytes.
const maxOwner = 200

// ownerOf is what the entry says of its owner, or else its key: others leave the value empty, or write what
// they like. So it is cut short, and quoted if it has line feeds, escapes or quotes in it.
func ownerOf(a queue.Acquisition) string {
	var v struct {
		Owner string `json:"owner"`
	}
	if json.Unmarshal([]byte(a.Value), &v) != nil || v.Owner == "" || a.LooksLikeData() {
		return a.Key
	}
	owner := v.Owner
	if len(owner) > maxOwner {
		owner = strings.ToValidUTF8(owner[:maxOwner], "") + "..."
	}
	if quoted := strconv.Quote(owner); quoted != `"`+owner+`"` {
		return quoted
	}
	return owner
}
