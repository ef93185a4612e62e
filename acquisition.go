// An acquisition in the queue: its keys, and the txn that writes them.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/sender"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// An acquisition is what Lock, Try and Enqueue make. It has one part for each name, at least one, and all parts are
// written by one txn, at one revision, and removed by one request. This file puts it into the queues, waiter.go waits, and
// release.go takes it away.
//
// Nobody waits in a circle: a part waits for lower revisions only, and all parts have the same one. Where a list hands a
// part over before the former holder's key is removed, that holder has left: its removal waits for nobody. So among all
// that wait, the acquisition of the lowest revision waits only for holders.
type acquisition struct {
	s     *Session
	parts []part  // never none; only mu guards what changes in them
	one   [1]part // the memory of parts where there is one: most acquisitions are of one name
	multi bool    // it is a Multi's, perhaps of one name
	// rev is the keys' CreateRevision: place in the queue and token.
	//
	// Invariant (I5): an entry's identity is (key, rev). Whatever releases it compares both, so a late or repeated
	// request of ours can't touch a newer entry under the same key.
	rev int64

	mu    sync.Mutex // guards what follows; before the grant only the acquiring goroutine writes ambiguous
	state state
	// ambiguous: an attempt to write the keys may have been carried out, or may yet be, without our knowing.
	ambiguous bool
	// announced: the hooks were told of the grant. lossUnreported: the acquisition is lost and they were not told of
	// that; see unlockAndNotify.
	announced, lossUnreported bool
	// lostWithSession: it was lost because the session ended, by what was known then. confirming: that is being asked.
	lostWithSession, confirming bool
	// fenced: its holder may have sent a transaction that compares a key; downgraded: of a write lock only the shared
	// key is left.
	fenced, downgraded bool
	acquiring          *acquiring   // nil of a hold that does without
	holdCtx            *holdContext // nil until asked for
}

// A part is an acquisition's share in one name.
type part struct {
	of   *acquisition
	name string
	// keys are written together. The part is known by the first one. A write lock has two, one in the shared range, which
	// Downgrade leaves.
	keys []string
	mode mode
	own  *waitlist.Entry // its place in the session's waitlist of the name, from before its keys are written: see enlist
}

// acquiring is what an acquisition needs until it is held, and then only if it is ambiguous or has hooks: see grant.
// Most holds do without; of 10,000 locks it would be half the memory.
type acquiring struct {
	// behind: a part had something before it. So in the end all parts are read, if there are several: some may have been
	// removed meanwhile.
	behind    bool
	trace     *trace // for hooks, nil without
	value     string // of the keys; its nonce is in no other acquisition's value, if it is not raw
	published *published
}

// newAcquisition makes an acquisition of these names.
func newAcquisition(s *Session, multi bool, names []Part, with acquiring) *Held {
	h := &Held{acquisition{s: s, multi: multi, acquiring: &with}}
	if h.parts = h.one[:]; len(names) > 1 {
		h.parts = make([]part, len(names))
	}
	for i, n := range names {
		h.parts[i] = part{of: &h.acquisition, name: n.name, mode: n.mode}
	}
	return h
}

// all are the parts, in the order of the names.
func (a *acquisition) all() iter.Seq[*part] {
	return func(yield func(*part) bool) {
		for i := range a.parts {
			if !yield(&a.parts[i]) {
				return
			}
		}
	}
}

// names are those of the parts.
func (a *acquisition) names() (names []string) {
	for p := range a.all() {
		names = append(names, p.name)
	}
	return names
}

// label is the name of the lock, or all names of a Multi, for people.
func (a *acquisition) label() string { return strings.Join(a.names(), ", ") }

func (a *acquisition) wrap(op string, err error) error { return wrapNames(op, a.names, err) }

// state says how far an acquisition is. It only goes down this list, and only in transition.
type state uint8

const (
	enqueued  state = iota // its keys are written, or may be
	held                   // granted
	released               // released by its holder
	abandoned              // withdrawn before its owner had it
	lost                   // removed by somebody else, or with its session
)

// transition changes the state. The caller holds a.mu. It returns false if the acquisition has come to its end before:
// whoever ends it first says why.
func (a *acquisition) transition(to state) bool {
	switch {
	case a.state >= released:
		return false
	case to == held && a.state == enqueued,
		to == released && a.state == held,
		to == abandoned && a.state == enqueued,
		to == lost && a.state == held:
		a.state = to
		return true
	}
	panic("bug: the acquisition of " + a.label() + " can't go from state " + strconv.Itoa(int(a.state)) + " to " + strconv.Itoa(int(to)))
}

// reserveKeys reserves the lowest free keys of the names for the acquisition.
func (a *acquisition) reserveKeys() {
	for p := range a.all() {
		p.keys = []string{a.s.keys.Take(p.name, p.mode.kind())}
		if p.mode == writeMode {
			p.keys = append(p.keys, a.s.keys.Take(p.name, keyspace.Shared))
		}
	}
	var names []string
	if a.multi {
		names = a.names()
	}
	switch p := a.acquiring.published; {
	case p == nil:
		a.acquiring.value = a.s.keys.Value(time.Now(), names, "")
	case p.raw:
		a.acquiring.value = p.value
		a.s.keys.WriteRaw(p.value, a.allKeys()...)
	default:
		a.acquiring.value = a.s.keys.Value(time.Now(), names, p.value)
	}
}

