package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// singleHoldWatches is how many holds of a directory have a watch each: see internal/holdwatch.
const singleHoldWatches = 64

// watchedHolds has the session hold n locks of a directory, and watch each.
func watchedHolds(t *testing.T, s *Session, dir string, n int) (holds []*Held) {
	t.Helper()
	for i := range n {
		h, err := NewMutex(s, fmt.Sprintf("%s/%d", dir, i)).Lock(t.Context())
		require.NoError(t, err)
		h.Context()
		holds = append(holds, h)
	}
	return holds
}

// holdScene plays f with a session on the fake, in a bubble.
func holdScene(t *testing.T, play func(t *testing.T, f *fakeEtcd, s *Session)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.session(5)
		play(t, f, s)
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
		synctest.Wait()
		require.Empty(t, f.Watches())
	})
}

func requireLost(t *testing.T, h *Held) {
	t.Helper()
	select {
	case <-h.Done():
		require.ErrorIs(t, h.Err(), ErrLost)
	case <-time.After(500 * time.Millisecond):
		require.Fail(t, "it is not told that it is lost", h.Key())
	}
}

// The shared watch has told of the removal of an entry before its hold was looked after.
func TestHoldWatch_RemovedBefore(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		watchedHolds(t, s, "dir", singleHoldWatches+1)
		synctest.Wait()
		h, err := NewMutex(s, "dir/x").Lock(t.Context())
		require.NoError(t, err)
		f.Remove(h.Key())
		synctest.Wait()
		requireLost(t, h)
	})
}

// While a shared watch is away entries are removed. One request finds them, however many holds there are.
func TestHoldWatch_Breaks(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		holds := watchedHolds(t, s, "dir", singleHoldWatches+1000)
		synctest.Wait()
		for _, h := range holds[:singleHoldWatches] {
			require.NoError(t, h.Unlock(t.Context()))
		}
		synctest.Wait()
		var reads atomic.Int64
		gone := sync.OnceFunc(func() { f.Remove(holds[singleHoldWatches].Key(), holds[singleHoldWatches+999].Key()) })
		f.Step = func(_ context.Context, what string) error {
			switch what {
			case "Watch":
				gone()
			case "Range", "pinned Range":
				reads.Add(1)
			}
			return nil
		}
		f.BreakWatches()
		requireLost(t, holds[singleHoldWatches])
		requireLost(t, holds[singleHoldWatches+999])
		require.NoError(t, holds[singleHoldWatches+1].Err())
		require.EqualValues(t, 1, reads.Load(), "of the two that are not among the lease's keys")
	})
}

// A downgraded hold is looked after by its shared key, by the shared watch too.
func TestHoldWatch_Downgrade(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		holds := watchedHolds(t, s, "dir", singleHoldWatches+1)
		h, err := NewRWMutex(s, "dir/x").Lock(t.Context())
		require.NoError(t, err)
		h.Context()
		require.NoError(t, h.Downgrade(t.Context()))
		synctest.Wait()
		require.NoError(t, h.Err())
		f.Remove(h.Key())
		requireLost(t, h)
		for _, h := range holds {
			require.NoError(t, h.Unlock(t.Context()))
		}
		synctest.Wait()
		require.Empty(t, f.Watches(), "neither of its keys is watched any more")
	})
}

// The session's end is that of all its holds at once.
func TestHoldWatch_SessionEnds(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		holds := watchedHolds(t, s, "dir", singleHoldWatches+10)
		s.lease.End(ErrSessionClosed, "test")
		synctest.Wait()
		for _, h := range holds {
			require.Error(t, h.Context().Err())
		}
	})
}

// On real etcd: many holds, few watches, and none of it at rest.
func TestHoldWatch_OnTheWire(t *testing.T) {
	c, w := wiredClient(t, cluster)
	s := unhedged(t, c)
	dir := lockName(t)
	var holds []*Held
	for i := range 300 {
		h, err := NewMutex(s, fmt.Sprintf("%s/%d", dir, i)).Lock(testCtx(t))
		require.NoError(t, err)
		h.Context()
		holds = append(holds, h)
	}
	require.Eventually(t, func() bool {
		_, created := w.Counts()
		return len(harness.Watched(created)) == singleHoldWatches+1
	}, hang, time.Millisecond)
	other := cluster.Client(t)
	for _, i := range []int{3, 299} {
		_, err := other.Delete(testCtx(t), holds[i].Key())
		require.NoError(t, err)
		select {
		case <-holds[i].Done():
		case <-time.After(hang):
			require.Fail(t, "it is not told that it is lost")
		}
	}
	_, created := w.Counts()
	created = harness.Watched(created)
	require.Len(t, created, singleHoldWatches+1)
	shared := slices.DeleteFunc(created, func(r *pb.WatchCreateRequest) bool { return len(r.RangeEnd) == 0 })
	require.Len(t, shared, 1)
	require.Equal(t, clientv3.GetPrefixRangeEnd(dir+"/"), string(shared[0].RangeEnd))
}

