package inspect

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// view copies a state, which belongs to the follower.
func view(s *queue.Snapshot) *queue.Snapshot {
	return &queue.Snapshot{Name: s.Name, Rev: s.Rev, Keys: maps.Clone(s.Keys), Foreign: maps.Clone(s.Foreign)}
}

func has(s *queue.Snapshot, key string) bool {
	_, ok := s.Keys[key]
	return ok
}

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
	_, _, err := etcd.Do(harness.Ctx(h.t), etcd.NewClient(h.c), etcd.Policy{}, func(ctx context.Context) (struct{}, error) {
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
func (h *history) check(q *queue.Snapshot) {
	h.t.Helper()
	i := len(h.states) - 1
	for h.states[i].Rev > q.Rev {
		i--
	}
	was := *h.states[i]
	was.Rev = q.Rev
	require.Equal(h.t, &was, q, "a follower may only show states that existed")
}

// end is the key of the entry that the tests write last.
const end = "/ff"

// watched collects the states that a follower yields, until there is an entry under end. slow is
// called for each state and may block the loop. Each state must be newer than the one before.
func watched(t *testing.T, c *clientv3.Client, name string, slow func(*queue.Snapshot)) (all []*queue.Snapshot) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*harness.Hang)
	defer cancel()
	for q, err := range Follow(ctx, NewFollower(c, name), view) {
		if !assert.NoError(t, err, "after %d states", len(all)) {
			break
		}
		if len(all) > 0 {
			assert.Greater(t, q.Rev, all[len(all)-1].Rev)
		}
		all = append(all, q)
		if has(q, name+end) {
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
	h := newHistory(t, direct, harness.LockName(t), seed)
	h.step()
	pace := make(chan struct{}) // receives once per step; a slow watcher waits for it
	var seen atomic.Int64       // the last revision that was yielded
	slow := rand.New(rand.NewPCG(seed, 5))
	result := make(chan []*queue.Snapshot)
	go func() {
		result <- watched(t, watcher, h.name, func(q *queue.Snapshot) {
			seen.Store(q.Rev)
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
			require.Eventually(t, func() bool { goOn(); return seen.Load() >= h.news }, harness.Hang, harness.Tick, "the follower is stuck")
		}
	}
	close(pace)
	h.commit(func(next *queue.Snapshot) []clientv3.Op { return h.put(next, h.name+end) })
	all := <-result
	for _, q := range all {
		h.check(q)
	}
}

// During faults of the connection and compactions, a follower shows only states that existed, and
// in the end the present state.
func TestFollowThroughFaults(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	proxy := own.Proxy(t)
	compact := func(h *history) {
		_, err := own.Compact(harness.Ctx(t))
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
func TestFollowThroughLeaderChanges(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	direct := own.Client(t)
	lead := func(i int) func(*history) {
		return func(*history) { require.NoError(t, own.MoveLeader(harness.Ctx(t), i)) }
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
	killed := without(1, (*etcdtest.Member).Kill, func(m *etcdtest.Member) { require.NoError(t, m.Restart(harness.Ctx(t))) })
	play(t, direct, own.Client(t), 160, map[int]func(*history){
		20: lead(0), 40: lead(1), 60: lead(2), 80: isolated(0), 100: isolated(1), 120: isolated(2), 140: killed,
	})
}

func newest(f *Follower) (s *queue.Snapshot) {
	f.Newest(func(it *queue.Snapshot) { s = it })
	return s
}

// next returns the next state from pull, which must not harness.Hang.
func next(t *testing.T, pull func() (*queue.Snapshot, error, bool)) *queue.Snapshot {
	t.Helper()
	late := time.AfterFunc(harness.Hang, func() { panic("the follower hangs") })
	defer late.Stop()
	q, err, ok := pull()
	require.NoError(t, err)
	require.True(t, ok)
	return q
}

// While the consumer is busy, the follower reads all events from the client and keeps only the newest
// state, which the consumer gets next.
func TestFollowSlowConsumer(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	f := NewFollower(c, name)
	f.Every = time.Hour // what it reads is at a revision of its own
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	states, busy := make(chan *queue.Snapshot), make(chan struct{})
	go func() {
		defer close(states)
		Follow(ctx, f, view)(func(q *queue.Snapshot, err error) bool {
			if err == nil {
				states <- q
				<-busy
			}
			return err == nil
		})
	}()
	require.Empty(t, (<-states).Keys)
	h := newHistory(t, c, name, 1)
	for range 100 {
		h.step()
	}
	h.commit(func(next *queue.Snapshot) []clientv3.Op { return h.put(next, name+end) })
	last := h.states[len(h.states)-1]
	require.Eventually(t, func() bool {
		rev, _ := f.At()
		return rev == last.Rev
	}, harness.Hang, harness.Tick, "all events must be read while the consumer is busy")
	busy <- struct{}{}
	require.Equal(t, last, <-states)
	cancel()
	busy <- struct{}{}
	require.Empty(t, <-states, "an old state must not be kept")
}

// A watch stream becomes silent while its connection stays open: deleted and new entries are
// found by asking, and the next watch uses another stream.
func TestFollowSilentStream(t *testing.T) {
	t.Parallel()
	tap, name, direct := etcdtest.NewTap(), harness.LockName(t), cluster.Client(t)
	c := cluster.Client(t, tap)
	// Another watch of the client keeps its stream open.
	other := c.Watch(clientv3.WithRequireLeader(harness.Ctx(t)), name+"-2", clientv3.WithCreatedNotify())
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
	f := NewFollower(c, name)
	f.Every = 20 * time.Millisecond
	pull, stop := iter.Pull2(Follow(harness.Ctx(t), f, view))
	defer stop()
	require.Empty(t, next(t, pull).Keys)
	streams := 0
	opened := func() { // after a silent one, or one that a machine that stalls opens late
		t.Helper()
		require.Eventually(t, func() bool { return tap.Calls("Watch") > streams }, harness.Hang, harness.Tick)
		streams = tap.Calls("Watch")
	}
	put, del := clientv3.OpPut(name+"/1f", ""), clientv3.OpDelete(name+"/1f")
	for i, ops := range [][]clientv3.Op{{put}, {del, clientv3.OpPut(name+"/2f", "")}, {clientv3.OpDelete(name + "/2f")}, {put}} {
		opened()
		arm.Store(true)
		resp, err := direct.Txn(harness.Ctx(t)).Then(ops...).Commit()
		require.NoError(t, err)
		q := next(t, pull)
		require.GreaterOrEqual(t, q.Rev, resp.Header.Revision)
		require.Len(t, q.Keys, []int{1, 1, 0, 1}[i])
	}
	// The last stream delivers events.
	opened()
	_, err := direct.Put(harness.Ctx(t), name+"/3f", "")
	require.NoError(t, err)
	require.Len(t, next(t, pull).Keys, 2)
	stop()
	_, open := <-f.Etcd.EnterWatcher().Watch(harness.Ctx(t), name)
	require.False(t, open, "no watcher may be left open")
}

// The member that serves the watch hangs with its connections open.
func TestFollowHungMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	direct := own.Client(t)
	proxies := []*etcdtest.Proxy{own.Proxy(t, 0), own.Proxy(t, 1), own.Proxy(t, 2)}
	require.NoError(t, own.MoveLeader(harness.Ctx(t), 1))
	proxies[1].Refuse()
	proxies[2].Refuse()
	f := NewFollower(own.Client(t, proxies[0], proxies[1], proxies[2]), "a")
	f.Every = 100 * time.Millisecond
	pull, stop := iter.Pull2(Follow(harness.Ctx(t), f, view))
	defer stop()
	require.Empty(t, next(t, pull).Keys)
	proxies[1].Accept()
	proxies[2].Accept()
	require.Eventually(t, func() bool { return proxies[1].Connections() > 0 && proxies[2].Connections() > 0 }, harness.Hang, harness.Tick)
	proxies[0].Hold(etcdtest.Both)
	_, err := direct.Put(harness.Ctx(t), "a/1f", "")
	require.NoError(t, err)
	require.Len(t, next(t, pull).Keys, 1)
	_, err = direct.Delete(harness.Ctx(t), "a/1f")
	require.NoError(t, err)
	require.Empty(t, next(t, pull).Keys)
}

// An event that the read has already shown is not a change. A change is delivered together
// with its state. After the end of ctx there are no changes.
func TestFollowNews(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	h := newHistory(t, c, name, 3)
	for range 20 {
		h.step()
	}
	f := NewFollower(c, name)
	f.Replace(h.states[20])
	require.Len(t, f.Changed(), 1)
	require.Equal(t, h.states[20], newest(f))
	require.Empty(t, f.Changed())
	f.Replace(h.states[20])
	require.Empty(t, f.Changed())
	history := c.Watch(harness.Ctx(t), name+"/", clientv3.WithPrefix(), clientv3.WithRev(h.states[1].Rev))
	for last := int64(0); last < h.states[20].Rev; {
		wr := <-history
		require.NoError(t, wr.Err())
		f.Apply(etcd.Events(&wr))
		require.Empty(t, f.Changed())
		require.Equal(t, h.states[20], newest(f))
		last = etcd.Latest(&wr)
	}
	ended, cancel := context.WithCancel(harness.Ctx(t))
	cancel()
	for i := range 50 {
		f.Replace([]*queue.Snapshot{queue.NewSnapshot(name), h.states[20]}[i%2])
		require.Len(t, f.Changed(), 1)
		Follow(ended, f, view)(func(_ *queue.Snapshot, err error) bool {
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
func TestFollowMissed(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	f := NewFollower(c, name)
	missed := func() bool {
		ctx := harness.Ctx(t)
		for {
			missed, err := f.Missed(ctx) // gives up after two seconds
			if etcd.IsCtxError(err) && ctx.Err() == nil {
				continue
			}
			require.NoError(t, err)
			return missed > 0
		}
	}
	h := newHistory(t, c, name, 2)
	for range 30 {
		s, err := Read(harness.Ctx(t), f.Etcd, name)
		require.NoError(t, err)
		f.Replace(s)
		require.False(t, missed())
		h.step()
		require.True(t, missed())
	}
	s, err := Read(harness.Ctx(t), f.Etcd, name)
	require.NoError(t, err)
	s.Rev += 1 << 40
	f.Replace(s)
	require.True(t, missed())
}

// While no watch can be opened, an etcd that answers reads is asked about as often as at rest: many may follow queues through
// one client. A watch that can be opened again is.
func TestFollowWithoutWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, reads, refused := fakeetcd.New(), atomic.Int64{}, atomic.Bool{}
		server.Refuse = func(*fakeetcd.Watch) bool { return refused.Load() }
		server.Step = func(_ context.Context, what string) error {
			if what == "Range" {
				reads.Add(1)
			}
			return nil
		}
		refused.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		states := make(chan int, 1)
		go func() {
			defer close(states)
			for s, err := range Follow(ctx, NewFollower(server.Client(nil), "a"), view) {
				if err == nil {
					states <- len(s.Keys)
				}
			}
		}()
		require.Zero(t, <-states)
		began := time.Now()
		<-time.After(10 * time.Minute)
		require.Less(t, reads.Load(), int64(3*time.Since(began)/checkEvery/2))
		server.Write("a/1f")
		began = time.Now()
		require.Equal(t, 1, <-states)
		require.Less(t, time.Since(began), 10*time.Second)
		refused.Store(false)
		<-time.After(10 * time.Second)
		server.Remove("a/1f")
		began = time.Now()
		require.Zero(t, <-states)
		require.Zero(t, time.Since(began), "a watch tells of it")
		cancel()
		_, open := <-states
		require.False(t, open)
	})
}

// lag is how far behind the watches of a lagging are.
const lag = time.Minute

// A lagging delivers each change late, as a member does that lags behind the others and goes on lagging.
type lagging struct {
	clientv3.Watcher
	mu      sync.Mutex
	changes []*clientv3.Event // one a second
}

// late is the change that the watch tells of now, nil if there is none.
func (l *lagging) late() *clientv3.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := len(l.changes) - int(lag/time.Second); i >= 0 {
		return l.changes[i]
	}
	return nil
}

func (l *lagging) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	ch := make(chan clientv3.WatchResponse, 1)
	ch <- fakeetcd.Response(1, clientv3.WatchResponse{Created: true})
	go func() {
		defer close(ch)
		for ctx.Err() == nil {
			if ev := l.late(); ev != nil {
				select {
				case ch <- fakeetcd.Response(ev.Kv.ModRevision, clientv3.WatchResponse{Events: []*clientv3.Event{ev}}):
				case <-ctx.Done():
				}
			}
			_ = etcd.Sleep(ctx, time.Second)
		}
	}()
	return ch
}

// A follower does not stay behind with a member that lags, although its watch always has something to tell.
func TestFollowMemberThatLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeetcd.New()
		client, watcher := server.Client(nil), &lagging{Watcher: server}
		client.Watcher = watcher
		change := func() int64 {
			rev := server.WriteOn(5, "", "a/1f")
			watcher.mu.Lock()
			defer watcher.mu.Unlock()
			watcher.changes = append(watcher.changes, &clientv3.Event{Type: clientv3.EventTypePut, Kv: server.Keys("a/1f")[0]})
			return rev
		}
		ctx, cancel := context.WithCancel(t.Context())
		var shown atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for s, err := range Follow(ctx, NewFollower(client, "a"), view) {
				if err == nil {
					shown.Store(s.Keys["a/1f"].Mod)
				}
			}
		}()
		most := int64(0) // how many changes it was behind, so how many seconds
		for range 600 {
			now := change()
			synctest.Wait()
			most = max(most, now-shown.Load())
			<-time.After(time.Second)
		}
		require.Less(t, most, int64(15))
		cancel()
		<-ended
	})
}