// allKeys are the keys of all parts.
func (a *acquisition) allKeys() []string {
	if len(a.parts) == 1 {
		return a.parts[0].keys
	}
	var keys []string
	for p := range a.all() {
		keys = append(keys, p.keys...)
	}
	return keys
}

// queues are those of the parts.
func (a *acquisition) queues() (queues []keyspace.Queue) {
	for p := range a.all() {
		queues = append(queues, keyspace.Queue{Name: p.name, Kind: p.mode.kind()})
	}
	return queues
}

// commit sends the txn that writes the keys. It is safe to repeat, since a repetition finds the keys of an earlier
// attempt.
func (a *acquisition) commit(ctx context.Context, c *sender.Command) (r sender.Reply, err error) {
	ambiguous, err := a.s.lease.Put(ctx, c.Then[len(c.Then)-1], func() (ambiguous bool, err error) {
		r, ambiguous, err = a.s.sender.Do(ctx, a.s.lease.Ctx, c)
		return ambiguous, err
	})
	a.ambiguous = a.ambiguous || ambiguous
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		a.s.lease.NotFound()
		err = a.s.Err() // that it is closed, if it was Close that revoked the lease
	}
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		err = fmt.Errorf("%w: etcd's --max-txn-ops allows less than the %d that these names need", err, len(a.parts)+len(a.allKeys()))
	}
	return r, err
}

// enqueueReadLimit is how many keys the txn of enqueue reads: enough to show all of most queues. Measured on etcd
// 3.7: sixteen keys cost the apply loop 5 us where they are there, a read afterwards costs a round trip.
const enqueueReadLimit = 16

// enqueue puts the acquisition at the end of its queues: one request, one commit. The read stands before the writes and so
// shows the queue without it. It is limited, and in key order: to sort by create revision, etcd would load the
// whole queue, in the apply loop of every member. The limit does not keep etcd from counting the range, so an entry with more
// than that many known blockers leaves the read out: it is asked for again when the entry comes near the front. Before
// all that the txn removes what leaves the queue. since[i], if given, is a revision at which nothing blocked part i: then
// only later keys are read.
func (a *acquisition) enqueue(ctx context.Context, since ...int64) error {
	queues, name := a.queues(), a.parts[0].name // removals of an acquisition are known by its first name
	for ; ; a.rekey() {
		var look []clientv3.Op
		if len(a.parts) > 1 || !a.parts[0].own.BehindMore(enqueueReadLimit) {
			look = settle.List(queues, enqueueReadLimit, since...)
		}
		leaving := a.s.removals.Take(name)
		leave := leaving.Ops()
		keys := a.allKeys()
		resp, err := a.commit(ctx, settle.Write(queues, keys, a.acquiring.value, a.s.lease.ID, append(leave, look...)...))
		// What the acquisition itself needs may be allowed.
		if len(leaving) > 0 && (errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) || etcd.RequestTooLarge(err)) {
			a.s.removals.Return(name, leaving, a.ambiguous)
			leaving, leave = nil, nil
			resp, err = a.commit(ctx, settle.Write(queues, keys, a.acquiring.value, a.s.lease.ID, look...))
		}
		a.s.removals.Replied(name)
		if err != nil {
			a.s.removals.Return(name, leaving, a.ambiguous)
			return err
		}
		if resp.Succeeded {
			rev, replies := resp.At, resp.Responses
			// No attempt before this one was carried out: it would have left the keys. So this one tells what was removed.
			leaving.Done(rev, replies[:len(leave)], false)
			a.enter(rev, replies[len(leave):len(leave)+len(look)]...)
			return nil
		}
		a.s.removals.Return(name, leaving, a.ambiguous)
		// This is seldom needed: an Else in the txn would make each uncontended cycle 0.9 % longer.
		there, err := a.s.etcd.ReadValues(ctx, a.s.lease.Ctx, keys...)
		if err != nil {
			a.ambiguous = true // the client may have repeated the txn by itself
			return a.s.lease.Translate(err)
		}
		if rev := a.ownRev(there); rev != 0 {
			a.enter(rev)
			return nil
		}
		a.s.keys.Skip(keys, there)
	}
}

func (a *acquisition) raw() bool { return a.acquiring.published != nil && a.acquiring.published.raw }

// ownRev is the revision of kvs, the first key of the acquisition as etcd has it, if it was written by an earlier attempt
// of this very acquisition, else 0.
func (a *acquisition) ownRev(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 || string(kvs[0].Value) != a.acquiring.value || a.raw() && !a.s.keys.WroteRaw(kvs[0].CreateRevision, a.ambiguous, a.allKeys()...) {
		return 0
	}
	return kvs[0].CreateRevision
}
