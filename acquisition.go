// An acquisition in the queue: its keys, and the txn that writes them.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// An entry is one acquisition: a key in the lock's queue, waiting or holding. This file puts it there, internal/wait
// waits, and release.go takes it away.
type entry struct {
	s    *Session
	name string
	// first is the first part of a Multi's acquisition, itself included: its mu and state are those of all parts. It
	// is nil in any other entry. See multi.go.
	first *entry
	// rev is the keys' CreateRevision: place in the queue and token.
	//
	// Invariant (I5): an entry's identity is (key, rev). Whatever releases it compares both, so a late or repeated
	// request of ours can't touch a newer entry under the same key.
	rev int64

	mu    sync.Mutex // once the entry is held it guards what follows
	mode  mode
	state state
	// ambiguous: an attempt to write the keys may have been carried out, or may yet be, without our knowing.
	ambiguous bool
	// announced: the hooks were told of the grant. lossUnreported: the entry is lost and they were not told of that;
	// see unlockAndNotify.
	announced, lossUnreported bool
	// lostWithSession: it was lost because the session ended, by what was known then. confirming: that is being asked.
	lostWithSession, confirming bool
	// fenced: its holder may have sent a transaction that compares the key; downgraded: of a write lock only the
	// shared key is left.
	fenced, downgraded bool
	own                *waitlist.Entry // nil while it is the only one of its name: see enlist
	// key is what the entry is known by.
	key       string
	acquiring *acquiring   // nil of a hold that does without
	holdCtx   *holdContext // nil until asked for
}

// acquiring is what an entry needs until it is held, and then only if it is a write lock, a Multi or ambiguous, or has
// hooks: see grant. Most holds do without; of 10,000 locks it would be half the memory.
type acquiring struct {
	// behind: a part of a Multi had something before it, so that in the end all parts are read: others may have been
	// removed meanwhile.
	behind bool
	trace  *trace // for hooks, nil without
	// secondKey is a write lock's key in the shared range, of the same revision, which Downgrade leaves.
	secondKey string
	downgrade *settle.Outcome // nil before
	value     string          // of the keys; its nonce is in no other entry's value, if it is not raw
	published *published
	parts     []*entry // of a Multi, which have this in common
}

// published is what an entry says to programs: in a field of its value or, if it is raw, as the value itself.
type published struct {
	value string
	raw   bool
}

// mode is the kind of hold that an entry asks for.
type mode uint8

const (
	mutexMode mode = iota
	readMode
	writeMode // like mutexMode, but it can be downgraded to readMode
)

func (m mode) kind() keyspace.Kind {
	if m == readMode {
		return keyspace.Shared
	}
	return keyspace.Exclusive
}

// state says how far an entry is. It only goes down this list, and only in transition.
type state uint8

const (
	enqueued  state = iota // its keys are written, or may be
	held                   // granted
	released               // released by its holder
	abandoned              // withdrawn before its owner had it
	lost                   // removed by somebody else, or with its session
)

// transition changes the state. The caller holds e.mu. It returns false if the entry has come to its end before:
// whoever ends it first says why.
func (e *entry) transition(to state) bool {
	switch {
	case e.state >= released:
		return false
	case to == held && e.state == enqueued,
		to == released && e.state == held,
		to == abandoned && e.state == enqueued,
		to == lost && e.state == held:
		e.state = to
		return true
	}
	panic("bug: entry " + e.key + " can't go from state " + strconv.Itoa(int(e.state)) + " to " + strconv.Itoa(int(to)))
}

// reserveKeys reserves the lowest free keys of the name for the entry.
func (e *entry) reserveKeys() {
	for p := range e.all() {
		p.key = e.s.keys.Take(p.name, p.mode.kind())
	}
	if e.mode == writeMode {
		e.acquiring.secondKey = e.s.keys.Take(e.name, keyspace.Shared)
	}
	var names []string
	if e.first != nil {
		names = e.names()
	}
	switch p := e.acquiring.published; {
	case p == nil:
		e.acquiring.value = e.s.keys.Value(time.Now(), names, "")
	case p.raw:
		e.acquiring.value = p.value
		e.s.keys.WriteRaw(p.value, e.allKeys()...)
	default:
		e.acquiring.value = e.s.keys.Value(time.Now(), names, p.value)
	}
}

// keys are all keys of the entry, or of the part of a Multi that it is.
func (e *entry) keys() []string {
	if e.acquiring != nil && e.acquiring.secondKey != "" {
		return []string{e.key, e.acquiring.secondKey}
	}
	return []string{e.key}
}

// allKeys are those of all parts.
func (e *entry) allKeys() []string {
	if e.first == nil {
		return e.keys()
	}
	var keys []string
	for p := range e.all() {
		keys = append(keys, p.key)
	}
	return keys
}

// keysAbsent are the compares, and putOps the operations, that write the entry's keys where there are none.
func (e *entry) keysAbsent() (cmps []clientv3.Cmp) {
	for _, key := range e.allKeys() {
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
	}
	return cmps
}

