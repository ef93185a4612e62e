package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// mishaps are what may befall any acquisition between two of its steps.
var mishaps = map[string]func(*scene) error{
	"nothing":      func(*scene) error { return nil },
	"ctx ends":     func(s *scene) error { s.cancel(); return nil },
	"session ends": func(s *scene) error { s.own.lease.End(ErrSessionClosed, "test"); return nil },
	"the lease is revoked": func(s *scene) error {
		s.revoked.Store(true)
		return s.take(func(queue.Entry) bool { return true })
	},
	"the watches break":              func(s *scene) error { s.f.BreakWatches(); return nil },
	"the reply is lost":              func(*scene) error { return errLostReply },
	"the reply is lost twice":        func(s *scene) error { s.again = errLostReply; return errLostReply },
	"the reply is lost and ctx ends": func(s *scene) error { s.cancel(); return errLostReply },
	"the revision is compacted":      func(s *scene) error { s.pinned = rpctypes.ErrGRPCCompacted; return nil },
	"reads are served by a member that lags": func(s *scene) error {
		s.pinned = rpctypes.ErrGRPCFutureRev
		return nil
	},
	"watches are served by a member that lags": func(s *scene) error { s.f.Lag(6); return nil },
}

// singleMishaps befall an acquisition of one name, "a".
var singleMishaps = map[string]func(*scene) error{
	"the entry is deleted": func(s *scene) error {
		return s.take(func(q queue.Entry) bool {
			return s.wants == reading || keyspace.KindOf("a", q.Key) == keyspace.Exclusive
		})
	},
	"the holder downgrades": func(s *scene) error { s.f.Remove("a/1"); return nil },
	"the next one leaves": func(s *scene) error {
		s.f.Remove(append(s.reserved[min(1, len(s.reserved)):], "a/2")[0], "a/2")
		return nil
	},
	"the last one leaves": func(s *scene) error {
		s.f.Remove(append(s.reserved[min(2, len(s.reserved)):], "a/29")[0], "a/29")
		return nil
	},
	"two of many leave": func(s *scene) error { s.f.Remove("a/28"); s.f.Remove("a/27"); return nil },
	"a reader comes and a writer": func(s *scene) error {
		s.f.Write("a/r8")
		s.f.Write("a/9")
		return nil
	},
}

// multiMishaps befall an acquisition of several names.
var multiMishaps = map[string]func(*scene) error{
	"the first key is deleted":  func(s *scene) error { return s.take(func(q queue.Entry) bool { return q.Key[0] == 'a' }) },
	"the second key is deleted": func(s *scene) error { return s.take(func(q queue.Entry) bool { return q.Key[0] == 'b' }) },
	"the last key is deleted":   func(s *scene) error { return s.take(func(q queue.Entry) bool { return q.Key[0] == 'c' }) },
}

// unhurt are the mishaps that must not delay a grant.
var unhurt = map[string]bool{
	"nothing": true, "watches are served by a member that lags": true, "reads are served by a member that lags": true,
	"the revision is compacted": true, "the holder downgrades": true, "the next one leaves": true, "the last one leaves": true, "two of many leave": true,
	"a reader comes and a writer": true,
}

// scene is one acquisition on the fake, in queues behind some others.
type scene struct {
	acquirer
	f          *fakeEtcd
	own        *Session
	cancel     context.CancelFunc
	again      error // at the next step
	pinned     error // of the next pinned read
	revoked    atomic.Bool
	wants      keyspace.Kind     // of one name
	taken      time.Time         // when its key was deleted, if before it was entitled
	deep       bool              // the entry was not next in line when it came: it is told when it is, or by a recheck
	interfered bool              // somebody else may have removed the own entry
	before     []string          // keys of the same session that are not of this acquisition
	reserved   []string          // those of them that are no entries
	over       sync.Map          // those of them that were released with no fence in use
	releases   map[string]func() // by holders of its own session
}

// anothers is a key of the ctx of requests that are no steps of the acquisition.
type anothers struct{}

// callers is a key of the ctx of the acquisition's caller.
type callers struct{}

// take deletes the own keys that is selects, in one revision.
func (s *scene) take(is func(queue.Entry) bool) error {
	s.interfered = true
	s.f.Update("", func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) { // at once: others may leave
		all := queue.Entries(kvs)
		// With nothing but its own session's before it, an acquisition of one name has the lock as soon as they give it
		// back, and hears then that its entry is gone. One of several names looks for all of its keys at last.
		others := slices.DeleteFunc(slices.Clone(all), func(q queue.Entry) bool {
			return len(s.names) == 1 && slices.Contains(s.before, q.Key) && !slices.Contains(s.reserved, q.Key)
		})
		early := slices.ContainsFunc(all, func(q queue.Entry) bool { return s.isOwn(q) && !s.entitled(q, others) })
		for _, q := range all {
			if s.isOwn(q) && is(q) {
				ops = append(ops, fakeetcd.RemoveOp(q.Key))
				if early {
					s.taken = time.Now()
				}
			}
		}
		return ops
	})
	return nil
}

// entitled is whether an entry has its lock with these in the queues: keys of its own session that were released are not
// in its way.
func (s *scene) entitled(e queue.Entry, all []queue.Entry) bool {
	name := e.Key[:1]
	return entitled(keyspace.KindOf(name, e.Key), e.Rev, slices.DeleteFunc(slices.Clone(all), func(q queue.Entry) bool {
		over, ok := s.over.Load(q.Key)
		return q.Key[:1] != name || ok && over == q.Rev
	}))
}

