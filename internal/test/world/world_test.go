package world

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
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

// A world is processes that take the same locks.
type world struct {
	*testing.T
	seed    uint64
	span    time.Duration // that a process lives, at most
	ttl     time.Duration // of each lease
	f       *fakeetcd.Server
	dice    *dice
	names   []string
	refuses bool           // etcd refuses requests of users
	breaks  bool           // somebody removes entries, and leases
	late    sync.WaitGroup // requests that are carried out late
	rests   atomic.Bool    // nothing begins any more, and nothing goes wrong
	over    atomic.Bool    // it has failed

	mu        sync.Mutex
	begun     time.Time
	log       []string
	leases    map[clientv3.LeaseID]time.Time // when it was last renewed
	lastLease clientv3.LeaseID
	holds     map[*hold]bool
	latest    map[mode]int64     // the highest token that has had the lock
	lines     map[string]*line   // by session and name
	removed   map[string]bool    // by entryOf, the entries that somebody has removed
	gone      map[string]removal // by entryOf
	lates     map[string]bool    // by entryOf, what a session should look for that did not hear of it in time
	turn      int                // of the last removal
	of        map[*etcdlock.Session][]*hold
	adopted   map[int64]bool            // by token: a process before had no time to remove what it had released
	killed    map[clientv3.LeaseID]bool // likewise, of a process with that lease
	pending   map[*call]bool
	failed    bool

	marked                map[string]bool // by key: a Txn has written it, or, if false, must not
	txns                  int
	took, guarded, called int
}

// resting reports whether nothing begins any more.
func (w *world) resting() bool { return w.rests.Load() || w.over.Load() }

func (w *world) noteLocked(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v ", time.Since(w.begun))+fmt.Sprintf(format, args...))
}

// failLocked ends the world.
func (w *world) failLocked(format string, args ...any) {
	w.noteLocked(format, args...)
	if w.over.Store(true); !w.failed {
		w.failed = true
		w.Errorf("-seed=%d:\n%s", w.seed, strings.Join(w.log[max(0, len(w.log)-200):], "\n"))
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
	w.updateLocked(func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
		for _, kv := range kvs {
			if kv.Lease == int64(id) {
				ops = append(ops, fakeetcd.RemoveOp(string(kv.Key)))
			}
		}
		return ops
	})
}

// updateLocked removes keys.
func (w *world) updateLocked(which func([]*mvccpb.KeyValue) []*pb.RequestOp) {
	w.removingLocked(func() { w.f.Update("", which) })
}

// expire revokes the leases that nobody renews.
//
// Invariant (I4): whoever has a lock on such a lease does not believe so any more.
func (w *world) expire(ctx context.Context) {
	for elapse(ctx, 10*time.Millisecond) == nil {
		w.mu.Lock()
		for id, renewed := range w.leases {
			if time.Since(renewed) < w.ttl {
				continue
			}
			for s := range w.of { // before anybody calls Valid, which would end it
				if s.Lease() == id && s.Context().Err() == nil {
					w.failLocked("lease %x expires, and its session goes on", int64(id))
				}
			}
			for h := range w.holds {
				if h.Session().Lease() == id && (h.ctx != nil && h.ctx.Err() == nil || h.Valid()) {
					w.failLocked("the lease of %v expires, and the hold is valid", h)
				}
			}
			w.revokeLocked(id)
		}
		w.mu.Unlock()
	}
}

// leaselessLocked reports whether a transaction would put a key on a lease that is gone.
func (w *world) leaselessLocked(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(w.f.Puts(r), func(p *pb.PutRequest) bool {
		_, lives := w.leases[clientv3.LeaseID(p.Lease)]
		return p.Lease != 0 && !lives
	})
}

// data begins the keys of what holders write.
const data = "data/"

// marks begins the keys that Txns write. Each Txn has a key of its own.
const marks = "marks/"

