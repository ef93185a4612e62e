package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// A history is the only writer below its name, and knows the state at each
// revision.
type history struct {
	t      *testing.T
	c      *clientv3.Client
	name   string
	r      *rand.Rand
	states []*queue.Snapshot // by ascending revision
	news   int64             // the revision of the last change of the entries
}

func newHistory(t *testing.T, c *clientv3.Client, name string, seed uint64) *history {
	h := &history{t: t, c: c, name: name, r: rand.New(rand.NewPCG(seed, 4))}
	h.states = []*queue.Snapshot{{Name: name, Keys: map[string]queue.Key{}, Foreign: map[string]struct{}{}}}
	return h
}

// step writes and deletes some keys in one commit, both entries and other keys.
func (h *history) step() {
	h.t.Helper()
	h.commit(func(next *queue.Snapshot) (ops []clientv3.Op) {
		choices := []string{"/1f", "/1f-1", "/r1f", "/r1f-1", "/2f", "/r2f", "/3f", "/stray", "/b/1f"}
		for _, i := range h.r.Perm(len(choices))[:1+h.r.IntN(3)] {
			key := h.name + choices[i]
			_, entry := next.Keys[key]
			_, other := next.Foreign[key]
			if (entry || other) && h.r.IntN(4) > 0 {
				ops = append(ops, clientv3.OpDelete(key))
				next.Remove(key)
			} else {
				ops = append(ops, h.put(next, key)...)
			}
		}
		return ops
	})
}

func (h *history) put(next *queue.Snapshot, key string) []clientv3.Op {
	value := fmt.Sprintf(`{"owner":"%d"}`, len(h.states))
	kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: next.Keys[key].Rev, Version: next.Keys[key].Version + 1}
	next.Put(kv)
	return []clientv3.Op{clientv3.OpPut(key, value)}
}

// commit repeats the operations until etcd has executed them exactly once, and records the
// state after them. build makes that state from the one before; new keys have no revision in
// it yet.
func (h *history) commit(build func(next *queue.Snapshot) []clientv3.Op) {
	h.t.Helper()
	last := h.states[len(h.states)-1]
	next := &queue.Snapshot{Name: h.name, Keys: maps.Clone(last.Keys), Foreign: maps.Clone(last.Foreign)}
	ops := build(next)
	seq, id := h.name+".seq", len(h.states)
	before := clientv3.Compare(clientv3.Version(seq), "=", id-1)
	_, _, err := etcd.Do(testCtx(h.t), etcd.NewClient(h.c), etcd.Policy{}, func(ctx context.Context) (struct{}, error) {
		resp, err := h.c.Txn(ctx).If(before).Then(append(ops, clientv3.OpPut(seq, ""))...).Else(clientv3.OpGet(seq)).Commit()
		if err != nil {
			return struct{}{}, err
		}
		next.Rev = resp.Header.Revision
		if !resp.Succeeded { // an earlier attempt has succeeded
			kv := resp.Responses[0].GetResponseRange().Kvs[0]
			require.EqualValues(h.t, id, kv.Version)
			next.Rev = kv.ModRevision
		}
		return struct{}{}, nil
	})
	require.NoError(h.t, err)
	for key, k := range next.Keys {
		if k.Mod == 0 {
			k.Mod, k.Rev = next.Rev, cmp.Or(k.Rev, next.Rev)
			next.Keys[key] = k
		}
	}
	h.states = append(h.states, next)
	if !maps.Equal(last.Keys, next.Keys) {
		h.news = next.Rev
	}
}

// check requires that q was the state at its revision.
func (h *history) check(q Queue) {
	h.t.Helper()
	i := len(h.states) - 1
	for h.states[i].Rev > q.Revision {
		i--
	}
	was := *h.states[i]
	was.Rev = q.Revision
	require.Equal(h.t, newQueue(&was), q, "Watch may only show states that existed")
}

// end is the key of the entry that the tests of Watch write last.
const end = "/ff"