// waitBefore puts another acquisition of the session into the queue, behind
// others of it or as a reader, which has the watch open and passes the lock on at once.
// end sees to it that it has had it.
func (s *scene) waitBefore(t *testing.T, others []string) (end func()) {
	enqueue := NewMutex(s.own, "a").Enqueue
	switch others[0] {
	case ownReader:
		enqueue = NewRWMutex(s.own, "a").REnqueue
	case "a/5":
		for range others {
			s.reserved = append(s.reserved, s.own.keys.Take("a", keyspace.Exclusive))
		}
	}
	tk, err := enqueue(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.before = append(append(s.before, s.reserved...), tk.h.Key())
	synctest.Wait() // it watches
	done := make(chan error)
	go func() {
		h, err := tk.Wait(context.Background())
		if err == nil {
			s.over.Store(h.Key(), h.Token())
			err = h.Unlock(context.WithValue(context.Background(), anothers{}, true))
		}
		done <- err
	}()
	return func() {
		if err := <-done; err != nil && !s.interfered && s.own.Err() == nil {
			t.Error(err)
		}
	}
}

// holdBefore has the session hold the lock, until the others leave.
func (s *scene) holdBefore(t *testing.T, who string) {
	h, err := NewMutex(s.own, "a").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	fenced := who == ownFenced
	if fenced {
		h.IsOwner()
	}
	s.before = append(s.before, h.Key())
	s.releases[who] = sync.OnceFunc(func() {
		if !fenced {
			s.over.Store(h.Key(), h.Token())
		}
		h.Release()
	})
}

// queueBefore has the session have a mutex before the acquisition, or wait for it, until the others leave.
func (s *scene) queueBefore(t *testing.T, who, name string, fenced bool) {
	tk, err := NewMutex(s.own, name).Enqueue(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	s.before = append(s.before, tk.h.Key())
	s.releases[who] = sync.OnceFunc(func() {
		go func() { // it may have to wait for one before it
			h, err := tk.Wait(context.Background())
			if err != nil {
				return
			}
			if fenced {
				h.IsOwner()
			} else {
				s.over.Store(h.Key(), h.Token())
			}
			h.Release()
		}()
	})
}

// join lets one of those before take its place.
func (s *scene) join(t *testing.T, who string) {
	if name, own := strings.CutPrefix(who, ownOf); own {
		s.queueBefore(t, who, name, false)
		return
	}
	if name, own := strings.CutPrefix(who, ownFencedOf); own {
		s.queueBefore(t, who, name, true)
		return
	}
	switch who {
	case ownReader: // see waitBefore
		return
	case ownHolder, ownFenced:
		s.holdBefore(t, who)
	}
	s.f.writeAll(who)
}

func (s *scene) isOwn(q queue.Entry) bool {
	return !slices.Contains(s.before, q.Key) && keyspace.LeaseOf(q.Key[:1], q.Key) == fmt.Sprintf("%x", s.own.Lease())
}

// mine are the keys of the acquisition that are in the queues, and all that are there.
func (s *scene) mine() (mine, all []queue.Entry) {
	all = s.f.entries("")
	return slices.DeleteFunc(slices.Clone(all), func(q queue.Entry) bool { return !s.isOwn(q) }), all
}

// queues are what stands in the queue before: a holder and others, by key.
var queues = map[string][]string{
	"free":                        nil,
	"a mutex":                     {"a/1"},
	"a write lock":                {"a/1 a/r1"},
	"two":                         {"a/1", "a/2"},
	"write lock and writer":       {"a/1 a/r1", "a/2 a/r2"},
	"readers":                     {"a/r1", "a/r2", "a/r3"},
	"a writer and readers":        {"a/1", "a/r2", "a/r3"},
	"reader, writer":              {"a/r1", "a/2"},
	"foreign keys":                {"a/config", "a/b/1", "a/zz"},
	"nine foreign keys":           {"a/b/1", "a/b/2", "a/b/3", "a/c/1", "a/c/2", "a/c/3", "a/d/1", "a/d/2", "a/d/3"}, // more than a Try lists
	"two, and foreign keys":       {"a/1", "a/2", "a/config", "a/zz"},
	"foreign keys and a mutex":    {"a/config", "a/b/1", "a/1", "a/zz"},
	"three":                       {"a/1", "a/2", "a/29"},
	"many":                        many,
	"of the session itself":       {"a/5", "a/5-1", "a/5-2"}, // and a waiter of it, a/5-3
	"three, and two of its own":   {ownTwo, "a/1", "a/2", "a/29"},
	"many, and two of its own":    append([]string{ownTwo}, many...),
	"mixed, and two of its own":   {ownTwo, "a/1 a/r1", "a/r2", "a/2", "a/29 a/r29"},
	"a holder of its own":         {ownHolder},
	"a holder of its own, fenced": {ownFenced},
	"its own between others":      {ownHolder, "a/2"},
	"and its own reader":          {ownReader, "a/1", "a/2"}, // who comes last
	"many, and readers":           append([]string{"a/r1"}, append(many[:10:10], append([]string{"a/r2", "a/r3"}, many[10:]...)...)...),
}

// ownReader is a reader of the session, which leaves as soon as it has the lock.
const ownReader = "a/r5"

// ownHolder is a stray key that says that the session holds the lock; it releases the lock when the others
// leave. ownFenced is the same with its fence in use.
const (
	ownHolder = "a/zzx"
	ownFenced = "a/zzy"
)

// ownTwo is a stray key that says that two waiters of the session are before, and each gives the
// lock back as soon as it has it.
const ownTwo = "a/zzz"

// many are more than the txn of enqueue shows.
var many = func() (keys []string) {
	for i := range 2 * enqueueReadLimit {
		keys = append(keys, fmt.Sprintf("a/%x", 0x2a-2*enqueueReadLimit+i))
	}
	return keys
}()

// multiQueues are who is before it. What belongs together is written by one txn.
var multiQueues = map[string][]string{
	"free":                      nil,
	"the first":                 {"a/1"},
	"the last":                  {"c/1"},
	"a reader of the last":      {"c/r1"},
	"all, by another Multi":     {"a/1 b/1 c/1"},
	"two Multis that overlap":   {"a/1 b/1", "b/2 c/2"},
	"one after the other":       {"a/1", "b/2", "c/3"},
	"one before the other":      {"c/1", "b/2", "a/3"},
	"a writer and readers":      {"a/1 a/r1", "a/r2", "b/r3"},
	"deep in one":               {"b/1", "b/2", "b/3", "b/4", "a/5"},
	"foreign keys":              {"a/x/1", "b/config", "b/1"},
	"a holder of its own":       {ownOf + "a"},
	"its own of all":            {ownOf + "a", ownOf + "b", ownOf + "c"},
	"its own and another":       {ownOf + "a", "b/1"},
	"its own, and a Multi":      {ownOf + "b", "a/1 c/1"},
	"its own behind another":    {"a/1", ownOf + "b"},
	"a fenced one of its own":   {ownFencedOf + "b"},
	"its own after another one": {"b/1", ownOf + "b"},
}

// ownOf and ownFencedOf stand for a mutex that the Multi's own session has, or waits for, with its fence in
// use or not.
const ownOf, ownFencedOf = "own ", "fenced "

// leave lets the others leave, the first in the queue first.
func (s *scene) leave(others []string) {
	for _, release := range s.releasesOf(others) {
		release()
	}
	for _, who := range others {
		if who != ownReader && s.releases[who] == nil || who == ownHolder || who == ownFenced {
			s.f.Remove(strings.Fields(who)...)
		}
	}
	if len(s.names) == 1 {
		s.f.Remove("a/r8", "a/9")
	}
}

// releasesOf are the releases of those of the own session.
func (s *scene) releasesOf(others []string) (releases []func()) {
	for _, who := range others {
		if release := s.releases[who]; release != nil {
			releases = append(releases, release)
		}
	}
	return releases
}

// An acquirer is a kind of acquisition.
type acquirer struct {
	names   []string // of its locks
	kind    string
	acquire func(ctx context.Context, s *Session) (*Held, error)
}

func (a *acquirer) tries() bool  { return strings.HasSuffix(a.kind, "Try") }
func (a *acquirer) ticket() bool { return strings.HasSuffix(a.kind, "Ticket") }

func single(kind string, acquire func(context.Context, *Session) (*Held, error)) acquirer {
	return acquirer{[]string{"a"}, kind, acquire}
}

// several locks three names, the last one to read.
func several(kind string, acquire func(*Multi, context.Context) (*Held, error)) acquirer {
	return acquirer{[]string{"a", "b", "c"}, kind, func(ctx context.Context, s *Session) (*Held, error) {
		return acquire(NewMulti(s, Write("a"), Write("b"), Read("c")), ctx)
	}}
}

// byTicket takes a place in the queue, and waits.
func byTicket(ctx context.Context, enqueue func(context.Context) (*Ticket, error)) (*Held, error) {
	tk, err := enqueue(ctx)
	if err != nil {
		return nil, err
	}
	h, err := tk.Wait(ctx)
	if err != nil {
		_ = tk.Cancel(context.WithoutCancel(ctx))
	}
	return h, err
}

// plays are the kinds of acquisition, and for each of them what is before it, what befalls it, and how much is played.
var plays = []struct {
	name      string
	acquirers []acquirer
	queues    map[string][]string
	mishaps   map[string]func(*scene) error // besides those of all
	// In the quick run one step in oneIn is played. lags are how many steps after the others the last one leaves, in the
	// scenes that are played.
	oneIn int
	lags  func(scenes *sample.Scenes, others []string, mishap string, at, leaveAt int) []int
}{
	{"one name", []acquirer{
		single("Mutex", func(ctx context.Context, s *Session) (*Held, error) { return NewMutex(s, "a").Lock(ctx) }),
		single("RWMutex", func(ctx context.Context, s *Session) (*Held, error) { return NewRWMutex(s, "a").Lock(ctx) }),
		single("RWMutex read", func(ctx context.Context, s *Session) (*Held, error) { return NewRWMutex(s, "a").RLock(ctx) }),
		single("Ticket", func(ctx context.Context, s *Session) (*Held, error) { return byTicket(ctx, NewMutex(s, "a").Enqueue) }),
		single("Try", func(ctx context.Context, s *Session) (*Held, error) { return NewMutex(s, "a").TryLock(ctx) }),
	}, queues, singleMishaps, 12, singleLags},
	{"several names", []acquirer{
		several("Multi", (*Multi).Lock),
		several("Multi Ticket", func(m *Multi, ctx context.Context) (*Held, error) { return byTicket(ctx, m.Enqueue) }),
		several("Multi Try", (*Multi).TryLock),
	}, multiQueues, multiMishaps, 32, multiLags},
}

// singleLags plays all in full. The race detector is slow and never forgets a goroutine: with it a quarter is played, at
// random, beside the last of each step.
func singleLags(scenes *sample.Scenes, others []string, mishap string, at, leaveAt int) []int {
	if leaveAt < at+4 && (harness.Race && rand.N(4) > 0 || !scenes.Plays(12)) {
		return nil
	}
	return sample.Some(lags(others, mishap))
}

// multiLags plays some at random also in full, beside those in which the others leave at once with the mishap: all of them
// take minutes.
func multiLags(scenes *sample.Scenes, others []string, _ string, at, leaveAt int) (some []int) {
	for _, lag := range []int{0, 3} {
		if lag > 0 && len(others) < 2 || (leaveAt != at || lag > 0) && (rand.N(40) > 0 || !scenes.Plays(4)) {
			continue
		}
		some = append(some, lag)
	}
	return some
}

// TestInterleavings_I1_I3: in every queue, for every kind of acquisition, every mishap at every step of it, with the others
// leaving at every step: it is granted only when it is entitled, in all of its queues at once, or fails for a reason; and
// nothing stays behind, no entry, no key in use and, since the bubble would not end with one, no goroutine.
func TestInterleavings_I1_I3(t *testing.T) {
	for _, p := range plays {
		all := maps.Clone(mishaps)
		maps.Copy(all, p.mishaps)
		for queueName, others := range p.queues {
			t.Run(p.name+"/"+queueName, func(t *testing.T) {
				t.Parallel()
				var scenes sample.Scenes
				defer scenes.Log(t)
				acquirers := p.acquirers
				if len(others) > enqueueReadLimit {
					acquirers = acquirers[:3] // the others queue as a Mutex does
				}
				for _, acquirer := range acquirers {
					for mishapName, mishap := range all {
						if harness.Race && rand.N(3) > 0 {
							continue // without the detector all of them are played
						}
						eachStep(&scenes, len(others) == 0, p.oneIn, 8*len(lags(others, mishapName)), func(at int) (reached bool) {
							for leaveAt := at - 3; leaveAt <= at+4; leaveAt++ {
								some := []int{0}
								if len(others) > 0 {
									some = p.lags(&scenes, others, mishapName, at, leaveAt)
								} else if leaveAt != at {
									continue // there is nobody to leave
								}
								for _, lag := range some {
									name := fmt.Sprintf("%s, %s at step %d, the others leave at %d, the last %d later", acquirer.kind, mishapName, at, leaveAt, lag)
									ok := true
									synctest.Test(t, func(t *testing.T) {
										reached = playScene(t, name, acquirer, others, mishap, unhurt[mishapName], at, leaveAt, lag) || reached
										ok = !t.Failed()
									})
									if !ok {
										t.FailNow()
									}
								}
							}
							return reached
						})
					}
				}
			})
		}
	}
}

// eachStep plays the scenes of one step after the other, until a step is not reached. Unless there are few scenes, the quick
// run plays one step in that many, at least one of those that are reached, and leaves out the others, with each of their scenes.
func eachStep(scenes *sample.Scenes, few bool, oneIn, each int, play func(at int) (reached bool)) {
	if few || sample.Full() {
		oneIn = 1
	}
	at := rand.N(oneIn)
	for !play(at) && at > 0 {
		at /= 2
	}
	for at += oneIn; at <= 60 && play(at); at += oneIn {
		scenes.Left((oneIn - 1) * each)
	}
}

// lags are how many steps after the others the last one leaves.
func lags(queue []string, mishap string) []int {
	if len(queue) < 2 || !unhurt[mishap] && mishap != "the entry is deleted" {
		return []int{0}
	}
	if len(queue) > enqueueReadLimit {
		return []int{0, 3}
	}
	return []int{0, 2, 4}
}

// playScene reports whether the step of the mishap was reached.
func playScene(t *testing.T, name string, as acquirer, others []string, mishap func(*scene) error, unhurt bool, at, leaveAt, lag int) (reached bool) {
	f := newFakeEtcd()
	// The keys have been in use before, and so have the session's own.
	for _, keys := range []string{"a/1 a/r1", "a/r5 a/5", "a/2 a/r2 a/r3"} {
		f.writeAll(keys)
		f.Remove(strings.Fields(keys)...)
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), callers{}, true))
	defer cancel()
	s := &scene{acquirer: as, f: f, cancel: cancel, releases: map[string]func(){}}
	if len(s.names) == 1 {
		s.own = f.bareSession(5)
	} else {
		s.own = f.session(15)
	}
	for _, who := range others {
		s.join(t, who)
	}
	if len(others) > 0 && slices.Contains([]string{"a/5", ownReader, ownTwo}, others[0]) {
		defer s.waitBefore(t, others)()
	}
	if len(others) > 0 && others[0] == ownTwo {
		defer s.waitBefore(t, others)()
	}
	hooks := &recorder{}
	s.own.config.hooks = []*Hooks{hooks.hooks()}
	if s.kind == "RWMutex read" {
		s.wants = reading
	}
	kinds := map[keyspace.Kind]int{}
	for _, e := range f.entries("a/") {
		kinds[keyspace.KindOf("a", e.Key)]++
	}
	s.deep = kinds[keyspace.Exclusive] > waitlist.Lookahead ||
		kinds[keyspace.Exclusive] > 0 && s.wants != reading && kinds[keyspace.Shared] > 2*waitlist.Lookahead
	s.own.lease.KeepAlive = func(context.Context) (int64, error) {
		if s.revoked.Load() {
			return 0, nil
		}
		return 10, nil
	}
	var mu sync.Mutex // steps may come from the background too
	n := -1
	aside := false     // the mishap was at a step of another goroutine
	var free time.Time // when all others have left
	f.Step = func(ctx context.Context, what string) error {
		if ctx.Value(anothers{}) != nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		if n == leaveAt && lag > 0 {
			s.leave(others[:len(others)-1])
		}
		if n == leaveAt+lag {
			s.leave(others)
			free = time.Now()
		}
		if again := s.again; again != nil {
			s.again = nil
			return again
		}
		if err := s.pinned; err != nil && what == "pinned Range" {
			s.pinned = nil
			return err
		}
		if n == at {
			reached = true
			if n == leaveAt+lag {
				free = time.Time{} // others may come now
			}
			aside = ctx.Value(callers{}) == nil
			if err := mishap(s); err != nil {
				if what == "Watch" || what == "Watch." {
					f.BreakWatches()
				}
				return err
			}
		}
		return nil
	}
	time.AfterFunc(100*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		s.leave(others) // at last
		if free.IsZero() {
			free = time.Now()
		}
	})

	h, err := s.acquire(ctx, s.own)
	mine, all := s.mine()
	mu.Lock()    // a step of another one's release may be the mishap, also now
	gone := free // when all others have left
	taken, interfered, aside := s.taken, s.interfered, aside
	mu.Unlock()
	if !taken.IsZero() {
		if err == nil {
			t.Errorf("%s: granted after its entry had gone", name)
		} else if s.deep && gone.After(taken) {
			taken = gone
		}
		if late := time.Since(taken); err != nil && late > 500*time.Millisecond && len(s.names) == 1 {
			t.Errorf("%s: told %v late that its entry had gone", name, late)
		}
	}
	switch {
	case err == nil && ctx.Err() != nil && !s.ticket() && !aside:
		t.Errorf("%s: granted although ctx had ended", name)
		fallthrough
	case err == nil:
		// Entitled at the moment, as far as it is still there at all.
		held := slices.DeleteFunc(slices.Clone(mine), func(q queue.Entry) bool { return q.Rev != h.Token() || !slices.Contains(h.Keys(), q.Key) })
		there := len(held) == len(s.names)
		if !there && !interfered {
			t.Errorf("%s: granted with %v only", name, held)
		}
		if len(s.names) > 1 && len(held) < len(mine) {
			t.Errorf("%s: of %v some are not of the token %d", name, mine, h.Token())
		}
		if late := time.Since(gone); unhurt && !gone.IsZero() && late > 0 {
			t.Errorf("%s: granted %v late", name, late)
		}
		for _, q := range held {
			if !s.entitled(q, all) {
				t.Errorf("%s: granted at %d in %v", name, h.Token(), all)
			}
		}
		checkHold(ctx, t, name, h, there, unhurt)
	case !s.tries() || !errors.Is(err, ErrLocked):
		checkRefusal(t, name, s.own, err, interfered)
	}
	s.leave(others) // if they have not
	// Long enough for all settling; the clock is the bubble's.
	<-time.After(time.Minute)
	if s.own.Err() == nil { // else the lease takes what is left, also if the session heard only now that it was revoked
		if left, _ := s.mine(); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
		s.own.keys.Free(s.reserved...)
		s.own.mu.Lock()
		if s.own.keys.InUse() || len(s.own.lists) > 0 {
			t.Errorf("%s: keys are left in use: %t; lists: %v", name, s.own.keys.InUse(), s.own.lists)
		}
		s.own.mu.Unlock()
	}
	if stories := hooks.stories(); len(stories) != 1 || !whole.MatchString(stories[0]) || !s.ticket() && (err == nil) != strings.Contains(stories[0], "granted") {
		t.Errorf("%s: the hooks were told %q of %v", name, stories, err)
	}
	s.own.lease.End(ErrSessionClosed, "test")
	s.own.lease.NotFound()
	<-time.After(time.Minute) // past the last timer
	return reached
}