// A watch that is opened when the session has just seen that it has none is probed like any other.
func TestAttend_WatchAtTheEnd(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		var asked atomic.Int64
		s.etcd.UseWatcher(counted{f, &asked})
		s.probes.Attending = true // it was: the goroutine has yet to take note of that
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		_ = h.Done()
		synctest.Wait()
		require.True(t, s.etcd.Watches())
		require.False(t, s.probes.End())
		require.Zero(t, asked.Load())
		ended := make(chan struct{})
		go func() { // the goroutine goes on
			s.probes.Probe()
			close(ended)
		}()
		<-time.After(10 * time.Second)
		require.InDelta(t, 10, asked.Load(), 1)
		h.Release()
		<-ended
		require.False(t, s.probes.Attending)
	})
}

// A user's Watcher that goes silent can't be had anew: the session asks now and then whether somebody waits for what
// it holds.
func TestAttend_ContendedBySilentWatcher(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		s.etcd.UseWatcher(deaf{f})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := NewMutex(s, "a").Lock(ctx)
		require.NoError(t, err)
		contended := h.Contended()
		<-time.After(time.Second)
		require.False(t, isClosed(contended))
		f.Write("a/1")
		<-time.After(s.lease.TTL)
		require.True(t, isClosed(contended))
	})
}

// A hold was found lost, and etcd is being asked whether it was the lease, when its Context is asked for first. The
// Context ends when that is known, and its cause is what Err says.
func TestHeld_ContextWhileTheLossIsConfirmed(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		var ctx context.Context
		s.lease.KeepAlive = func(context.Context) (int64, error) { // the lease is asked after
			require.ErrorIs(t, h.Err(), ErrLost)
			ctx = h.Context()
			require.NoError(t, ctx.Err())
			return 0, nil
		}
		f.Remove(h.Key())
		require.ErrorIs(t, h.markLost(h.Key()), ErrLost) // as the watch of its wait does
		synctest.Wait()
		require.ErrorIs(t, context.Cause(ctx), ErrSessionExpired)
		require.Equal(t, h.Err(), context.Cause(ctx))
	})
}

// A hold was lost before its Context is asked for first, and all is known.
func TestHeld_ContextAfterTheLoss(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		f.Remove(h.Key())
		require.ErrorIs(t, h.markLost(h.Key()), ErrLost)
		synctest.Wait()
		require.Equal(t, ErrLost, context.Cause(h.Context()))
	})
}

// An entry is removed where nobody watches, and a late copy of its own request writes its key anew: behind whoever waits, so
// the lock is lost. The list of the lease's keys does not show that.
func TestChecks_LateCopyWritesTheKeyAnew(t *testing.T) {
	onStage(t, func(st *stage) {
		st.lose = true // so the request was sent twice
		h, err := st.mutex().Lock(st.Context())
		require.NoError(t, err)
		value := string(st.f.Keys("a/")[0].Value)
		<-time.After(2 * st.s.TTL())
		require.NoError(t, h.Err())
		st.f.Remove(h.Key())
		st.f.Do(fakeetcd.PutOp(h.Key(), value, 5))
		<-time.After(st.s.TTL())
		require.ErrorIs(t, h.Err(), ErrLost)
	})
}

// The role has lost the rights on one lock, and etcd renews the lease all the same, as it does before 3.6.9. Another hold, which nobody
// watches, learns of its loss.
func TestChecks_OneIsForbidden(t *testing.T) {
	t.Parallel()
	_, as := authCluster(t)
	root, end := as("root"), clientv3.GetPrefixRangeEnd
	_, err := root.RoleGrantPermission(testCtx(t), "worker", "a/2/", end("a/2/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	s := newTestSession(t, as("worker"), WithTTL(2*time.Second))
	mustLock(t, s, "a/1")
	h := mustLock(t, s, "a/2")
	_, err = root.RoleRevokePermission(testCtx(t), "worker", "a/", end("a/"))
	require.NoError(t, err)
	_, err = root.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return h.Err() != nil }, hang, tick)
}

// That costs nothing for entries whose request was sent once, and at most one request for all others.
func TestChecks_Cost(t *testing.T) {
	for copied, want := range map[int]int{0: 0, 1: 1, 3 * etcd.Batch: 1} {
		onStage(t, func(st *stage) {
			for i := range 4 * etcd.Batch {
				st.lose = i < copied
				_, err := NewMutex(st.s, fmt.Sprint("a/", i)).Lock(st.Context())
				require.NoError(t, err)
			}
			reads := 0
			st.change(func() {
				st.seen = func(what string) {
					if strings.HasSuffix(what, "Range") {
						reads++
					}
				}
			})
			require.NoError(t, st.s.checkEntries(context.Background()))
			require.Equal(t, want, reads, "%d copied", copied)
		})
	}
}
