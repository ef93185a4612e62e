package world

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "the seed of the only world, 0 for random ones")
	worldsFlag = flag.Int("worlds", 0, "how many worlds to play, 0 for the usual number")
)

const ttl = 10 // of each lease, in seconds

// A world is processes that take the same locks.
type world struct {
	*testing.T
	seed   uint64
	f      *fakeetcd.Server
	dice   *dice
	names  []string
	breaks bool           // somebody removes entries
	late   sync.WaitGroup // requests that are carried out late
	over   atomic.Bool

	mu        sync.Mutex
	begun     time.Time
	log       []string
	leases    map[clientv3.LeaseID]time.Time // when it was last renewed
	lastLease clientv3.LeaseID
	holds     map[*hold]bool
	removed   map[string]bool           // by entryOf, the entries that somebody has removed
	adopted   map[int64]bool            // by token: a process before had no time to remove what it had released
	killed    map[clientv3.LeaseID]bool // likewise, of a process with that lease
	failed    bool

	took, guarded int
}

func (w *world) noteLocked(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v ", time.Since(w.begun))+fmt.Sprintf(format, args...))
}

// failLocked ends the world.
func (w *world) failLocked(format string, args ...any) {
	w.noteLocked(format, args...)
	if w.over.Store(true); !w.failed {
		w.failed = true
		w.Errorf("-seed=%d:\n%s", w.seed, strings.Join(w.log[max(0, len(w.log)-100):], "\n"))
	}
}

func (w *world) grant() clientv3.LeaseID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastLease++
	w.leases[w.lastLease] = time.Now()
	return w.lastLease
}

// lives reports whether a lease is there, and may renew it.
func (w *world) lives(id clientv3.LeaseID, renew bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, lives := w.leases[id]
	if lives && renew {
		w.leases[id] = time.Now()
	}
	return lives
}

// revokeLocked removes a lease, and the keys that hang on it.
func (w *world) revokeLocked(id clientv3.LeaseID) {
	w.noteLocked("lease %x is gone", int64(id))
	delete(w.leases, id)
	w.f.Update("", func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
		for _, kv := range kvs {
			if kv.Lease == int64(id) {
				ops = append(ops, fakeetcd.RemoveOp(string(kv.Key)))
			}
		}
		return ops
	})
}

// expire revokes the leases that nobody renews.
//
// Invariant (I4): whoever has a lock on such a lease does not believe so any more.
func (w *world) expire(ctx context.Context) {
	for elapse(ctx, 10*time.Millisecond) == nil {
		w.mu.Lock()
		for id, renewed := range w.leases {
			if time.Since(renewed) < ttl*time.Second {
				continue
			}
			for h := range w.holds {
				if h.Session().Lease() == id && h.Valid() {
					w.failLocked("the lease of %v expires, and the hold is valid", h)
				}
			}
			w.revokeLocked(id)
		}
		w.mu.Unlock()
	}
}

// leaselessLocked reports whether a key is put on a lease that is gone.
func (w *world) leaselessLocked(ops []*pb.RequestOp) bool {
	return slices.ContainsFunc(ops, func(o *pb.RequestOp) bool {
		id := clientv3.LeaseID(o.GetRequestPut().GetLease())
		_, lives := w.leases[id]
		return id != 0 && !lives || w.leaselessLocked(o.GetRequestTxn().GetSuccess())
	})
}

// fencedLocked looks whether a guarded write came after that of a later holder. Such a write reads first what it replaces.
func (w *world) fencedLocked(r *pb.TxnRequest, resp *pb.TxnResponse) {
	if !resp.Succeeded {
		return
	}
	before := int64(0)
	for i, op := range r.Success {
		put := op.GetRequestPut()
		switch {
		case op.GetRequestTxn() != nil:
			w.fencedLocked(op.GetRequestTxn(), resp.Responses[i].GetResponseTxn())
		case op.GetRequestRange() != nil && bytes.HasPrefix(op.GetRequestRange().Key, []byte(data)):
			for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
				before, _ = strconv.ParseInt(string(kv.Value), 10, 64)
			}
		case put != nil && bytes.HasPrefix(put.Key, []byte(data)):
			w.guarded++
			// Adopt may find an entry that the process before had released, and handed over, when it was killed.
			if token, _ := strconv.ParseInt(string(put.Value), 10, 64); token < before && !w.adopted[token] {
				w.failLocked("token %d has written %s after token %d", token, put.Key, before)
			}
		}
	}
}