// checkHold looks at a hold that was granted, and gives it back. It is told within an instant if its entry, or a
// part of it, is not there; one that nothing has happened to is not lost by looking at it.
func checkHold(ctx context.Context, t *testing.T, name string, h *Held, there, unhurt bool) {
	if !there {
		select {
		case <-h.Done():
		case <-time.After(500 * time.Millisecond):
			t.Errorf("%s: it is not told that its entry is gone", name)
		}
	}
	if unhurt {
		h.Context()
		<-time.After(time.Second)
		if err := h.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := h.Unlock(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, ErrLost) {
		t.Errorf("%s: unlock: %v", name, err)
	}
}

// checkRefusal looks at the error of an acquisition that failed: there has to be a reason.
func checkRefusal(t *testing.T, name string, s *Session, err error, interfered bool) {
	switch {
	case errors.Is(err, ErrSessionExpired) && errors.Is(s.Err(), ErrSessionClosed):
		t.Errorf("%s: %v, but the session was closed", name, err)
	case errors.Is(err, context.Canceled), errors.Is(err, ErrSessionClosed), errors.Is(err, ErrSessionExpired):
	case errors.Is(err, ErrLost) && interfered:
	default:
		t.Errorf("%s: %v", name, err)
	}
}

// A waiter whose entry was removed asks after its lease. Where etcd does not
// answer, its ctx ends that at once, also when others of the session are asking.
func TestWait_CtxEndsWhileTheLeaseIsAskedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		t.Cleanup(func() {
			s.lease.End(ErrSessionClosed, "test")
			s.lease.NotFound()
		})
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		s.lease.KeepAlive = func(ctx context.Context) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		const waiters = 3
		failed := make(chan error, waiters)
		for range waiters {
			go func() {
				_, err := NewMutex(s, "a").Lock(ctx)
				failed <- err
			}()
		}
		synctest.Wait()
		for _, q := range f.entries("a/") {
			if q.Key != h.Key() {
				f.Remove(q.Key)
			}
		}
		synctest.Wait()
		require.Empty(t, failed)
		start := time.Now()
		cancel()
		for range waiters {
			require.ErrorIs(t, <-failed, context.Canceled)
		}
		require.Zero(t, time.Since(start))
	})
}

