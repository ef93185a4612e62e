//go:build unix

package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A fault that a cluster survives, a session survives too: no hold is lost and no waiter
// fails.

// handOverWithin bounds the time of most hand-overs while one member of three is faulty, by a harness.Stopwatch. The
// members are processes of their own, which a machine that stalls may keep from electing a leader for as long.
const handOverWithin = 2 * time.Second

// anchored returns a session with a watched hold. All its watches are on the members
// first, even if its client later reaches all endpoints, because the stream that they share
// stays open.
func anchored(t *testing.T, name string, endpoints []string, first ...string) (*etcdlock.Session, *etcdlock.Held) {
	t.Helper()
	wire := harness.NewWire()
	open := make(chan struct{})
	seen := sync.OnceFunc(func() { close(open) })
	wire.OnRecv(func(_ string, msg any) (bool, error) {
		if r, ok := msg.(*pb.WatchResponse); ok && r.Created {
			seen()
		}
		return true, nil
	})
	c := processClient(t, first, wire.DialOptions()...)
	s := newSession(t, c, etcdlock.WithTTL(time.Minute))
	h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	h.Done()
	select {
	case <-open:
	case <-time.After(harness.Hang):
		t.Fatal("the hold opens no watch")
	}
	c.SetEndpoints(endpoints...)
	return s, h
}

// A member hangs, and each request of a hand-over meets it in turn: the holder's request,
// and those with which the next waiter finds out that no entry is left before it.
func TestFault_F12_HandOverBesideAPausedMember(t *testing.T) {
	t.Parallel()
	members, endpoints := startProcesses(t)
	at := (leaderOf(t, endpoints) + 1) % 3
	var queue []*etcdlock.Ticket
	var mutexes []*etcdlock.Mutex
	enqueue := func(m *etcdlock.Mutex) {
		tk, err := m.Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		queue = append(queue, tk)
	}
	for _, name := range []string{"0", "1", "2"} {
		s, _ := anchored(t, name, endpoints, endpoints[(at+1)%3], endpoints[(at+2)%3])
		mutexes = append(mutexes, etcdlock.NewMutex(s, "a"))
		enqueue(mutexes[len(mutexes)-1])
	}
	members[at].signal(t, syscall.SIGSTOP)
	var took []time.Duration
	for i := range 8 {
		h, err := queue[0].Wait(harness.Ctx(t))
		require.NoError(t, err)
		queue = queue[1:]
		enqueue(mutexes[i%3])
		stop := harness.Stopwatch()
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		_, err = queue[0].Wait(harness.Ctx(t))
		took = append(took, stop())
		require.NoError(t, err)
	}
	members[at].signal(t, syscall.SIGCONT)
	slices.Sort(took)
	require.Less(t, took[len(took)-3], handOverWithin, took)
	t.Logf("shown: with one member paused, a hand-over took at most %v", took[len(took)-1].Round(100*time.Millisecond))
}