// watched collects the states that Watch yields, until there is an entry under end. slow is
// called for each state and may block the loop. Each state must be newer than the one before.
func watched(t *testing.T, c *clientv3.Client, name string, slow func(Queue)) (all []Queue) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*hang)
	defer cancel()
	for q, err := range New(c).Watch(ctx, name) {
		if !assert.NoError(t, err, "after %d states", len(all)) {
			break
		}
		if len(all) > 0 {
			assert.Greater(t, q.Revision, all[len(all)-1].Revision)
		}
		all = append(all, q)
		if slices.ContainsFunc(q.Entries, func(e Entry) bool { return e.Key == name+end }) {
			break
		}
		slow(q)
	}
	return all
}

// play lets a history take steps, some of them followed by a fault, while a watcher that is
// sometimes slow watches its queue.
func play(t *testing.T, direct, watcher *clientv3.Client, steps int, faults map[int]func(h *history)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := newHistory(t, direct, lockName(t), seed)
	h.step()
	pace := make(chan struct{}) // receives once per step; a slow watcher waits for it
	var seen atomic.Int64       // the last revision that was yielded
	slow := rand.New(rand.NewPCG(seed, 5))
	result := make(chan []Queue)
	go func() {
		result <- watched(t, watcher, h.name, func(q Queue) {
			seen.Store(q.Revision)
			for range slow.IntN(4) * slow.IntN(10) {
				<-pace
			}
		})
	}()
	goOn := func() {
		select {
		case pace <- struct{}{}:
		default:
		}
	}
	for i := range steps {
		h.step()
		if fault := faults[i]; fault != nil {
			fault(h)
		}
		goOn()
		if i%20 == 19 {
			require.Eventually(t, func() bool { goOn(); return seen.Load() >= h.news }, hang, tick, "Watch is stuck")
		}
	}
	close(pace)
	h.commit(func(next *queue.Snapshot) []clientv3.Op { return h.put(next, h.name+end) })
	all := <-result
	for _, q := range all {
		h.check(q)
	}
}

// During faults of the connection and compactions, Watch shows only states that existed, and
// in the end the present state.
func TestWatchThroughFaults(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	proxy := own.Proxy(t)
	compact := func(h *history) {
		_, err := own.Compact(testCtx(t))
		require.NoError(t, err)
	}
	away := func(h *history) { // the changes during this fault are compacted
		proxy.Refuse()
		proxy.Reset()
		for range 5 {
			h.step()
		}
		compact(h)
		proxy.Accept()
	}
	reset := func(*history) { proxy.Reset() }
	play(t, own.Client(t), own.Client(t, proxy), 300, map[int]func(*history){
		50: compact, 100: reset, 150: away, 200: reset, 210: reset, 220: compact, 230: reset,
	})
}

// The same with three members; each member is isolated or stopped at times, and a leader
// that changes.
func TestWatchThroughLeaderChanges(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	direct := own.Client(t)
	lead := func(i int) func(*history) {
		return func(*history) { require.NoError(t, own.MoveLeader(testCtx(t), i)) }
	}
	without := func(i int, gone func(m *etcdtest.Member), back func(m *etcdtest.Member)) func(*history) {
		others := own.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Endpoints = slices.Delete(own.Endpoints(), i, i+1) }))
		return func(h *history) {
			gone(own.Member(i))
			h.c = others
			for range 10 {
				h.step()
			}
			h.c = direct
			back(own.Member(i))
		}
	}
	isolated := func(i int) func(*history) { return without(i, (*etcdtest.Member).Isolate, (*etcdtest.Member).Heal) }
	killed := without(1, (*etcdtest.Member).Kill, func(m *etcdtest.Member) { require.NoError(t, m.Restart(testCtx(t))) })
	play(t, direct, own.Client(t), 160, map[int]func(*history){
		20: lead(0), 40: lead(1), 60: lead(2), 80: isolated(0), 100: isolated(1), 120: isolated(2), 140: killed,
	})
}

func newest(f *inspect.Follower) (s *queue.Snapshot) {
	f.Newest(func(it *queue.Snapshot) { s = it })
	return s
}

// next returns the next state from pull, which must not hang.
func next(t *testing.T, pull func() (Queue, error, bool)) Queue {
	t.Helper()
	late := time.AfterFunc(hang, func() { panic("Watch hangs") })
	defer late.Stop()
	q, err, ok := pull()
	require.NoError(t, err)
	require.True(t, ok)
	return q
}

