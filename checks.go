// What a session asks now and then for all of its waits and holds, since correctness depends on no event: a watch may be
// silent, and an entry may be removed where nobody watches. What it costs does not depend on their number.

package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/holdwatch"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// refreshWatches has all that relies on watches ask etcd: they are silent. A proxy's are silent at rest too, so what is asked must cost
// little: of the waits only those read their queues that wait for a key which is not there.
func (s *Session) refreshWatches() {
	s.holdWatches.Refresh()
	for some := range slices.Chunk(s.allLists(), wait.RecheckMost) {
		s.waits.Recheck(s.lease.Ctx, some)
	}
}

// startChecks has the session check its entries for as long as it lives: see lease.StartChecks.
func (s *Session) startChecks() {
	s.lease.StartChecks(s.keys.None, func(ctx context.Context) bool {
		err := s.checkEntries(ctx) // if etcd refuses this check, it may still answer Recheck
		return s.waits.Recheck(ctx, s.allLists()) && err == nil && s.keys.Swept()
	})
}

// checkEntries compares the keys that hang on the session's lease with its entries. An entry without its key was
// removed by somebody: its owner is told. A key without its entry is a late write, and is removed.
func (s *Session) checkEntries(ctx context.Context) error {
	entries := inQueue(s.parts())
	there, err := s.keys.Sweep(ctx)
	if err != nil && !etcd.ReplyTooLarge(err) && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	s.lease.HasKeys(len(there))
	// If the list of keys is too large for one reply, or etcd denies the rights on a key, each entry is read, and late writes stay unseen.
	entries = settle.Unsure(entries, there, func(p placed) (key string, copied bool) { return p.Entry.Key, p.copied })
	if etcd.ReplyTooLarge(err) {
		err = nil
	}
	return cmp.Or(s.loseMissing(ctx, entries, 0), err)
}

// placed is a part in the queue, as it was known at some moment.
type placed struct {
	*waitlist.Part
	queue.Entry
	copied bool // its request was sent more than once: see ambiguous
}

// inQueue are those of the parts that are in their queues.
func inQueue(some []*waitlist.Part) (all []placed) {
	for _, p := range some {
		a := acquisitionOf(p)
		a.mu.Lock()
		if a.state <= held && a.rev != 0 {
			all = append(all, placed{p, queue.Entry{Key: p.Key(), Rev: a.rev}, a.ambiguous})
		}
		a.mu.Unlock()
	}
	return all
}

// loseMissing reads whether entries are in etcd at revision at, or with 0 at present, and tells the owners of those that are not. It
// goes around entries on which etcd denies the rights.
func (s *Session) loseMissing(ctx context.Context, entries []placed, at int64) error {
	return settle.Apart(entries, settle.MaxDenials, func(some []placed) error {
		var reads []etcd.Read
		for _, p := range some {
			reads = append(reads, etcd.ReadKey(p.Entry.Key))
		}
		got, at, err := s.lease.Read(ctx, s.lease.Gone, at, reads...)
		for i := range got {
			if p := some[i]; !shows(got[i], p.Entry) {
				markAllLost(p.Missing(p.Entry.Key, at))
				_ = acquisitionOf(p.Part).markLost(p.Entry.Key)
			}
		}
		return err
	})
}

// watchesOf are the watches of a session's holds.
func watchesOf(s *Session) *holdwatch.Watches[*waitlist.Part] {
	return holdwatch.New(holdwatch.Config[*waitlist.Part]{
		Etcd: s.etcd, Ctx: s.lease.Ctx, Go: s.lease.Go, Outages: &s.lease.Outages, Opened: s.probes.Attend,
		Rev:     func(p *waitlist.Part) int64 { return acquisitionOf(p).rev },
		Deleted: func(p *waitlist.Part, key string) { _ = acquisitionOf(p).markLost(key) },
		Verify: func(ctx context.Context, parts []*waitlist.Part, at int64) error {
			if len(parts) > etcd.Batch { // a watch is open anew
				return s.checkEntries(ctx)
			}
			return s.loseMissing(ctx, inQueue(parts), at)
		},
		Ended: func(p *waitlist.Part) {
			a := acquisitionOf(p)
			a.mu.Lock()
			a.endHoldLocked(lost)
			a.unlockAndNotify()
		},
	})
}