// An order is one of the orders in which things begin, and their requests are carried out and answered. Each of these
// waits for its turn; see everyOrder.
type order struct {
	mu    sync.Mutex
	turns []turn // what waits
	over  bool   // nothing waits any more
	// chosen is which of those that wait has come at each point, and from how many: there are the orders before this
	// one that had others there.
	chosen, from []int
	at           int
	random       bool // what comes where no order has chosen, else the first
	losses       int  // how many replies may be lost yet
	came         []string
}

// A turn is what one waits for. The error is its request's.
type turn struct {
	what string
	come chan error
}

// wait waits for its turn.
func (o *order) wait(ctx context.Context, what string) error {
	o.mu.Lock()
	if o.over {
		o.mu.Unlock()
		return ctx.Err()
	}
	w := turn{what, make(chan error, 1)}
	o.turns = append(o.turns, w)
	o.mu.Unlock()
	select {
	case err := <-w.come:
		return err
	case <-ctx.Done():
		o.mu.Lock()
		defer o.mu.Unlock()
		o.turns = slices.DeleteFunc(o.turns, func(t turn) bool { return t.come == w.come })
		return ctx.Err()
	}
}

// step is for fakeEtcd.Step: each request that writes waits for its turn before it is carried out and after.
func (o *order) step(ctx context.Context, what string) error {
	if (what == "Txn" || what == "Txn.") && ctx.Value(anothers{}) == nil {
		return o.wait(ctx, what)
	}
	return nil
}

