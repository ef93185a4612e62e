package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// A line is waiters of one session in a long queue, behind so many of others.
type line struct {
	*fakeEtcd
	s       *Session
	others  []string
	tickets []*Ticket
	reads   atomic.Int32
	watches atomic.Int32
	silent  atomic.Bool // etcd does not answer
}

func newLine(t *testing.T, others, waiters int) *line {
	l := &line{fakeEtcd: newFakeEtcd()}
	for i := range others {
		l.others = append(l.others, fmt.Sprintf("a/%x", 0x100+i))
		l.put(l.others[i])
	}
	l.s = l.session(5)
	t.Cleanup(func() {
		l.s.terminate(ErrSessionClosed, "test")
		l.s.endLease()
	})
	l.step = func(ctx context.Context, what string) error {
		if l.silent.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		switch what {
		case "Range", "pinned Range":
			l.reads.Add(1)
		case "Watch":
			l.watches.Add(1)
		}
		return nil
	}
	for range waiters {
		tk, err := NewMutex(l.s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		l.tickets = append(l.tickets, tk)
		synctest.Wait()
	}
	return l
}

// leave lets so many of the others leave, the first ones first.
func (l *line) leave(n int) {
	for _, key := range l.others[:n] {
		l.del(key)
		synctest.Wait()
	}
	l.others = l.others[n:]
}

// pass has the waiters get the lock in their order, each as soon as the one before it
// has given it back.
func (l *line) pass(t *testing.T) {
	t.Helper()
	start := time.Now()
	h, err := l.tickets[0].Wait(t.Context())
	require.NoError(t, err)
	require.Zero(t, time.Since(start))
	passOn(t, h, l.tickets[1:]...)
	shares.mu.Lock()
	defer shares.mu.Unlock()
	require.NotContains(t, shares.crowds, (&entry{s: l.s, name: "a"}).crowd())
}

// Of those who wait on one client far from the front a few ask etcd. The others begin to
// when those come near, in time for their own turn.
func TestLine(t *testing.T) {
	for others, reads := range map[int]int{
		enqueueReadLimit - abreast: abreast + 1 + 1, // what is left, each; and the last one, to which the txn has not shown all, what blocks it
		3 * enqueueReadLimit:       2 * (abreast + 1),
	} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, others, abreast+1)
				require.Equal(t, abreast, l.openWatches())
				require.EqualValues(t, abreast, l.watches.Load())
				l.leave(others - queue.Lookahead - 1)
				require.Equal(t, abreast, l.openWatches(), "the first is not near yet")
				l.leave(1)
				require.Equal(t, abreast+1, l.openWatches(), "now it is")
				l.leave(queue.Lookahead)
				l.pass(t)
				n := len(l.tickets)
				require.EqualValues(t, 2*n, l.watches.Load())
				require.EqualValues(t, reads, l.reads.Load())
			})
		})
	}
}

// Whoever leaves the line, in whatever way, has the next one go on.
func TestLine_SomeGiveUp(t *testing.T) {
	for _, gone := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 0}, {1, 3}, {0, 1, 2, 3}} {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 3*enqueueReadLimit, abreast+3)
				for _, i := range gone {
					require.NoError(t, l.tickets[i].Cancel(t.Context()))
					synctest.Wait()
				}
				for _, i := range slices.Backward(slices.Sorted(slices.Values(gone))) {
					l.tickets = slices.Delete(l.tickets, i, i+1)
				}
				require.LessOrEqual(t, l.openWatches(), abreast)
				l.leave(3 * enqueueReadLimit)
				l.pass(t)
			})
		})
	}
}

// standIn puts waiters in front of the line of a session's client, which pass when told to
// and hear of nothing.
func standIn(s *Session) (passOn, leave func()) {
	c := (&entry{s: s, name: "a"}).joinCrowd()
	shares.mu.Lock()
	defer shares.mu.Unlock()
	for i := range abreast {
		c.line = append(c.line, &waiter{entry: &entry{s: s, name: "a", rev: int64(i + 1)}, in: c})
	}
	all := slices.Clone(c.line)
	return sync.OnceFunc(func() {
		for _, w := range all {
			w.passOn()
		}
	}), c.leave
}

// Where those before it in line hear of nothing, a waiter asks by itself, now and then.
func TestLine_NobodyPassesOn(t *testing.T) {
	for _, mishap := range []string{"none", "etcd does not answer at first"} {
		t.Run(mishap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 3*enqueueReadLimit, 0)
				_, leave := standIn(l.s)
				tk, err := NewMutex(l.s, "a").Enqueue(t.Context())
				require.NoError(t, err)
				synctest.Wait()
				require.Zero(t, l.openWatches())
				if mishap != "none" {
					l.s.record(time.Now(), 36000)
					l.silent.Store(true)
					time.AfterFunc(l.s.ttl/8*5, func() { l.silent.Store(false) })
				}
				l.leave(3 * enqueueReadLimit)
				start := time.Now()
				h, err := tk.Wait(t.Context())
				require.NoError(t, err)
				require.Less(t, time.Since(start), 3*l.s.ttl)
				require.NoError(t, h.Unlock(t.Context()))
				leave()
			})
		})
	}
}

// Who looked in vain, before those in front passed on, looks at the present and not at a
// revision of theirs, in which it is not in the queue.
func TestLine_PassedBelowOwnRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3*enqueueReadLimit, 0)
		_, leave := standIn(l.s)
		c := shares.crowds[(&entry{s: l.s, name: "a"}).crowd()]
		w := newWaiter(&NewMutex(l.s, "a").l.entry(t.Context(), l.s, mutexMode).entry, queue.View{Size: 100}, false)
		_ = w.start(t.Context())
		w.viewRev = 0 // as recheck leaves it where etcd does not answer
		w.rev = queue.MaxRev - 1
		w.before = w.lineUp()
		require.Same(t, c.line[0], w.before)
		w.before.viewKnown, w.before.At = true, 7
		w.before.passOn()
		require.NoError(t, w.awaitTurn(t.Context()))
		require.Zero(t, w.viewRev)
		w.viewRev = 5
		require.NoError(t, w.awaitTurn(t.Context()))
		require.EqualValues(t, 7, w.viewRev)
		w.stop()
		leave()
	})
}

// Who is in line hears that its own entry is gone at the latest when it asks by itself.
func TestLine_EntryDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3*enqueueReadLimit, abreast+2)
		last := l.tickets[abreast+1]
		l.del(last.h.key)
		_, err := last.Wait(t.Context())
		require.ErrorIs(t, err, ErrLost)
		l.tickets = l.tickets[:abreast+1]
		l.leave(3 * enqueueReadLimit)
		l.pass(t)
	})
}

// Readers ask by themselves. So do those in front when etcd is in trouble, and no others.
func TestLine_NotInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3*enqueueReadLimit, abreast+1)
		watches := l.openWatches()
		tk, err := NewRWMutex(l.s, "a").REnqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, watches+1, l.openWatches())
		require.NoError(t, tk.Cancel(t.Context()))
		l.breakWatches()
		<-time.After(time.Second)
		require.Equal(t, abreast, l.openWatches())
		l.leave(3 * enqueueReadLimit)
		l.pass(t)
	})
}
