package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/inspect"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

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
	f.Etcd.NeverHedge()
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

// labelled has the goroutines that this test starts from now on, and those that they start, carry a label. It returns how
// many of them run a function, or one that it has called.
func labelled(t *testing.T) (running func(function string) int) {
	t.Helper()
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	return func(function string) (n int) {
		var all strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		_, stacks, _ := strings.Cut(all.String(), "\n")      // below a line of their number
		for same := range strings.SplitSeq(stacks, "\n\n") { // goroutines with the same stack and labels
			if !strings.Contains(same, fmt.Sprintf(`{"test":%q}`, t.Name())) || !strings.Contains(same, function+"+0x") {
				continue
			}
			var count int
			_, err := fmt.Sscanf(same, "%d @", &count)
			require.NoError(t, err, same)
			n += count
		}
		return n
	}
}

// If no watch can be opened, the loop asks etcd instead, as a hold does. When they end, nothing
// goes on trying to open a watch.
func TestWatchWithoutWatches(t *testing.T) {
	t.Parallel()
	running := labelled(t)
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
	tries := func() int { return running("openWatchClient") }
	require.Eventually(t, func() bool { return tries() == 3 }, hang, tick, "the client, the session and the loop must try once each")
	require.NoError(t, s.Close())
	require.LessOrEqual(t, tries(), 2, "the session's attempts must end with it")
	tap.Clear() // watches work again
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) > 0 }, hang, tick)
	_, err = direct.Delete(testCtx(t), name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, next(t, pull).Entries)
}