// next has one come that waits, and reports whether there was any.
func (o *order) next() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.turns)
	if n == 0 {
		return false
	}
	if o.losses > 0 { // the reply comes, or is lost
		for _, t := range o.turns {
			if t.what == "Txn." {
				n++
			}
		}
	}
	if o.at == len(o.chosen) {
		first := 0
		if o.random {
			first = rand.N(n)
		}
		o.chosen, o.from = append(o.chosen, first), append(o.from, n)
	}
	i := min(o.chosen[o.at], n-1)
	o.at++
	var err error
	if i >= len(o.turns) {
		lost := i - len(o.turns)
		i = -1
		for j, t := range o.turns {
			if t.what == "Txn." {
				if lost == 0 {
					i = j
				}
				lost--
			}
		}
		o.losses--
		err = errLostReply
	}
	t := o.turns[i]
	o.turns = slices.Delete(o.turns, i, i+1)
	o.came = append(o.came, t.what)
	if err != nil {
		o.came = append(o.came, "is lost")
	}
	t.come <- err
	return true
}

// end has all come that wait, and those that come later.
func (o *order) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	for _, t := range o.turns {
		t.come <- nil
	}
}

// everyOrder plays in each order in which the turns can come, with lost replies lost.
func everyOrder(t *testing.T, losses int, play func(t *testing.T, o *order)) {
	for chosen, from := []int(nil), []int(nil); ; {
		o := &order{chosen: chosen, from: from, losses: losses}
		playOrder(t, o, play)
		chosen, from = o.chosen[:o.at], o.from[:o.at]
		i := len(chosen) - 1
		for i >= 0 && chosen[i]+1 >= from[i] {
			i--
		}
		if i < 0 {
			return
		}
		chosen, from = append(slices.Clone(chosen[:i]), chosen[i]+1), slices.Clone(from[:i+1])
	}
}