// data begins the keys of what holders write.
const data = "data/"

// entryOf names an entry under one of its keys.
func entryOf(key string, rev int64) string { return key + "@" + strconv.FormatInt(rev, 10) }

// brokenLocked reports whether somebody has removed the entry of a hold.
func (w *world) brokenLocked(h *etcdlock.Held) bool {
	return slices.ContainsFunc(h.Keys(), func(key string) bool { return w.removed[entryOf(key, h.Token())] })
}

func nameOf(key string) string { return key[:strings.LastIndexByte(key, '/')] }

// breakOne removes an entry of one name, with all of its keys there.
func (w *world) breakOne() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f.Update("", func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
		kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool { return kv.Lease == 0 })
		if len(kvs) == 0 {
			return nil
		}
		one := kvs[w.dice.n(len(kvs))]
		for _, kv := range kvs {
			if kv.CreateRevision == one.CreateRevision && nameOf(string(kv.Key)) == nameOf(string(one.Key)) {
				entry := entryOf(string(kv.Key), kv.CreateRevision)
				w.removed[entry] = true
				w.noteLocked("%s is removed", entry)
				ops = append(ops, fakeetcd.RemoveOp(string(kv.Key)))
			}
		}
		return ops
	})
}

// A hold is a Held, as its process sees it.
type hold struct {
	*etcdlock.Held
	p     *process
	names map[string]bool // true: it excludes everybody
}

func (h *hold) String() string { return fmt.Sprintf("%v@%d of %s", h.Keys(), h.Token(), h.p.id) }

// granted is called when a process has a hold.
func (p *process) granted(h *etcdlock.Held, names map[string]bool) *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &hold{h, p, names}
	if p.dead {
		return own
	}
	p.took++
	p.noteLocked("%v is held", own)
	for o := range p.holds {
		for name, writes := range names {
			if others, both := o.names[name]; both && (writes || others) && o.Err() == nil && h.Err() == nil && !p.brokenLocked(o.Held) && !p.brokenLocked(h) {
				p.failLocked("%s has two holders: %v and %v (I1)", name, own, o)
			}
		}
	}
	p.holds[own] = true
	return own
}

// leaves is called before a hold is released.
func (h *hold) leaves() {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.Err(); h.p.holds[h] && err != nil && h.Session().Err() == nil && !h.p.brokenLocked(h.Held) {
		h.p.failLocked("%v is lost, and nobody has removed it: %v", h, err)
	}
	h.p.noteLocked("%v is released", h)
	delete(h.p.holds, h)
}

// play plays a world.
func play(t *testing.T, seed uint64) {
	w := &world{seed: seed, dice: &dice{r: rand.New(rand.NewPCG(seed, 1))}, names: []string{"a", "b", "a/x"}, breaks: seed%2 == 0, lastLease: 15}
	synctest.Test(t, func(t *testing.T) {
		w.T, w.f, w.begun = t, fakeetcd.New(), time.Now()
		w.leases, w.holds, w.removed, w.adopted = map[clientv3.LeaseID]time.Time{}, map[*hold]bool{}, map[string]bool{}, map[int64]bool{}
		w.killed = map[clientv3.LeaseID]bool{}
		var lives sync.WaitGroup
		for i := range 3 {
			lives.Go(func() { w.successors(i) })
		}
		lives.Go(w.clients)
		ctx, cancel := context.WithCancel(context.Background())
		w.late.Go(func() { w.expire(ctx) })
		for range 120 {
			if !w.over.Load() {
				_ = elapse(ctx, time.Second)
			}
		}
		w.over.Store(true)
		lives.Wait()
		cancel()
		w.late.Wait()
	})
	require.Positive(t, w.took)
	t.Logf("-seed=%d: %d holds, %d of them adopted, and %d guarded writes", seed, w.took, len(w.adopted), w.guarded)
}

func TestWorld_I1_I2_I4(t *testing.T) {
	first, n := *seedFlag, 1
	if first == 0 {
		first, n = rand.Uint64N(1<<40), *worldsFlag
	}
	if n == 0 {
		n = sample.Rounds(t, 3, 20)
	}
	for i := range uint64(n) {
		if play(t, first+i); t.Failed() {
			return
		}
	}
}