// outlives injects a fault into a member while a lock is held, waited for and released. It
// repairs the member when the waiter is granted, or after d. All watches of the waiter are
// on that member.
func outlives(t *testing.T, what string, endpoints []string, at int, breaks, mends func(), d time.Duration) (granted bool) {
	t.Helper()
	holder, _ := anchored(t, what+".1", endpoints, endpoints...)
	waiter, kept := anchored(t, what+".2", endpoints, endpoints[at])
	h, err := etcdlock.NewMutex(holder, what).Lock(harness.Ctx(t))
	require.NoError(t, err)
	tk, err := etcdlock.NewMutex(waiter, what).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	harness.NotGranted(t, tk, 1)
	breaks()
	require.NoError(t, h.Unlock(harness.Ctx(t)), what)
	broken := time.NewTimer(d)
	select {
	case <-tk.Done():
		granted = true
	case <-broken.C:
	}
	mends()
	stop := harness.Stopwatch()
	h, err = tk.Wait(harness.Ctx(t))
	require.Less(t, stop(), harness.Hang/3, what) // the waiter itself would ask after half a minute
	require.NoError(t, err, what)
	for _, h := range []*etcdlock.Held{h, kept} {
		require.NoError(t, h.Check(harness.Ctx(t)), what)
		select {
		case <-h.Done():
			t.Error(what, h.Err())
		default:
		}
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	return granted
}

// Watches on a member that hangs are silent until the member resumes. The waiter itself
// would ask only much later, because its TTL is a minute.
func TestFault_F12_PausedMemberWakes(t *testing.T) {
	t.Parallel()
	members, endpoints := startProcesses(t)
	for i, role := range []string{"leader", "follower"} {
		at := (leaderOf(t, endpoints) + i) % 3
		outlives(t, role, endpoints, at, func() { members[at].signal(t, syscall.SIGSTOP) }, func() { members[at].signal(t, syscall.SIGCONT) }, time.Second)
	}
}

// If a member is stopped, or knows that it is cut off, the watches move to another member
// before it is back.
func TestFault_C1_MembersComeBack(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	for what, do := range map[string]struct{ breaks, mends func(*etcdtest.Member) }{
		"leader stopped":  {(*etcdtest.Member).Stop, nil},
		"leader killed":   {(*etcdtest.Member).Kill, nil},
		"leader isolated": {(*etcdtest.Member).Isolate, (*etcdtest.Member).Heal},
	} {
		m, err := own.Leader(harness.Ctx(t))
		require.NoError(t, err)
		require.True(t, outlives(t, what, own.Endpoints(), m.Index(), func() { do.breaks(m) }, func() {
			if do.mends != nil {
				do.mends(m)
			} else {
				require.NoError(t, m.Restart(harness.Ctx(t)))
			}
		}, harness.Hang/2), what)
	}
}

// The leader changes every second while six sessions take a lock in turn.
func TestFault_F8_LeaderMovedEachSecond(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var moved, next []time.Time // the time of each move, and of the first grant after it
	grants := 0
	var kept []*etcdlock.Held
	for i := range 6 {
		s := newSession(t, own.Client(t), etcdlock.WithTTL(time.Minute))
		h, err := etcdlock.NewMutex(s, fmt.Sprint("own", i)).Lock(harness.Ctx(t))
		require.NoError(t, err)
		h.Done()
		kept = append(kept, h)
		lock := []func(context.Context) (*etcdlock.Held, error){etcdlock.NewMutex(s, "a").Lock, etcdlock.NewRWMutex(s, "a").RLock}[i%2]
		wg.Go(func() {
			for ctx.Err() == nil {
				h, err := lock(harness.Ctx(t))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				grants++
				for len(next) < len(moved) {
					next = append(next, time.Now())
				}
				mu.Unlock()
				if err := h.Unlock(harness.Ctx(t)); err != nil {
					t.Error(err)
					return
				}
				rest()
			}
		})
	}
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for end := time.Now().Add(seconds(t)); time.Now().Before(end); <-each.C {
		require.NoError(t, own.MoveLeader(harness.Ctx(t), len(moved)%3))
		mu.Lock()
		moved = append(moved, time.Now())
		mu.Unlock()
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(next) == len(moved)
	}, harness.Hang, harness.Tick)
	cancel()
	wg.Wait()
	for _, h := range kept {
		require.NoError(t, h.Check(harness.Ctx(t)))
		select {
		case <-h.Done():
			t.Error(h.Err())
		default:
		}
	}
	var slowest time.Duration
	for i := range moved {
		slowest = max(slowest, next[i].Sub(moved[i]))
	}
	require.Less(t, slowest, harness.Hang/3, "a bound on a hang: elections take their time on a busy machine")
	t.Logf("shown: %d moves of the leader: %d grants, the first after each within %v", len(moved), grants, slowest.Round(time.Millisecond))
}