// someOrders plays in that many orders, drawn at random.
func someOrders(t *testing.T, n int, play func(t *testing.T, o *order)) {
	for range n {
		playOrder(t, &order{random: true}, play)
	}
}

func playOrder(t *testing.T, o *order, play func(t *testing.T, o *order)) {
	synctest.Test(t, func(t *testing.T) {
		if play(t, o); t.Failed() {
			t.Logf("in the order %q", o.came)
		}
	})
}

// holdPlay is a write hold, and what is done to it at the same time.
type holdPlay struct {
	f      *fakeEtcd
	s      *Session
	h      *Held
	ctx    context.Context // of some of what is done
	cancel context.CancelFunc

	mu         sync.Mutex
	guards     []guard
	tickets    []*Ticket
	downgraded bool // as Downgrade has said
	errs       map[string]error
	released   bool // or on the way
	interfered bool // somebody else has removed a key
}

// A guard is a comparison that the hold has given out.
type guard struct {
	clientv3.Cmp
	exclusive bool
	ended     bool // it was asked for after the end of the hold
}

// done are the things that are done to a hold.
var done = map[string]func(p *holdPlay){
	"downgrade":       func(p *holdPlay) { p.downgrade(p.ctx, "downgrade") },
	"downgrade again": func(p *holdPlay) { p.downgrade(context.Background(), "downgrade again") },
	"ctx ends":        func(p *holdPlay) { p.cancel() },
	"unlock": func(p *holdPlay) {
		p.release()
		p.note("unlock", p.h.Unlock(context.Background()))
	},
	"release":            func(p *holdPlay) { p.release(); p.h.Release() },
	"a reader comes":     func(p *holdPlay) { p.enqueue(NewRWMutex(p.s, "a").REnqueue) },
	"a writer comes":     func(p *holdPlay) { p.enqueue(NewRWMutex(p.s, "a").Enqueue) },
	"contended":          func(p *holdPlay) { p.h.Contended() },
	"watched":            func(p *holdPlay) { p.h.Context() },
	"IsOwner":            func(p *holdPlay) { p.isOwner() },
	"check":              func(p *holdPlay) { p.note("check", p.h.Check(context.Background())) },
	"the key is removed": func(p *holdPlay) { p.remove("a/5") },
	"the second key is removed": func(p *holdPlay) {
		p.remove("a/r5")
	},
	"a transaction": func(p *holdPlay) {
		_, err := p.h.Txn(context.Background()).Then(clientv3.OpPut("x", "")).Commit()
		p.note("a transaction", err)
	},
}

