// What a session asks now and then for all of its waits and holds together.

package etcdlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// Correctness depends on no event: a watch may be silent, and an entry may be removed where nobody watches. So a
// session asks now and then, for all of its waits and holds together. What that costs does not depend on how many
// there are.

// probeInterval is how often a session asks whether its watches live.
const probeInterval = time.Second

// attend looks after the session's watches for as long as there are any. It is called when one was opened.
func (s *Session) attend() {
	s.mu.Lock()
	begin := !s.attending
	s.attending = true
	s.mu.Unlock()
	if begin && !s.lease.Go(func(context.Context) { s.probe() }) {
		s.endAttend()
	}
}

func (s *Session) endAttend() {
	s.mu.Lock()
	s.attending = false
	s.mu.Unlock()
}

func (s *Session) probe() {
	defer s.endAttend()
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for asked := time.Now(); ; {
		select {
		case <-s.lease.Ctx.Done():
			return
		case <-tick.C:
		}
		if !s.etcd.Watches() {
			return // or another one begins
		}
		if silent := s.etcd.Probe(s.lease.Ctx); silent && time.Since(asked) > s.lease.TTL/2 {
			asked = time.Now()
			s.eachList((*waitlist.List).Refresh)
		}
	}
}

// eachList calls f for each waitlist of the session.
func (s *Session) eachList(f func(*waitlist.List)) {
	s.mu.Lock()
	var lists []*waitlist.List
	for _, l := range s.lists {
		lists = append(lists, l)
	}
	s.mu.Unlock()
	for _, l := range lists {
		f(l)
	}
}

// startInspect has the session inspect its lease's keys for as long as it lives: each half TTL or so, jittered, so
// that the sessions of a service don't do so together.
func (s *Session) startInspect() {
	time.AfterFunc(s.TTL()/8*3+rand.N(s.TTL()/4), func() {
		s.lease.Go(func(ctx context.Context) {
			defer s.startInspect()
			if s.inspect(ctx) == nil {
				s.inspectAwaited(ctx)
			}
		})
	})
}

// verifyBatch is how many entries one request asks after: etcd allows 128 operations in a txn.
const verifyBatch = 32

// inspect compares the keys that hang on the session's lease with its entries. An entry without its key was removed
// by somebody: its owner is told. A key without its entry is a late write, and is removed.
func (s *Session) inspect(ctx context.Context) error {
	entries := s.entries()
	there, err := s.keys.Sweep(ctx)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(p placed) bool { _, ok := there[p.Key]; return ok })
	for some := range slices.Chunk(entries, verifyBatch) {
		if err := s.verify(ctx, some, 0); err != nil {
			return err
		}
	}
	return nil
}

// inspectBatches bounds how many requests one inspection makes to see whether watches have told all.
const inspectBatches = 8

// inspectAwaited reads whether what the waits are watching for is still there. It begins with any of the lists, so
// that in time all of them have their turn.
func (s *Session) inspectAwaited(ctx context.Context) {
	type awaited struct {
		l   *waitlist.List
		key string
	}
	var all []awaited
	s.eachList(func(l *waitlist.List) {
		for _, key := range l.Awaited() {
			all = append(all, awaited{l, key})
		}
	})
	all = all[:min(len(all), inspectBatches*verifyBatch)]
	for some := range slices.Chunk(all, verifyBatch) {
		var reads []etcd.Read
		for _, a := range some {
			reads = append(reads, etcd.ReadKey(a.key))
		}
		got, at, err := s.lease.Read(ctx, s.lease.Gone, 0, reads...)
		if err != nil {
			return
		}
		for i, a := range some {
			markAllLost(a.l.Saw(&waitlist.Listing{At: at, Low: 1, Asked: []string{a.key}, Keys: queue.Entries(got[i].Kvs)}), at)
		}
	}
}

// placed is an entry in the queue, as it was known at some moment.
type placed struct {
	*entry
	queue.Entry
}

// entries are those of the session that are in their queues.
func (s *Session) entries() (all []placed) {
	var some []*entry
	s.mu.Lock()
	for _, e := range s.only {
		some = append(some, e)
	}
	s.mu.Unlock()
	s.eachList(func(l *waitlist.List) {
		for _, owner := range l.Owners() {
			some = append(some, owner.(*entry))
		}
	})
	return inQueue(some)
}

// inQueue are those of the entries that are in their queues.
func inQueue(some []*entry) (all []placed) {
	for _, e := range some {
		w := e.whole()
		w.mu.Lock()
		if w.state <= held && e.rev != 0 {
			all = append(all, placed{e, queue.Entry{Key: e.key, Rev: e.rev}})
		}
		w.mu.Unlock()
	}
	return all
}

// verify reads whether entries are in etcd at revision at, or with 0 at present, and tells the owners of those that
// are not.
func (s *Session) verify(ctx context.Context, some []placed, at int64) error {
	var reads []etcd.Read
	for _, p := range some {
		reads = append(reads, etcd.ReadKey(p.Key))
	}
	got, at, err := s.lease.Read(ctx, s.lease.Gone, at, reads...)
	if err != nil {
		return err
	}
	for i, p := range some {
		if slices.Contains(queue.Entries(got[i].Kvs), p.Entry) {
			continue
		}
		if own := p.listed(); own != nil {
			markAllLost(own.Missing(at), at)
		}
		_ = p.whole().markLost(p.Key, at)
	}
	return nil
}