// A lock is taken, waited for, handed over and released, and Watch shows each step.
func TestWatchShowsEachState(t *testing.T) {
	t.Parallel()
	c, name, tap := cluster.Client(t), lockName(t), etcdtest.NewTap()
	f := inspect.NewFollower(cluster.Client(t, tap), name)
	f.Every = time.Hour // each recheck would cost a read
	pull, stop := iter.Pull2(inspect.Follow(testCtx(t), f, newQueue))
	defer stop()
	q := next(t, pull)
	require.Equal(t, Queue{Name: name, Revision: q.Revision, Entries: []Entry{}}, q) // none

	m := NewRWMutex(newTestSession(t, c, WithOwner("me")), name)
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	q = next(t, pull)
	require.Equal(t, h.Token(), q.Revision)
	require.Len(t, q.Entries, 1)
	want := entryOf(t, c, name, h.Token())
	want.TTL, want.GrantedTTL = 0, 0
	require.Equal(t, []Entry{want}, q.Holders())
	require.Equal(t, "me", q.Entries[0].Owner)

	tk, err := m.REnqueue(testCtx(t))
	require.NoError(t, err)
	q = next(t, pull)
	require.Equal(t, tk.h.Token(), q.Revision)
	require.Equal(t, []int64{tk.h.Token()}, tokens(q.Waiters()))

	_, err = c.Put(testCtx(t), name+"/b/1f", "") // a nested lock is not a change
	require.NoError(t, err)
	require.NoError(t, h.Downgrade(testCtx(t)))
	q = next(t, pull)
	require.Equal(t, []int64{h.Token(), tk.h.Token()}, tokens(q.Holders()))
	require.Equal(t, []string{name + "/b/1f"}, q.Foreign)

	require.NoError(t, h.Unlock(testCtx(t)))
	require.Equal(t, []int64{tk.h.Token()}, tokens(next(t, pull).Entries))
	h, err = tk.Wait(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
	require.Empty(t, next(t, pull).Entries)
	require.Equal(t, 1, tap.Calls(), "changes must be read from the watch")
	harness.RequireFromNow(t, tap.WatchCreates())
	require.Len(t, tap.WatchCreates(), 1)
}

// While the consumer is busy, Watch reads all events from the client and keeps only the newest
// state, which the consumer gets next.
func TestWatchSlowConsumer(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	f := inspect.NewFollower(c, name)
	ctx, cancel := context.WithCancel(testCtx(t))
	states, busy := make(chan Queue), make(chan struct{})
	go func() {
		defer close(states)
		inspect.Follow(ctx, f, newQueue)(func(q Queue, err error) bool {
			if err == nil {
				states <- q
				<-busy
			}
			return err == nil
		})
	}()
	require.Empty(t, (<-states).Entries)
	h := newHistory(t, c, name, 1)
	for range 100 {
		h.step()
	}
	h.commit(func(next *queue.Snapshot) []clientv3.Op { return h.put(next, name+end) })
	last := h.states[len(h.states)-1]
	require.Eventually(t, func() bool {
		rev, _ := f.At()
		return rev == last.Rev
	}, hang, tick, "all events must be read while the consumer is busy")
	busy <- struct{}{}
	require.Equal(t, newQueue(last), <-states)
	cancel()
	busy <- struct{}{}
	require.Empty(t, <-states, "an old state must not be kept")
}

var stackBuf = make([]byte, 16<<20)

// stacks returns the stacks of all goroutines.
func stacks() string { return string(stackBuf[:runtime.Stack(stackBuf, true)]) }

// A loop that ends with a break, a panic or its ctx leaves no goroutine.
func TestWatchEnds(t *testing.T) {
	c, name := cluster.Client(t), lockName(t)
	stopped := func() {
		t.Helper()
		require.False(t, strings.Contains(stacks(), "(*Follower).Run"), "the follower must have ended")
		require.Eventually(t, func() bool { return !strings.Contains(leaks.Library(), "serveSubstream(") }, hang, tick, "no watch may be left")
		require.Eventually(t, func() bool { return !strings.Contains(leaks.Library(), "(*Follower)") }, hang, tick, "no goroutine may be left")
	}
	for range 20 {
		for _, err := range New(c).Watch(testCtx(t), name) {
			require.NoError(t, err)
			break
		}
		require.False(t, strings.Contains(stacks(), "(*Follower).Run"), "the follower must have ended")
	}
	stopped()
	require.Panics(t, func() {
		for _, err := range New(c).Watch(testCtx(t), name) {
			panic(err)
		}
	})
	stopped()
	ctx, cancel := context.WithCancelCause(testCtx(t))
	defer cancel(nil)
	why := errors.New("why")
	var errs []error
	for _, err := range New(c).Watch(ctx, name) {
		errs = append(errs, err)
		cancel(why)
	}
	stopped()
	require.Len(t, errs, 2)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], context.Canceled)
	require.ErrorIs(t, errs[1], why)

	// The etcd client is closed.
	c, err := cluster.NewClient()
	require.NoError(t, err)
	errs = nil
	for _, err := range New(c).Watch(testCtx(t), name) {
		errs = append(errs, err)
		c.Close()
	}
	stopped()
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[1], "client is closed")
}