func (p *holdPlay) note(what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs[what] = err
}

func (p *holdPlay) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
}

func (p *holdPlay) downgrade(ctx context.Context, what string) {
	err := p.h.Downgrade(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs[what] = err
	p.downgraded = p.downgraded || err == nil
}

func (p *holdPlay) enqueue(enqueue func(context.Context) (*Ticket, error)) {
	tk, err := enqueue(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.tickets = append(p.tickets, tk)
	}
	p.errs["enqueue"] = err
}

func (p *holdPlay) isOwner() {
	g := guard{p.h.IsOwner(), keyspace.KindOf("a", p.h.Key()) == keyspace.Exclusive, p.h.Err() != nil}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guards = append(p.guards, g)
}

func (p *holdPlay) remove(key string) {
	p.mu.Lock()
	p.interfered = true
	p.mu.Unlock()
	p.f.Update(key, func(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
		for _, kv := range kvs {
			if string(kv.Key) == key && kv.CreateRevision == p.h.rev {
				ops = append(ops, fakeetcd.RemoveOp(key))
			}
		}
		return ops
	})
}

// granted are the tickets that were, and are still held.
func (p *holdPlay) granted() (holds []*Held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tk := range p.tickets {
		if isClosed(tk.Done()) {
			if h, err := tk.Wait(context.Background()); err == nil && h.Err() == nil {
				holds = append(holds, h)
			}
		}
	}
	return holds
}

// isTrue reports whether a transaction with the guard is carried out now.
func (p *holdPlay) isTrue(t *testing.T, g guard) bool {
	ctx := context.WithValue(context.Background(), anothers{}, true)
	resp, err := p.s.etcd.Txn(ctx, func(t clientv3.Txn) clientv3.Txn { return t.If(g.Cmp).Then(clientv3.OpPut("guarded", "")) })
	if err != nil {
		t.Error(err)
	}
	return resp.Succeeded
}

// check requires what holds at every moment.
func (p *holdPlay) check(t *testing.T) {
	t.Helper()
	there := p.f.entries("a/")
	granted := p.granted()
	err := p.h.Err()
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(err, ErrLost) && !p.interfered {
		t.Errorf("the hold is lost, and nobody has touched it: %v", err)
	}
	for _, h := range granted {
		reads := keyspace.KindOf("a", h.Key()) == keyspace.Shared
		if err == nil && (!reads || slices.Contains(there, queue.Entry{Key: "a/5", Rev: p.h.rev})) {
			t.Errorf("%s is in beside the hold, with %v in the queue", h.Key(), there)
		}
		for _, g := range p.guards {
			if (g.exclusive || !reads) && p.isTrue(t, g) {
				t.Errorf("a guard of the hold is true when %s is in", h.Key())
			}
		}
	}
	for _, g := range p.guards {
		if g.ended && p.isTrue(t, g) {
			t.Error("a guard that was asked for after the end of the hold is true")
		}
	}
}

// finish requires what holds when everything has had its answer for a while: whoever is next in etcd has the lock, in
// this session too, and when all have left nothing stays.
func (p *holdPlay) finish(t *testing.T) {
	t.Helper()
	<-time.After(20 * time.Second)
	synctest.Wait()
	for {
		p.check(t)
		there := p.f.entries("a/")
		p.mu.Lock()
		tickets := slices.Clone(p.tickets)
		p.mu.Unlock()
		for _, tk := range tickets {
			if !isClosed(tk.Done()) && entitled(tk.h.parts()[0].Kind, tk.h.rev, there) {
				t.Errorf("%s is next in %v, and not in", tk.h.Key(), there)
			}
		}
		holds := p.granted()
		if p.h.Err() == nil {
			holds = append(holds, p.h)
		}
		if len(holds) == 0 {
			break
		}
		for _, h := range holds {
			h.Release()
		}
		<-time.After(20 * time.Second)
		synctest.Wait()
	}
	for what, err := range p.errs {
		if err != nil && !p.interfered && !errors.Is(err, ErrNotHeld) && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s: %v", what, err)
		}
		if errors.Is(err, ErrNotHeld) && !p.released {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left := p.f.entries("a/"); len(left) > 0 {
		t.Errorf("left in etcd: %v", left)
	}
	<-time.After(time.Minute) // no write is to come any more
	if p.s.keys.InUse() {
		t.Error("keys are left in use")
	}
}

func playHold(t *testing.T, what []string, o *order) {
	p := &holdPlay{f: newFakeEtcd(), errs: make(map[string]error)}
	p.s = p.f.bareSession(5)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	defer func() {
		o.end()
		p.cancel()
		<-time.After(time.Minute)
		p.s.lease.End(ErrSessionClosed, "test")
		p.s.lease.NotFound()
	}()
	var err error
	p.h, err = NewRWMutex(p.s, "a").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	p.f.Step = o.step
	var all sync.WaitGroup
	for _, what := range what {
		all.Go(func() {
			_ = o.wait(context.Background(), what)
			done[what](p)
		})
		synctest.Wait() // so that they wait in the same order each time
	}
	for idle := 0; idle < 3; {
		synctest.Wait()
		p.check(t)
		if idle++; o.next() {
			idle = 0
		} else {
			<-time.After(time.Second) // what is sent again after a pause
		}
	}
	o.end()
	all.Wait()
	p.finish(t)
}

// TestInterleavings_OfAHold: two and three things that are done to a write hold at the same time, in every order in
// which they begin and their requests are carried out and answered. Nobody gets in beside the hold, whoever is next
// gets in, a guard is not true when somebody else is in, nothing is lost that nobody has taken, and nothing stays behind.
//
// It waits for no clock and leaves no processor idle: beside it a test of a real etcd would take seconds for a request.
func TestInterleavings_OfAHold(t *testing.T) {
	var names []string
	for name := range done {
		names = append(names, name)
	}
	slices.Sort(names)
	some := sample.Rounds(t, 2, 40) // orders of three things, where not all are played
	for i, a := range names {
		for j, b := range names[i+1:] {
			for _, c := range append([]string{""}, names[i+j+2:]...) {
				what := []string{a, b}
				if c != "" {
					what = append(what, c)
				}
				// Of two all orders are played. The race detector is too slow for all of three.
				t.Run(strings.Join(what, ", "), func(t *testing.T) {
					t.Parallel()
					play := func(t *testing.T, o *order) { playHold(t, what, o) }
					if c == "" || sample.Full() && !harness.Race {
						everyOrder(t, 0, play)
					} else {
						someOrders(t, some, play)
					}
				})
			}
		}
	}
	// The same with a reply that is lost.
	for _, what := range [][]string{{"downgrade"}, {"a reader comes", "downgrade"}, {"downgrade", "downgrade again"}, {"downgrade", "unlock"}, {"ctx ends", "downgrade"}} {
		t.Run(strings.Join(what, ", ")+", a reply is lost", func(t *testing.T) {
			t.Parallel()
			everyOrder(t, 1, func(t *testing.T, o *order) { playHold(t, what, o) })
		})
	}
}

// TestInterleavings_OfDo: a Do inside of a Do, in a goroutine that may outlive the outer one, in every order in which
// they begin and end and their requests are carried out and answered. The inner Do returns nil only if its hold lasted
// until its fn was done.
func TestInterleavings_OfDo(t *testing.T) {
	everyOrder(t, 0, func(t *testing.T, o *order) {
		f := newFakeEtcd()
		s := f.bareSession(5)
		defer func() {
			o.end()
			<-time.After(time.Minute)
			s.lease.End(ErrSessionClosed, "test")
			s.lease.NotFound()
		}()
		m := NewMutex(s, "a")
		f.Step = o.step
		var all sync.WaitGroup
		var inside sync.Mutex // whoever has taken the lock
		all.Go(func() {
			err := m.Do(context.Background(), func(ctx context.Context, outer *Held) error {
				if !inside.TryLock() {
					t.Error("two are inside")
				}
				defer inside.Unlock()
				ctx = context.WithoutCancel(ctx)
				all.Go(func() {
					_ = o.wait(ctx, "the inner Do begins")
					lasted := true
					err := m.Do(ctx, func(ctx context.Context, h *Held) error {
						if h != outer {
							if !inside.TryLock() {
								t.Error("two are inside")
							}
							defer inside.Unlock()
						}
						_ = o.wait(context.WithoutCancel(ctx), "the inner fn is done")
						lasted = h.Err() == nil
						return nil
					})
					if lasted != (err == nil) || err != nil && !errors.Is(err, ErrNotHeld) {
						t.Errorf("the inner Do, whose hold has lasted: %v, returned %v", lasted, err)
					}
				})
				return o.wait(context.WithoutCancel(ctx), "the outer fn is done")
			})
			if err != nil {
				t.Errorf("the outer Do: %v", err)
			}
		})
		for idle := 0; idle < 3; {
			synctest.Wait()
			if idle++; o.next() {
				idle = 0
			} else {
				<-time.After(time.Second)
			}
		}
		o.end()
		all.Wait()
		if left := f.entries("a/"); len(left) > 0 {
			t.Errorf("left in etcd: %v", left)
		}
	})
}
