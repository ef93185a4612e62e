package etcdlock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// An entry is one acquisition: a key in the lock's queue, waiting or holding.
// This file puts it there, leave.go takes it away, waiter.go waits in between.
type entry struct {
	s    *Session
	name string
	// rev is the keys' CreateRevision: place in the queue and token.
	//
	// Invariant (I5): an entry's identity is (key, rev). Whatever releases it
	// compares both, so that a late or repeated request of ours can't touch a
	// newer entry under the same key.
	rev int64

	mu    sync.Mutex // once the entry is held it guards what follows
	mode  mode
	state state
	// doubt: an attempt to write the keys may have been carried out, or be
	// carried out yet, without our knowing.
	ambiguous bool
	// untold: lost, and nobody was told; see unlockAndTell.
	lossUnreported bool
	// withSession: lost because the session ended, by what was known then.
	lostWithSession bool
	// key is what the entry is known by.
	key       string
	acquiring *acquiring   // nil if held without
	holdCtx   *holdContext // nil until asked for
}

// more is what most holds do without: of 10,000 locks it would be half the cost.
type acquiring struct {
	trace *trace // for hooks, nil without
	// other is a write lock's key in the shared range, of the same revision, which
	// Downgrade leaves.
	secondKey string
	value     string // of the keys; its nonce is in no other entry's value
}

// ending is what tells of a hold's end.
type holdContext struct {
	ctx     context.Context // of the hold
	cancel  context.CancelCauseFunc
	rewatch context.CancelFunc // makes the guard watch key anew
}

// wants is the kind of hold that an entry asks for.
type mode uint8

const (
	mutexMode mode = iota
	readMode
	writeMode // a mutexHold that can be downgraded to a readHold
)

func (w mode) kind() kind {
	if w == readMode {
		return shared
	}
	return exclusive
}

// state says how far an entry is. It only goes down this list, and only in
// becomeLocked.
type state uint8

const (
	enqueued  state = iota // its keys are written, or may be
	held                   // granted
	released               // given back by its holder
	abandoned              // withdrawn before its owner had it
	lost                   // removed by somebody else, or with its session
)

// becomeLocked changes the state; the caller holds e.mu. It returns false if
// the entry has come to its end before: whoever ends it first says why.
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

// takeKeys reserves the lowest free keys of the name for the entry.
func (e *entry) reserveKeys() {
	s, more := e.s, e.acquiring
	s.mu.Lock()
	if e.mode == readMode {
		e.key = s.inUse.take(sharedBase(e.name, s.id))
	} else {
		e.key = s.inUse.take(exclusiveBase(e.name, s.id))
	}
	if e.mode == writeMode {
		more.secondKey = s.inUse.take(sharedBase(e.name, s.id))
	}
	s.seq++
	seq := s.seq
	s.mu.Unlock()
	more.value = s.entryValue(time.Now(), seq)
}

// keys are all keys of the entry.
func (e *entry) keys() []string {
	if e.acquiring != nil && e.acquiring.secondKey != "" {
		return []string{e.key, e.acquiring.secondKey}
	}
	return []string{e.key}
}

// entryValue is a JSON object for people who look at the queue. Only the nonce
// is ever read again, to tell a ghost of ours (a late write of an attempt that
// was given up) from other keys.
func (s *Session) entryValue(queued time.Time, seq uint64) string {
	b := make([]byte, 0, 160)
	b = append(b, `{"owner":`...)
	b = append(b, s.owner...)
	b = append(b, `,"queued":"`...)
	// RFC3339Nano has a fast way of its own: a whole cycle takes 0.6 % less.
	b = queued.UTC().Truncate(time.Millisecond).AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","nonce":"`...)
	b = append(b, s.nonce...)
	b = strconv.AppendUint(b, seq, 16)
	return string(append(b, `"}`...))
}

func (e *entry) freeKeys() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	for _, key := range e.keys() {
		e.s.inUse.free(key)
	}
}

// absent are the compares, and puts the operations, that write the entry's
// keys where there are none.
func (e *entry) keysAbsent() (cmps []clientv3.Cmp) {
	for _, key := range e.keys() {
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
	}
	return cmps
}

func (e *entry) putOps() (ops []clientv3.Op) {
	for _, key := range e.keys() {
		ops = append(ops, clientv3.OpPut(key, e.acquiring.value, clientv3.WithLease(e.s.id)))
	}
	return ops
}

