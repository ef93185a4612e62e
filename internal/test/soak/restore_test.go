package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/history"
)

const (
	restoreSessions = 4
	restoreWorkers  = 2                // of each session
	restoreTTL      = 15 * time.Second // longer than a restore takes on a busy machine
)

// restoreNames are few, so that all wait for each other.
var restoreNames = []string{"lock/a", "lock/b"}

// TestRestore restores snapshots while sessions live on, with the revision raised or not. Etcd's history has no order
// then, and who holds by an entry that the snapshot does not have is told late. So it judges less than TestSoak: two
// never hold a lock together by entries that are both in etcd; whoever waits is served after each
// restore; and no session that waits asks etcd without a pause.
func TestRestore(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(rand.Uint32()) + 1
	}
	fmt.Printf("soak: make soak SEED=%d, TestRestore\n", seed)
	r := &restores{t: t, seed: seed, cluster: etcdtest.Start(t), active: map[string]*etcdlock.Held{}}
	r.direct = r.cluster.Client(t, soonBack)
	workers, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	served := make([]chan struct{}, restoreSessions*restoreWorkers)
	for i := range restoreSessions {
		s := &restoredSession{r: r, tap: etcdtest.NewTap()}
		s.client = r.cluster.Client(t, s.tap)
		r.sessions = append(r.sessions, s)
		for j := range restoreWorkers {
			n := i*restoreWorkers + j
			served[n] = make(chan struct{})
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			all.Go(func() {
				for workers.Err() == nil {
					if r.turn(workers, s, rng) {
						select {
						case served[n] <- struct{}{}:
						default:
						}
					}
				}
			})
		}
	}
	rng := rand.New(rand.NewPCG(seed, 1000))
	rounds := 0
	for began := time.Now(); rounds < 2 || time.Since(began) < *forFlag; rounds++ {
		r.round(rng, []uint64{0, 1_000_000}[rounds%2], served)
	}
	stop()
	all.Wait()
	for _, s := range r.sessions {
		s.close()
	}
	require.Eventually(t, func() bool { return len(r.left()) == 0 }, hang, 10*time.Millisecond, "something is left: %v", r.left())
	t.Logf("seed %d: %d restores, %d sessions, %d of them ended by a restore to lower revisions, %d grants", seed, rounds, r.made, r.back, r.grants)
	require.NotZero(t, r.back, "no session ended since the revision went back")
	require.Greater(t, r.grants, rounds)
}

// restores is the state of the test.
type restores struct {
	t        *testing.T
	seed     uint64
	cluster  *etcdtest.Cluster
	direct   *clientv3.Client
	sessions []*restoredSession

	mu                 sync.Mutex
	active             map[string]*etcdlock.Held // holds that their owners have not begun to release, by key@token
	made, back, grants int
}

// round takes a snapshot, restores it, and waits until each worker has had a lock.
func (r *restores) round(rng *rand.Rand, bump uint64, served []chan struct{}) {
	restore := harness.Snapshot(r.t, r.cluster)
	harness.Elapse(time.Duration(rng.IntN(500)) * time.Millisecond)
	if bump == 0 || rng.IntN(2) == 0 { // the revision goes further, and all sessions see that
		for range 100 {
			_, err := r.direct.Put(harness.Ctx(r.t), "elsewhere", "")
			require.NoError(r.t, err)
		}
		r.serve(served)
	}
	restore(bump)
	r.serve(served)
	r.quiet()
}

// serve waits until each worker has had a lock that it asked for after this.
func (r *restores) serve(served []chan struct{}) {
	for _, c := range served {
		for range 2 {
			select {
			case <-c:
			case <-time.After(hang):
				r.t.Fatalf("seed %d: a worker has not had a lock: %v", r.seed, r.left())
			}
		}
	}
}

// quiet keeps the locks for a moment, and counts what those ask who wait.
func (r *restores) quiet() {
	s, err := etcdlock.NewSession(harness.Ctx(r.t), r.direct)
	require.NoError(r.t, err)
	for _, name := range restoreNames {
		_, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(r.t))
		require.NoError(r.t, err)
	}
	before := r.asked()
	harness.Elapse(300 * time.Millisecond)
	require.Less(r.t, r.asked()-before, 1000, "seed %d: requests of %d sessions that wait, in 300 ms", r.seed, restoreSessions)
	require.NoError(r.t, s.Close())
}

