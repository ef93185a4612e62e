// How an acquisition comes into its queues: its keys, its places in the session's waitlists, and the txn that writes the keys.

package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/sender"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// join puts the acquisition into the queue, to be waited for.
func (a *acquisition) join(ctx context.Context) error {
	err := a.prepare(ctx)
	if err == nil {
		err = a.enqueue(ctx)
	}
	if err == nil {
		a.notifyEnqueued()
	}
	return err
}

// prepare reserves the keys, and takes the acquisition's place in the lists. Before a raw value is written on an adopted lease,
// etcd has to show the present: the process before may have written the same, and a member that lags may not have shown that.
func (a *acquisition) prepare(ctx context.Context) error {
	a.reserveKeys()
	a.enlist()
	if !a.pending.lock.published.raw || !a.s.lease.Adopted {
		return nil
	}
	if _, err := a.s.etcd.ReadValues(ctx, a.s.lease.Ctx, a.allKeys()...); err != nil {
		return a.s.lease.Translate(err)
	}
	a.s.keys.ProvenRaw(a.allKeys()...)
	return nil
}

// reserveKeys reserves the lowest free keys of the names for the acquisition.
func (a *acquisition) reserveKeys() {
	l := a.pending.lock
	for p := range a.all() {
		key, shared := a.s.keys.Take(p.Name, p.Kind), ""
		if l.second {
			shared = a.s.keys.Take(p.Name, reading)
		}
		p.Rekey(key, shared)
	}
	var names []string
	if l.multi {
		names = l.names()
	}
	if p := l.published; p.raw {
		a.pending.value = p.value
		a.s.keys.WriteRaw(p.value, a.allKeys()...)
	} else {
		a.pending.value = a.s.keys.Value(time.Now(), names, p.value)
	}
}

// enlist is the first step of a wait: see waiter.go. Each part is granted in its list by itself, and wakes the one waiter of
// the acquisition. A list that has an entry is not forgotten.
func (a *acquisition) enlist() {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for p := range a.all() {
		l := a.s.lists[p.Name]
		if l == nil {
			l = a.s.waits.NewList(p.Name)
			a.s.lists[p.Name] = l
		}
		l.Register(&p.Part, p.Kind)
		if first := &a.parts()[0]; p != first {
			p.WakeWith(&first.Part)
		}
	}
}

// commit sends the txn that writes the keys. It is safe to repeat, since a repetition finds the keys of an earlier attempt.
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
		err = fmt.Errorf("%w: etcd's --max-txn-ops allows less than the %d that these names need", err, len(a.parts())+len(a.allKeys()))
	}
	return r, err
}

// enqueueReadLimit is how many keys the txn of enqueue reads: enough to show all of most queues. Measured on etcd
// 3.7: sixteen keys cost the apply loop 5 us where they are there, a read afterwards costs a round trip.
const enqueueReadLimit = 16

// enqueue puts the acquisition at the end of its queues: one request, one commit. The read stands before the writes and so
// shows the queue without it. It is limited, and in key order: to sort by create revision, etcd would load the
// whole queue, in the apply loop of every member. The limit does not keep etcd from counting the range. So if more than
// 16 keys of the session itself are in the way, the txn does not read; the agent reads when the entry comes near the
// front. If the session has a removal of this name to send, the request carries it out before the read. since[i], if
// given, is a revision at which nothing blocked part i: then only later keys are read.
func (a *acquisition) enqueue(ctx context.Context, since ...int64) error {
	for {
		limit := int64(enqueueReadLimit)
		if len(a.parts()) == 1 && a.parts()[0].BehindMore(enqueueReadLimit) {
			limit = 0
		}
		keys := a.allKeys()
		resp, err := a.commit(ctx, settle.Write(a.pending.lock.queues, keys, a.pending.value, a.s.lease.ID, limit, since...))
		if err != nil {
			return err
		}
		if resp.Succeeded {
			a.enter(resp.At, resp.At, resp.Responses[:len(resp.Responses)-len(keys)]...) // without those to the writes
			return nil
		}
		// This is seldom needed: an Else in the txn would make each uncontended cycle 0.9 % longer.
		there, err := a.s.etcd.ReadValues(ctx, a.s.lease.Ctx, keys...)
		if err != nil {
			a.ambiguous = true // the client may have repeated the txn by itself
			return a.s.lease.Translate(err)
		}
		if rev := a.ownRev(there); rev != 0 {
			a.enter(rev, rev)
			return nil
		}
		a.s.keys.Settle(keys...) // somebody else has them
		a.mu.Lock()
		a.reserveKeys()
		a.mu.Unlock()
	}
}

// ownRev is the revision of kvs, the first key of the acquisition as etcd has it, if it was written by an earlier attempt
// of this very acquisition, else 0.
func (a *acquisition) ownRev(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 || string(kvs[0].Value) != a.pending.value || a.pending.lock.published.raw && !a.s.keys.WroteRaw(kvs[0].CreateRevision, a.ambiguous, a.allKeys()...) {
		return 0
	}
	return kvs[0].CreateRevision
}

// enter takes note that the acquisition is in the queue, at revision rev. replies say, for each part, what a request showed at
// revision at: mostly the acquisition's own txn, which reads first and then writes. A nil reply says that no key was there.
// Without replies the lists do not know what is before the acquisition.
func (a *acquisition) enter(rev, at int64, replies ...*pb.ResponseOp) {
	a.mu.Lock()
	a.rev = rev
	var gone []*waitlist.Part
	for i := range a.parts() {
		p := &a.parts()[i]
		var seen *waitlist.Listing
		if len(replies) > 0 {
			shown := waitlist.Shown(at, rev, replies[i].GetResponseRange(), p.Kind == writing)
			seen = &shown
		}
		a.pending.behind = a.pending.behind || !seen.Clear(p.Name, p.Kind)
		gone = append(gone, p.Enqueued(rev, seen)...)
	}
	a.mu.Unlock()
	markAllLost(gone)
	a.s.keys.Entered(a.allKeys())
}