// A watch stream becomes silent while its connection stays open: deleted and new entries are
// found by asking, and the next watch uses another stream.
func TestWatchSilentStream(t *testing.T) {
	t.Parallel()
	tap, name, direct := etcdtest.NewTap(), lockName(t), cluster.Client(t)
	c := cluster.Client(t, tap)
	// Another watch of the client keeps its stream open.
	other := c.Watch(clientv3.WithRequireLeader(testCtx(t)), name+"-2", clientv3.WithCreatedNotify())
	require.True(t, (<-other).Created)
	var arm atomic.Bool
	var mu sync.Mutex
	silent := map[context.Context]bool{}
	tap.OnWatchResponse(func(ctx context.Context, m *pb.WatchResponse) error {
		mu.Lock()
		if len(m.Events) > 0 && arm.CompareAndSwap(true, false) {
			silent[ctx] = true
		}
		is := silent[ctx]
		mu.Unlock()
		if is {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	f := inspect.NewFollower(c, name)
	f.Every = 20 * time.Millisecond
	pull, stop := iter.Pull2(inspect.Follow(testCtx(t), f, newQueue))
	defer stop()
	require.Empty(t, next(t, pull).Entries)
	put, del := clientv3.OpPut(name+"/1f", ""), clientv3.OpDelete(name+"/1f")
	for i, ops := range [][]clientv3.Op{{put}, {del, clientv3.OpPut(name+"/2f", "")}, {clientv3.OpDelete(name + "/2f")}, {put}} {
		require.Eventually(t, func() bool { return tap.Calls("Watch") == i+1 }, hang, tick)
		arm.Store(true)
		resp, err := direct.Txn(testCtx(t)).Then(ops...).Commit()
		require.NoError(t, err)
		q := next(t, pull)
		require.GreaterOrEqual(t, q.Revision, resp.Header.Revision)
		require.Len(t, q.Entries, []int{1, 1, 0, 1}[i])
	}
	// The last stream delivers events.
	require.Eventually(t, func() bool { return tap.Calls("Watch") == 5 }, hang, tick)
	_, err := direct.Put(testCtx(t), name+"/3f", "")
	require.NoError(t, err)
	require.Len(t, next(t, pull).Entries, 2)
	stop()
	_, open := <-f.Etcd.EnterWatcher().Watch(testCtx(t), name)
	require.False(t, open, "no watcher may be left open")
}

// If no watch can be opened, the loop asks etcd instead, as a hold does. When they end, nothing
// goes on trying to open a watch.
func TestWatchWithoutWatches(t *testing.T) {
	tap, name, direct := etcdtest.NewTap(), lockName(t), cluster.Client(t)
	tap.OnStream(func(_ context.Context, method string) error {
		if method == "Watch" {
			return etcdtest.ErrTransport
		}
		return nil
	})
	c := cluster.Client(t, tap)
	s := newTestSession(t, c)
	h, err := NewMutex(s, name+"-2").Lock(testCtx(t))
	require.NoError(t, err)
	h.Done()
	pull, stop := iter.Pull2(New(c).Watch(testCtx(t), name))
	defer stop()
	require.Empty(t, next(t, pull).Entries)
	for i := range 2 {
		_, err := direct.Put(testCtx(t), fmt.Sprint(name, "/1f-", i+1), "")
		require.NoError(t, err)
		require.Len(t, next(t, pull).Entries, i+1)
	}
	tries := func() int { return strings.Count(stacks(), "openWatchClient(") }
	require.Eventually(t, func() bool { return tries() == 3 }, hang, tick, "the client, the session and the loop must try once each")
	require.NoError(t, s.Close())
	require.LessOrEqual(t, tries(), 2, "the session's attempts must end with it")
	tap.Clear() // watches work again
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) > 0 }, hang, tick)
	_, err = direct.Delete(testCtx(t), name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, next(t, pull).Entries)
}

