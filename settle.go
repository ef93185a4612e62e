package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Ghosts are keys that a request has written which was given up, or repeated, before
// etcd carried it out. Nobody waits for them or holds them, and they would jam
// their lock until the session ends. So they are looked for, and removed.

const (
	settleFirst = 25 * time.Millisecond
	settleMax   = 4 * time.Second
	settleFor   = 20 * time.Second // three times as long as etcd lets a request live
	settleBatch = 32               // keys in a txn, of which etcd allows 128
)

// doubtful is an entry that nobody uses any more and that may yet be written.
type unsettled struct {
	*entry
	since time.Time
}

// settling is the looking for ghosts of the doubtful. The session's s.mu guards it.
type settler struct {
	unsettled []unsettled
	timer     *time.Timer // of the next look
	delay     time.Duration
	scanning  bool
	sweeping  bool // see sweep
}

// settle frees the entry's keys. Where an attempt's outcome is in doubt, the
// session first looks for a late write, again and again for a while, and
// removes what it finds: a request that was given up may still be on its way.
//
// Invariant (I6): no key is used anew while a write of its last user may yet
// come, so a key that holds another's nonce is a ghost and never a neighbour.
func (e *entry) settle() {
	if !e.ambiguous {
		e.freeKeys()
		return
	}
	s := e.s
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.settler
	t.unsettled = append(t.unsettled, unsettled{e, time.Now()})
	t.delay = settleFirst
	if t.timer == nil {
		t.timer = time.AfterFunc(0, func() { s.background(s.findLateWrites) })
	} else {
		t.timer.Reset(0)
	}
	s.sweepLocked()
}

// lookForGhosts looks after all doubtful entries together, since there may be a
// thousand, after an etcd that was slow: one look is one request for many.
func (s *Session) findLateWrites(ctx context.Context) {
	t := &s.settler
	s.mu.Lock()
	if t.scanning {
		s.mu.Unlock()
		return // and looks again soon
	}
	t.scanning = true
	all := t.unsettled
	t.unsettled = nil
	s.mu.Unlock()
	var left []unsettled
	for some := range slices.Chunk(all, settleBatch) {
		began := time.Now()
		err := s.removeLateWrites(ctx, some)
		for _, d := range some {
			if err == nil && began.Sub(d.since) >= settleFor {
				d.freeKeys()
			} else {
				left = append(left, d)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.scanning = false
	t.unsettled = append(t.unsettled, left...)
	if len(t.unsettled) > 0 && ctx.Err() == nil {
		// A timer, not a goroutine that waits.
		t.timer.Reset(t.delay)
		t.delay = min(2*t.delay, settleMax)
	}
}

// removeGhosts removes what there is of the entries: two requests at most.
func (s *Session) removeLateWrites(ctx context.Context, some []unsettled) error {
	var reads []reading
	for _, d := range some {
		reads = append(reads, reading{key: d.key})
	}
	got, _, err := s.get(ctx, 0, reads...)
	if n := len(some); n > 1 && err != nil && refused(err) {
		// One of them may be forbidden by now: that is not to keep the others.
		return errors.Join(s.removeLateWrites(ctx, some[:n/2]), s.removeLateWrites(ctx, some[n/2:]))
	}
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for i, d := range some {
		if kvs := got[i].Kvs; len(kvs) > 0 && string(kvs[0].Value) == d.acquiring.value {
			ops = append(ops, deleteOps(d.keys(), kvs[0].CreateRevision)...)
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, _, err = hedged(ctx, s.leaseCtx, s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(ops...).Commit()
	})
	return err
}

// sweepLocked begins to sweep; the caller holds s.mu.
func (s *Session) sweepLocked() {
	if !s.settler.sweeping {
		s.settler.sweeping = true
		s.sweep()
	}
}

// sweep looks each TTL, from the first doubt on and for as long as the session
// lives, for keys that its lease has and no entry uses. A member that hung for
// minutes may carry out, as it wakes, what was given up long ago, when nobody
// looks for it any more; and such a ghost would jam its lock.
func (s *Session) sweep() {
	time.AfterFunc(s.ttl, func() {
		s.background(func(ctx context.Context) {
			defer s.sweep()
			lease, _, err := hedged(ctx, s.leaseCtx, s, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
				return s.client.TimeToLive(ctx, s.id, clientv3.WithAttachedKeys())
			})
			if err != nil {
				return
			}
			for _, key := range lease.Keys {
				if k := string(key); isKeyOf(k, s.id) && !s.uses(k) {
					s.sweepKey(ctx, k)
				}
			}
		})
	})
}

func (s *Session) sweepKey(ctx context.Context, k string) {
	got, _, err := s.get(ctx, 0, reading{key: k})
	// Asked again, since an entry may have been written under this key meanwhile.
	// If none uses it now, then what was read is a ghost, or gone.
	if err == nil && len(got[0].Kvs) > 0 && s.wroteKey(got[0].Kvs[0]) && !s.uses(k) {
		s.removeLateWrite(ctx, got[0].Kvs[0])
	}
}

func (s *Session) uses(k string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, passed := s.skipped[k]
	return !passed && s.inUse.uses(k)
}

// passOver leaves the entry's keys to whoever has them: another user of an
// adopted lease, or a ghost of this session that came after its settling, which is
// removed. The session does not use these keys again; what a late request may yet
// write there is swept.
func (e *entry) skipKeys(kvs []*mvccpb.KeyValue) {
	e.s.mu.Lock()
	for _, key := range e.keys() {
		e.s.skipped[key] = struct{}{}
	}
	e.s.sweepLocked()
	e.s.mu.Unlock()
	for _, kv := range kvs {
		if e.s.wroteKey(kv) {
			e.s.background(func(ctx context.Context) { e.s.removeLateWrite(ctx, kv) })
		}
	}
}

// wrote reports whether the session wrote kv, by the nonce.
func (s *Session) wroteKey(kv *mvccpb.KeyValue) bool {
	return strings.Contains(string(kv.Value), `"`+s.nonce)
}

func (s *Session) removeLateWrite(ctx context.Context, kv *mvccpb.KeyValue) {
	ghost := &entry{s: s, key: string(kv.Key)}
	_, _ = ghost.remove(ctx, s.leaseCtx, kv.CreateRevision)
}