// blocking is the range of keys that can block an entry.
func (w mode) blockingRange(name string) (from, to string) {
	if w == readMode {
		return exclusiveRange(name)
	}
	return prefixRange(name)
}

// commit sends the txn that writes the entry until etcd has answered. It is
// safe to repeat, since a repetition finds the keys of an earlier attempt.
func (e *entry) commit(ctx context.Context, build func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	resp, doubt, err := hedged(ctx, e.s.ctx, e.s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return build(e.s.client.Txn(ctx)).Commit()
	})
	e.ambiguous = e.ambiguous || doubt
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.s.terminate(ErrSessionExpired, "lease not found")
		e.s.endLease()
		err = e.s.Err() // that it is closed, if it was Close that revoked the lease
	}
	return resp, err
}

// txnLimit is how many keys the txn of enqueue reads: enough to show all of most
// queues. Measured on etcd 3.7: sixteen keys cost the apply loop 5 us where they are
// there, a look afterwards costs a round trip.
const enqueueReadLimit = 16

// enqueue puts the entry at the end of the queue: one request, one commit.
// The read stands before the writes and so shows the queue without the entry.
// It is limited, and in key order: to sort by create revision, etcd would load
// the whole queue, in the apply loop of every member. ok is false if what it
// shows is too little to say what the entry has to wait for.
func (e *entry) enqueue(ctx context.Context) (v view, ok bool, err error) {
	from, to := e.mode.blockingRange(e.name)
	for {
		e.reserveKeys()
		resp, err := e.commit(ctx, func(t clientv3.Txn) clientv3.Txn {
			read := clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(enqueueReadLimit))
			return t.If(e.keysAbsent()...).Then(append([]clientv3.Op{read}, e.putOps()...)...)
		})
		if err != nil {
			return view{}, false, err
		}
		if resp.Succeeded {
			got := resp.Responses[0].GetResponseRange()
			e.rev = resp.Header.Revision
			if got.Count <= int64(len(got.Kvs)) {
				v, ok = e.viewOf(toQueue(got.Kvs)), true
			}
			v.At, v.Size = e.rev, got.Count
			return v, ok, nil
		}
		there, at, err := e.readKeys(ctx)
		switch {
		case err != nil:
			e.ambiguous = true // the client may have repeated the txn by itself
			return view{}, false, err
		case e.isOwn(there):
			return view{At: at}, false, nil
		}
		e.skipKeys(there)
	}
}

// try writes the entry only if nothing that blocks it is in the queue, and
// returns ErrLocked otherwise: one request, and no entry on failure. Only where
// keys that are no entries are in the way does another txn follow, which
// asks that nothing was written there since they were listed.
func (e *entry) tryEnqueue(ctx context.Context) error {
	from, to := e.mode.blockingRange(e.name)
	free := clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0)
	list := clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(8))
	for e.reserveKeys(); ; {
		resp, err := e.commit(ctx, func(t clientv3.Txn) clientv3.Txn {
			return t.If(append(e.keysAbsent(), free)...).Then(e.putOps()...).Else(clientv3.OpGet(e.key), list)
		})
		if err != nil {
			return err
		}
		if resp.Succeeded {
			e.rev = resp.Header.Revision
			return nil
		}
		own, got := resp.Responses[0].GetResponseRange(), resp.Responses[1].GetResponseRange()
		if e.isOwn(own.Kvs) {
			return nil // the txn was carried out before, so nothing blocked it
		}
		at, keys := resp.Header.Revision, got.Kvs
		v, ok := blocker(e.name, e.mode.kind(), maxRev, toQueue(keys), got.Count <= int64(len(keys)))
		if !ok {
			all, now, err := e.s.present(ctx, readRange(from, to))
			if err != nil {
				return err
			}
			at = now
			v, _ = blocker(e.name, e.mode.kind(), maxRev, toQueue(all[0].Kvs), true)
		}
		if len(v.Blockers) > 0 {
			return ErrLocked
		}
		if len(own.Kvs) > 0 {
			e.skipKeys(own.Kvs)
			e.reserveKeys()
		}
		free = clientv3.Compare(clientv3.ModRevision(from).WithRange(to), "<", at+1)
	}
}

// mine reports whether kvs, the key of the entry as etcd has it, was written by
// an earlier attempt of this very entry, and notes its revision then.
func (e *entry) isOwn(kvs []*mvccpb.KeyValue) bool {
	if len(kvs) == 0 || string(kvs[0].Value) != e.acquiring.value {
		return false
	}
	e.rev = kvs[0].CreateRevision
	return true
}