func (r *restores) asked() (n int) {
	for _, s := range r.sessions {
		n += s.tap.Calls()
	}
	return n
}

// turn takes a lock, looks who has it, and releases it. It returns false if it did not get it.
func (r *restores) turn(ctx context.Context, s *restoredSession, rng *rand.Rand) bool {
	session := s.get()
	if session == nil {
		return false
	}
	name := restoreNames[rng.IntN(len(restoreNames))]
	m := etcdlock.NewMutex(session, name)
	limit := patience
	if rng.IntN(4) == 0 {
		limit = time.Duration(rng.IntN(50)) * time.Millisecond
	}
	lctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h, err := m.Lock(lctx)
	switch {
	case err == nil:
	case limit == patience && ctx.Err() == nil && lctx.Err() != nil:
		r.t.Errorf("seed %d: Lock took more than %v: %v; %v", r.seed, patience, err, r.left())
		return false
	default:
		return false
	}
	id := h.Key() + "@" + strconv.FormatInt(h.Token(), 10)
	r.mu.Lock()
	r.active[id] = h
	r.grants++
	r.mu.Unlock()
	r.look(h, name, id)
	harness.Elapse(time.Duration(rng.IntN(3000)) * time.Microsecond)
	r.mu.Lock()
	delete(r.active, id)
	r.mu.Unlock()
	uctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.Unlock(uctx); err != nil && !errors.Is(err, etcdlock.ErrLost) {
		r.t.Errorf("seed %d: Unlock: %v", r.seed, err)
	}
	return true
}

// look writes, guarded by the hold, who has the lock, and reads who had it before. If that one's entry was in etcd at
// this revision, and its owner has not begun to release it even now, then two hold the lock.
func (r *restores) look(h *etcdlock.Held, name, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	key := "who/" + name
	resp, err := h.Txn(ctx).Then(clientv3.OpGet(key), clientv3.OpPut(key, id)).Commit()
	if err != nil || len(resp.Responses[0].GetResponseRange().Kvs) == 0 {
		return // it is lost, or etcd is away
	}
	before := string(resp.Responses[0].GetResponseRange().Kvs[0].Value)
	r.mu.Lock()
	other := r.active[before]
	r.mu.Unlock()
	if before == id || other == nil || !other.Valid() {
		return
	}
	entry, token, _ := strings.Cut(before, "@")
	was, err := r.direct.Get(ctx, entry, clientv3.WithRev(resp.Header.Revision))
	r.mu.Lock()
	still := r.active[before] == other && other.Valid()
	r.mu.Unlock()
	if err == nil && still && len(was.Kvs) > 0 && strconv.FormatInt(was.Kvs[0].CreateRevision, 10) == token {
		r.t.Errorf("seed %d: %s and %s hold the lock together at revision %d, and both are in etcd", r.seed, before, id, resp.Header.Revision)
	}
}

// left are the entries that are in etcd.
func (r *restores) left() (keys []string) {
	resp, err := r.direct.Get(harness.Ctx(r.t), history.LockPrefix, clientv3.WithPrefix())
	if err != nil {
		return []string{err.Error()}
	}
	for _, kv := range resp.Kvs {
		keys = append(keys, fmt.Sprintf("%s@%d", kv.Key, kv.CreateRevision))
	}
	return keys
}

// restoredSession is a session that is made anew when it was lost.
type restoredSession struct {
	r      *restores
	client *clientv3.Client
	tap    *etcdtest.Tap

	mu sync.Mutex
	s  *etcdlock.Session
}

// get is the session, or nil if none can be had now.
func (s *restoredSession) get() *etcdlock.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s != nil && s.s.Err() == nil {
		return s.s
	}
	if s.s != nil {
		s.r.mu.Lock()
		if strings.Contains(s.s.Err().Error(), "restored") {
			s.r.back++
		}
		s.r.mu.Unlock()
		_ = s.s.Close() // its lease may be gone
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	made, err := etcdlock.NewSession(ctx, s.client, etcdlock.WithTTL(restoreTTL))
	if err != nil {
		s.s = nil
		return nil
	}
	s.r.mu.Lock()
	s.r.made++
	s.r.mu.Unlock()
	s.s = made
	return made
}

func (s *restoredSession) close() {
	if s.s != nil {
		_ = s.s.Close() // its lease may be gone
	}
}
