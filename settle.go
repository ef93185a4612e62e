// Late writes: keys that a request writes after it was given up. The session finds and removes them.

package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A late write is a key that a request has written after it was given up, or repeated. Nobody waits
// for it or holds it, and it would jam its lock until the session ends. So the session looks for
// late writes, and removes them.

const (
	settleFirst = 25 * time.Millisecond
	settleMax   = 4 * time.Second
	settleFor   = 20 * time.Second // three times as long as etcd lets a request live
	settleBatch = 32               // keys in a txn, of which etcd allows 128
)

// unsettled is an entry that nobody uses any more and that may yet be written.
type unsettled struct {
	*entry
	since time.Time
}

// settler looks for late writes of the unsettled entries. The session's s.mu guards it.
type settler struct {
	unsettled []unsettled
	timer     *time.Timer // of the next scan
	delay     time.Duration
	scanning  bool
}

// settle frees the entry's keys. If the outcome of an attempt is unknown, the session first looks
// for a late write, again and again for a while, and removes what it finds: a request that was given
// up may still be on its way.
//
// Invariant (I6): no key is used anew while a write of its last user may yet come. So a key of the
// session that holds another entry's nonce is a late write and never a neighbour.
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
		t.timer = time.AfterFunc(0, func() { s.lease.Go(s.findLateWrites) })
	} else {
		t.timer.Reset(0)
	}
}

// findLateWrites looks after all unsettled entries together, since after an etcd that was slow there
// may be a thousand: one request looks after many.
func (s *Session) findLateWrites(ctx context.Context) {
	t := &s.settler
	s.mu.Lock()
	if t.scanning {
		s.mu.Unlock()
		return // the scan that goes on is followed by another one
	}
	t.scanning = true
	all := t.unsettled
	t.unsettled = nil
	s.mu.Unlock()
	var left []unsettled
	for some := range slices.Chunk(all, settleBatch) {
		began := time.Now()
		err := s.removeLateWrites(ctx, some)
		for _, u := range some {
			if err == nil && began.Sub(u.since) >= settleFor {
				u.freeKeys()
			} else {
				left = append(left, u)
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

// removeLateWrites removes what there is of the entries: two requests, or a few more if Multis are among
// them.
func (s *Session) removeLateWrites(ctx context.Context, some []unsettled) error {
	var reads []etcd.Read
	for _, u := range some {
		reads = append(reads, etcd.ReadValue(u.key))
	}
	got, _, err := s.lease.Read(ctx, s.lease.Gone, 0, reads...)
	if n := len(some); n > 1 && err != nil && etcd.Refused(err) {
		// One of them may be forbidden by now. That must not keep the others.
		return errors.Join(s.removeLateWrites(ctx, some[:n/2]), s.removeLateWrites(ctx, some[n/2:]))
	}
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for i, u := range some {
		if kvs := got[i].Kvs; len(kvs) > 0 && string(kvs[0].Value) == u.acquiring.value {
			ops = append(ops, deleteOps(u.allKeys(), kvs[0].CreateRevision)...)
		}
	}
	for some := range slices.Chunk(ops, 2*settleBatch) { // each entry has two keys at most, but a Multi's
		_, _, err := s.lease.Txn(ctx, s.lease.Gone, func(t clientv3.Txn) clientv3.Txn { return t.Then(some...) })
		if err != nil {
			return err
		}
	}
	return nil
}

// leaseKeys are the keys that hang on the session's lease.
func (s *Session) leaseKeys(ctx context.Context) ([][]byte, error) {
	lease, _, err := etcd.Do(ctx, s.etcd, etcd.Policy{Life: s.lease.Gone, Hedge: true}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return s.etcd.TimeToLive(ctx, s.lease.ID, clientv3.WithAttachedKeys())
	})
	if err != nil {
		return nil, err
	}
	return lease.Keys, nil
}

func (s *Session) sweepKey(ctx context.Context, k string) {
	got, _, err := s.lease.Read(ctx, s.lease.Gone, 0, etcd.ReadValue(k))
	// uses is asked again, since an entry may have been written under this key meanwhile. If none
	// uses it now, then what was read is a late write, or gone.
	if err == nil && len(got[0].Kvs) > 0 && s.wroteKey(got[0].Kvs[0]) && !s.uses(k) {
		s.removeLateWrite(ctx, got[0].Kvs[0])
	}
}

// uses reports whether an entry of the session uses the key.
func (s *Session) uses(k string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, skipped := s.skipped[k]
	return !skipped && s.inUse.Has(k)
}

// skipKeys leaves the entry's keys to whoever has them: another user of an adopted lease, or a late
// write of this session that came after its settling, which is removed. The session does not use
// these keys again; inspect finds what a late request may yet write there.
func (e *entry) skipKeys(kvs []*mvccpb.KeyValue) {
	e.s.mu.Lock()
	for _, key := range e.allKeys() {
		e.s.skipped[key] = struct{}{}
	}
	e.s.mu.Unlock()
	for _, kv := range kvs {
		if e.s.wroteKey(kv) {
			e.s.lease.Go(func(ctx context.Context) { e.s.removeLateWrite(ctx, kv) })
		}
	}
}

// wroteKey reports whether the session wrote kv, by the nonce.
func (s *Session) wroteKey(kv *mvccpb.KeyValue) bool {
	return strings.Contains(string(kv.Value), `"`+s.nonce)
}

func (s *Session) removeLateWrite(ctx context.Context, kv *mvccpb.KeyValue) {
	_, _ = removeKeys(ctx, s.etcd, etcd.Policy{Life: s.lease.Gone, Hedge: true}, []string{string(kv.Key)}, kv.CreateRevision)
}