func (e *entry) putOps() (ops []clientv3.Op) {
	for _, key := range e.allKeys() {
		ops = append(ops, clientv3.OpPut(key, e.acquiring.value, clientv3.WithLease(e.s.lease.ID)))
	}
	return ops
}

// commit sends the txn that writes the entry. It is safe to repeat, since a repetition finds the keys of an earlier
// attempt.
func (e *entry) commit(ctx context.Context, build func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	resp, ambiguous, err := e.s.lease.Txn(ctx, build)
	if etcd.ReplyTooLarge(err) { // that to a repetition is short: it finds what the first one has written
		resp, _, err = e.s.lease.Txn(ctx, build)
	}
	e.ambiguous = e.ambiguous || ambiguous
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.s.lease.NotFound()
		err = e.s.Err() // that it is closed, if it was Close that revoked the lease
	}
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		err = fmt.Errorf("%w: etcd's --max-txn-ops allows less than the %d that these names need", err, 2*len(e.allKeys()))
	}
	return resp, err
}

// enqueueReadLimit is how many keys the txn of enqueue reads: enough to show all of most queues. Measured on etcd
// 3.7: sixteen keys cost the apply loop 5 us where they are there, a read afterwards costs a round trip.
const enqueueReadLimit = 16

// enqueue puts the entry at the end of the queue: one request, one commit. The read stands before the writes and so
// shows the queue without the entry. It is limited, and in key order: to sort by create revision, etcd would load the
// whole queue, in the apply loop of every member. Even so etcd counts all of the queue there, so an entry far behind
// others of its session leaves the read out: it would not show all, and is asked for again when the entry comes near
// the front. Before all that it removes what leaves the queue. since are, of each part, the revision at which nothing
// blocked it, if that is known: then the read shows all that came later.
func (e *entry) enqueue(ctx context.Context, since ...int64) error {
	for ; ; e.rekey() {
		var look []clientv3.Op
		own := e.listed()
		if own == nil || e.first != nil || !own.BehindMore(enqueueReadLimit) {
			look = e.listOps(enqueueReadLimit, since...)
		}
		leaving := e.s.removals.Take(e.name, own != nil)
		leave := leaving.Ops()
		txn := func(t clientv3.Txn) clientv3.Txn {
			return t.If(e.keysAbsent()...).Then(slices.Concat(leave, look, e.putOps())...)
		}
		resp, err := e.commit(ctx, txn)
		// What the entry itself needs may be allowed.
		if len(leaving) > 0 && (errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) || etcd.RequestTooLarge(err)) {
			e.s.removals.Return(e.name, leaving, e.ambiguous)
			leaving, leave = nil, nil
			resp, err = e.commit(ctx, txn)
		}
		if own != nil {
			e.s.removals.Replied(e.name)
		}
		if err != nil {
			e.s.removals.Return(e.name, leaving, e.ambiguous)
			return err
		}
		if resp.Succeeded {
			rev, replies := resp.Header.Revision, resp.Responses
			// No attempt before this one was carried out: it would have left the keys. So this one tells what was removed.
			leaving.Done(rev, replies[:len(leave)], false)
			e.enter(rev, replies[len(leave):len(leave)+len(look)]...)
			return nil
		}
		e.s.removals.Return(e.name, leaving, e.ambiguous)
		// This is seldom needed: an Else in the txn would make each uncontended cycle 0.9 % longer.
		there, err := e.s.etcd.ReadValues(ctx, e.s.lease.Ctx, e.allKeys()...)
		if err != nil {
			e.ambiguous = true // the client may have repeated the txn by itself
			return e.s.lease.Translate(err)
		}
		if rev := e.ownRev(there); rev != 0 {
			e.enter(rev)
			return nil
		}
		e.s.keys.Skip(e.allKeys(), there)
	}
}

// listOps list, for each part, at most limit of the keys that may block it, or all that came after the revision since.
func (e *entry) listOps(limit int64, since ...int64) (ops []clientv3.Op) {
	for p := range e.all() {
		from, to := keyspace.Blocking(p.name, p.mode.kind())
		some := clientv3.WithLimit(limit)
		if len(since) > 0 {
			some = clientv3.WithMinCreateRev(since[len(ops)] + 1)
		}
		ops = append(ops, clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithKeysOnly(), some))
	}
	return ops
}

func (e *entry) raw() bool { return e.acquiring.published != nil && e.acquiring.published.raw }

// ownRev is the revision of kvs, the key of the entry as etcd has it, if it was written by an earlier attempt of this
// very entry, else 0.
func (e *entry) ownRev(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 || string(kvs[0].Value) != e.acquiring.value || e.raw() && !e.s.keys.WroteRaw(e.ambiguous, e.allKeys()...) {
		return 0
	}
	return kvs[0].CreateRevision
}