// entryOf names an entry under one of its keys.
func entryOf(key string, rev int64) string { return key + "@" + strconv.FormatInt(rev, 10) }

func nameOf(key string) string { return key[:strings.LastIndexByte(key, '/')] }

// breakLease revokes a lease.
func (w *world) breakLease() {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := slices.Sorted(maps.Keys(w.leases))
	if len(ids) == 0 {
		return
	}
	id := ids[w.dice.n(len(ids))]
	for _, kv := range w.f.Keys("") {
		if kv.Lease == int64(id) {
			w.removed[entryOf(string(kv.Key), kv.CreateRevision)] = true
		}
	}
	w.revokeLocked(id)
}

// breakOne removes an entry of one name, with all of its keys there.
func (w *world) breakOne() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updateLocked(func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
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

// play plays a world.
func play(t *testing.T, seed uint64) {
	w := &world{seed: seed, dice: &dice{r: rand.New(rand.NewPCG(seed, 1))}, names: []string{"a", "b", "a/x"}, breaks: seed%2 == 0, refuses: seed%3 == 0, lastLease: 15}
	synctest.Test(t, func(t *testing.T) {
		w.T, w.f, w.begun = t, fakeetcd.New(), time.Now()
		w.f.TellPuts = true
		w.leases, w.holds, w.removed, w.adopted = map[clientv3.LeaseID]time.Time{}, map[*hold]bool{}, map[string]bool{}, map[int64]bool{}
		w.marked = map[string]bool{}
		w.ttl = []time.Duration{10 * time.Second, 10 * time.Second, time.Minute}[w.dice.n(3)]
		w.span = []time.Duration{30 * time.Second, 2 * time.Minute}[w.dice.n(2)]
		w.gone, w.lates, w.of = map[string]removal{}, map[string]bool{}, map[*etcdlock.Session][]*hold{}
		w.latest, w.lines = map[mode]int64{}, map[string]*line{}
		w.killed, w.pending = map[clientv3.LeaseID]bool{}, map[*call]bool{}
		var lives sync.WaitGroup
		for i := range w.dice.n(4) {
			lives.Go(func() { w.successors(i) })
		}
		if w.dice.oneIn(2) {
			lives.Go(w.clients)
		}
		for i := range 2 {
			lives.Go(func() { w.users(i) })
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.late.Go(func() { w.expire(ctx) })
		for range 120 {
			if !w.over.Load() {
				_ = elapse(ctx, time.Second)
			}
		}
		w.rests.Store(true)
		ended := make(chan struct{})
		go func() { lives.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(4 * time.Minute):
			w.hangs()
			<-ended
		}
		w.leavesNothing()
		cancel()
		w.late.Wait()
	})
	require.Positive(t, w.took)
	t.Logf("-seed=%d: %d holds, %d of them adopted, %d guarded writes, and %d calls of users", seed, w.took, len(w.adopted), w.guarded, w.called)
}

// hangs fails the world since calls are still pending.
func (w *world) hangs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.pending {
		w.noteLocked("pending since %v: %s", c.began.Sub(w.begun), c.what)
	}
	for _, kv := range w.f.Keys("") {
		w.noteLocked("there is %s (%s)", entryOf(string(kv.Key), kv.CreateRevision), kv.Value)
	}
	stacks := make([]byte, 1<<20)
	for s := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(s, "internal/test/world.") {
			w.noteLocked("%s", s)
		}
	}
	w.failLocked("processes hang, although nothing goes wrong any more")
}

// leavesNothing waits until the leases of the killed have expired. Nobody renews a lease, and nothing is left.
func (w *world) leavesNothing() {
	_ = elapse(context.Background(), 2*w.ttl)
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.leases {
		w.failLocked("lease %x lives, and all processes have ended", int64(id))
	}
	for _, kv := range w.f.Keys("") {
		if kv.Lease != 0 {
			w.failLocked("%s is left", entryOf(string(kv.Key), kv.CreateRevision))
		}
	}
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
