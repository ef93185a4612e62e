package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/history"
	"github.com/etcdlock/etcdlock/internal/test/history/hooks"
)

const (
	members           = 3
	clients           = 4
	sessionsPerClient = 2
	workersPerSession = 3

	limited, proxied = 2, 3 // clients: with small limits for messages, and behind a grpc-proxy
	sendLimit        = 2 << 10
	receiveLimit     = 8 << 10
	maxTxnOps        = 16 // in each second round; etcd's default is 128
)

// names are the locks. The keys of one lie among those of another.
var names = []string{"lock/a", "lock/a/n", "lock/b", "lock/c", "lock/d"}

// A run is the state of one round.
type run struct {
	t        *testing.T
	seed     uint64
	cluster  *etcdtest.Cluster
	direct   *clientv3.Client // its network is never broken
	clients  []*client
	slots    []*slot
	log      *history.Log
	record   *history.Record
	breaking sync.WaitGroup
	workers  sync.WaitGroup
	closing  sync.WaitGroup // sessions
	behind   sync.WaitGroup // sampling, and what was sent late

	mu       sync.Mutex
	count    map[string]int
	faults   map[string]int // that were done, by name
	elements map[string]int // how many were taken, by lock
	sessions []*etcdlock.Session
}

func newRun(t *testing.T, seed uint64) *run {
	r := &run{
		t: t, seed: seed, log: history.NewLog(history.LockPrefix), record: &history.Record{},
		count: map[string]int{}, faults: map[string]int{}, elements: map[string]int{},
	}
	r.cluster = etcdtest.Start(t, etcdtest.WithMembers(members), etcdtest.WithConfig(func(c *embed.Config) {
		if r.fewOps() {
			c.MaxTxnOps = maxTxnOps
		}
	}))
	r.direct = r.cluster.Client(t, soonBack)
	var observers []*clientv3.Client
	for i := range members {
		observers = append(observers, r.cluster.Client(t, soonBack, etcdtest.WithClientConfig(func(c *clientv3.Config) {
			c.Endpoints = []string{r.cluster.Member(i).Endpoint()}
		})))
	}
	t.Cleanup(r.log.Follow(observers...))
	for i := range clients {
		c := &client{run: r, tap: etcdtest.NewTap()}
		at := r.cluster
		if i == proxied {
			c.beyond = r.cluster.Proxy(t)
			at = etcdtest.Attach(harness.GRPCProxy(t, r.cluster.Client(t, c.beyond, soonBack)))
		}
		c.proxy = at.Proxy(t)
		limits := etcdtest.WithClientConfig(func(cfg *clientv3.Config) {
			cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(r.countPacked))
			if i == limited {
				cfg.MaxCallSendMsgSize, cfg.MaxCallRecvMsgSize = sendLimit, receiveLimit
			}
		})
		c.connect = func() (*clientv3.Client, error) { return at.NewClient(c.proxy, c.tap, limits) }
		c.renew()
		t.Cleanup(c.close)
		r.clients = append(r.clients, c)
		for j := range sessionsPerClient {
			r.slots = append(r.slots, &slot{run: r, client: c, limited: i == limited, proxied: i == proxied, rng: r.random(fmt.Sprint("session ", i, " ", j))})
		}
	}
	return r
}

// soonBack makes a client connect again soon after a member has come back, and not
// after the ever longer pauses that are the default.
var soonBack = etcdtest.WithClientConfig(func(c *clientv3.Config) {
	b := backoff.DefaultConfig
	b.BaseDelay, b.MaxDelay = 50*time.Millisecond, 200*time.Millisecond
	c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{Backoff: b, MinConnectTimeout: time.Second}))
})

// random is a source that depends on the seed and on who uses it.
func (r *run) random(who string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(who))
	return rand.New(rand.NewPCG(r.seed, h.Sum64()))
}

func (r *run) counted(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[what]++
}

func (r *run) counts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(r.count)) {
		all = append(all, fmt.Sprintf("%s %d", what, r.count[what]))
	}
	return strings.Join(all, ", ")
}

// countPacked counts the requests that carry an entry together with what else its session has to write: only then the put
// of an entry is nested.
func (r *run) countPacked(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if txn, ok := req.(*pb.TxnRequest); ok && slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool {
		return slices.ContainsFunc(op.GetRequestTxn().GetSuccess(), func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
	}) {
		r.counted("packed")
	}
	return call(ctx, method, req, reply, cc, opts...)
}

// fewOps reports whether etcd allows maxTxnOps in this round.
func (r *run) fewOps() bool { return r.seed%2 == 0 }

// A client's connections go through a proxy, and its calls through a tap.
type client struct {
	run     *run
	proxy   *etcdtest.Proxy
	beyond  *etcdtest.Proxy // between a grpc-proxy and the cluster
	tap     *etcdtest.Tap
	connect func() (*clientv3.Client, error)

	mu sync.Mutex
	c  *clientv3.Client
}

func (c *client) get() *clientv3.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c
}

// renew closes the client, with sessions or not, and makes another one.
func (c *client) renew() {
	next, err := c.connect()
	if err != nil {
		panic(err) // a bad configuration, nothing else
	}
	c.mu.Lock()
	last := c.c
	c.c = next
	c.mu.Unlock()
	if last != nil {
		_ = last.Close() // a client that was broken may say so
	}
}

func (c *client) close() { _ = c.get().Close() }

// A slot is a session that is made anew now and then.
type slot struct {
	run              *run
	client           *client
	limited, proxied bool // its client

	mu    sync.Mutex
	rng   *rand.Rand
	s     *etcdlock.Session
	until time.Time
}