// The member that serves the watch hangs with its connections open.
func TestWatchHungMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	direct := own.Client(t)
	proxies := []*etcdtest.Proxy{own.Proxy(t, 0), own.Proxy(t, 1), own.Proxy(t, 2)}
	require.NoError(t, own.MoveLeader(testCtx(t), 1))
	proxies[1].Refuse()
	proxies[2].Refuse()
	f := inspect.NewFollower(own.Client(t, proxies[0], proxies[1], proxies[2]), "a")
	f.Every = 100 * time.Millisecond
	pull, stop := iter.Pull2(inspect.Follow(testCtx(t), f, newQueue))
	defer stop()
	require.Empty(t, next(t, pull).Entries)
	proxies[1].Accept()
	proxies[2].Accept()
	require.Eventually(t, func() bool { return proxies[1].Connections() > 0 && proxies[2].Connections() > 0 }, hang, tick)
	proxies[0].Hold(etcdtest.Both)
	_, err := direct.Put(testCtx(t), "a/1f", "")
	require.NoError(t, err)
	require.Len(t, next(t, pull).Entries, 1)
	_, err = direct.Delete(testCtx(t), "a/1f")
	require.NoError(t, err)
	require.Empty(t, next(t, pull).Entries)
}

// An event that the read has already shown is not a change. A change is delivered together
// with its state. After the end of ctx there are no changes.
func TestWatchNews(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	h := newHistory(t, c, name, 3)
	for range 20 {
		h.step()
	}
	f := inspect.NewFollower(c, name)
	f.Replace(h.states[20])
	require.Len(t, f.Changed(), 1)
	require.Equal(t, newQueue(h.states[20]), newQueue(newest(f)))
	require.Empty(t, f.Changed())
	f.Replace(h.states[20])
	require.Empty(t, f.Changed())
	history := c.Watch(testCtx(t), name+"/", clientv3.WithPrefix(), clientv3.WithRev(h.states[1].Rev))
	for last := int64(0); last < h.states[20].Rev; {
		wr := <-history
		require.NoError(t, wr.Err())
		f.Apply(etcd.Events(&wr))
		require.Empty(t, f.Changed())
		require.Equal(t, h.states[20], newest(f))
		last = etcd.Latest(&wr)
	}
	ended, cancel := context.WithCancel(testCtx(t))
	cancel()
	for i := range 50 {
		f.Replace([]*queue.Snapshot{queue.NewSnapshot(name), h.states[20]}[i%2])
		require.Len(t, f.Changed(), 1)
		inspect.Follow(ended, f, newQueue)(func(_ Queue, err error) bool {
			require.ErrorIs(t, err, context.Canceled)
			return true
		})
		select {
		case <-f.Changed():
		default:
		}
	}
}

// missed reports whether anything has changed. It also notices an etcd that was restored from
// a snapshot, whose revision is lower than before.
func TestWatchMissed(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	f := inspect.NewFollower(c, name)
	h := newHistory(t, c, name, 2)
	for range 30 {
		s, err := inspect.Read(testCtx(t), f.Etcd, name)
		require.NoError(t, err)
		f.Replace(s)
		missed, err := f.Missed(testCtx(t))
		require.NoError(t, err)
		require.False(t, missed)
		h.step()
		missed, err = f.Missed(testCtx(t))
		require.NoError(t, err)
		require.True(t, missed)
	}
	s, err := inspect.Read(testCtx(t), f.Etcd, name)
	require.NoError(t, err)
	s.Rev += 1 << 40
	f.Replace(s)
	missed, err := f.Missed(testCtx(t))
	require.NoError(t, err)
	require.True(t, missed)
}