// session is the current one, or a new one; nil if none can be had now.
func (s *slot) session() *etcdlock.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s != nil && s.s.Err() == nil && time.Now().Before(s.until) {
		return s.s
	}
	if s.s != nil {
		s.retire()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	c := s.client.get()
	made, err := etcdlock.NewSession(ctx, c, etcdlock.WithTTL(time.Duration(1+s.rng.IntN(3))*time.Second), etcdlock.WithHooks(hooks.For(s.run.record)))
	if err != nil {
		if ctx.Err() == nil && c.Ctx().Err() == nil {
			s.run.record.Problem("NewSession: %v", err)
		}
		s.s = nil
		return nil
	}
	s.run.counted("sessions")
	s.s, s.until = made, time.Now().Add(time.Duration(1000+s.rng.IntN(9000))*time.Millisecond)
	s.run.mu.Lock()
	s.run.sessions = append(s.run.sessions, made)
	s.run.mu.Unlock()
	return made
}

// retire ends the session, with whatever holds and waits hang on it.
func (s *slot) retire() {
	old := s.s
	switch n := s.rng.IntN(20); {
	case old.Err() != nil:
		s.run.counted("sessions lost")
	case n == 0:
		s.run.counted("clients closed")
		s.client.renew()
	case n < 4:
		hooks.Ended(s.run.record, old, time.Now())
		old.Orphan()
		return
	}
	s.run.closing.Go(func() {
		hooks.Ended(s.run.record, old, time.Now())
		_ = old.Close() // where it can't be revoked in time, the lease expires
		if old.Err() == nil {
			s.run.record.Problem("a session lives on after Close")
		}
	})
}

// calm waits for the nemesis to have mended everything, and for the workers to have
// left. Then nothing may be left in the queues, and all locks must be to be had.
func (r *run) calm() {
	r.inTime("the nemesis mends", &r.breaking)
	_, err := r.cluster.Leader(r.context())
	require.NoError(r.t, err)
	r.inTime("the workers end", &r.workers)
	r.inTime("what they close is closed", &r.closing)

	// What hangs on a session that ended goes with its lease, if it could not be
	// revoked; the rest must have been released.
	ended := map[int64]bool{}
	for _, s := range r.sessions {
		ended[int64(s.Lease())] = s.Err() != nil
	}
	r.empty("given back", func(e history.Entry) bool { return !ended[e.Lease] })
	for _, s := range r.sessions {
		r.closing.Go(func() {
			hooks.Ended(r.record, s, time.Now())
			_ = s.Close()
		})
	}
	r.inTime("the sessions close", &r.closing)
	r.empty("gone with its session", func(history.Entry) bool { return true })
	r.inTime("the rest ends", &r.behind)

	last, err := etcdlock.NewSession(r.context(), r.direct)
	require.NoError(r.t, err)
	for _, name := range names {
		h, err := etcdlock.NewMutex(last, name).TryLock(r.context())
		require.NoError(r.t, err)
		require.NoError(r.t, h.Unlock(r.context()))
	}
	require.NoError(r.t, last.Close())
}

// empty waits until no entry is left of those that matter.
func (r *run) empty(what string, matters func(history.Entry) bool) {
	r.t.Helper()
	r.sync()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := r.context(); ; <-tick.C {
		left := r.log.Live()
		left = slices.DeleteFunc(left, func(e history.Entry) bool { return !matters(e) })
		if len(left) == 0 {
			return
		}
		if ctx.Err() != nil {
			r.record.Problem("not %s: %+v", what, left)
			return
		}
	}
}

// judge completes the histories, and judges them.
func (r *run) judge() *history.Verdict {
	if r.fewOps() {
		_, err := r.direct.Txn(r.context()).Then(slices.Repeat([]clientv3.Op{clientv3.OpGet("mark")}, maxTxnOps+1)...).Commit()
		require.ErrorIs(r.t, err, rpctypes.ErrTooManyOps)
	}
	for _, name := range names {
		for i := 0; i < r.elements[name]; i += history.SetSize {
			call := time.Now()
			key := setKey(name, i)
			resp, err := r.direct.Get(r.context(), key)
			require.NoError(r.t, err)
			r.record.Op(history.SetOp{Worker: len(r.slots) * workersPerSession, Set: key, Call: call, Return: time.Now(), Elements: elementsOf(r.t, resp.Kvs).Elements})
		}
	}
	r.sync()
	return r.record.Judge(r.log)
}

// sync waits for the log to hold everything that was done before.
func (r *run) sync() {
	r.t.Helper()
	mark, err := r.direct.Put(r.context(), "mark", "")
	require.NoError(r.t, err)
	require.NoError(r.t, r.log.Wait(r.context(), mark.Header.Revision))
}

// setKey is the key of the set that the i-th element of a lock belongs to.
func setKey(name string, i int) string {
	return fmt.Sprintf("%s%s/%d", history.SetPrefix, name, i/history.SetSize)
}

// elementsOf is the set that was read, empty if there was none.
func elementsOf(t *testing.T, kvs []*mvccpb.KeyValue) (v history.SetValue) {
	if len(kvs) > 0 {
		if err := json.Unmarshal(kvs[0].Value, &v); err != nil {
			t.Errorf("%s holds %q", kvs[0].Key, kvs[0].Value)
		}
	}
	return v
}

func (r *run) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.t.Cleanup(cancel)
	return ctx
}

// inTime waits for wg, and shows what hangs if it takes too long.
func (r *run) inTime(what string, wg *sync.WaitGroup) {
	r.t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-r.context().Done():
		stacks := make([]byte, 4<<20)
		r.t.Fatalf("%s: not within %v\n%s", what, hang, stacks[:runtime.Stack(stacks, true)])
	}
}
