package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/wait"
	"github.com/etcdlock/etcdlock/internal/waitlist"
)

// crowd is a session on the fake whose waiters are behind others, and what it asks etcd.
type crowd struct {
	*stage
	others         []string
	tickets        []*Ticket
	reads, watches atomic.Int32
}

// inCrowd runs play with own waiters of one session behind others.
func inCrowd(t *testing.T, others, waiters int, play func(*crowd)) {
	t.Helper()
	onStage(t, func(st *stage) {
		c := &crowd{stage: st}
		st.seen = func(what string) {
			switch what {
			case "Range", "pinned Range":
				c.reads.Add(1)
			case "Watch":
				c.watches.Add(1)
			}
		}
		for i := range others {
			c.others = append(c.others, fmt.Sprintf("a/%x", 0x100+i))
			st.f.Write(c.others[i])
		}
		for range waiters {
			c.tickets = append(c.tickets, st.ticket(st.mutex().Enqueue))
		}
		play(c)
		st.requireForgotten()
	})
}

// leave lets n of the others leave, the first ones first.
func (c *crowd) leave(n int) {
	for _, key := range c.others[:n] {
		c.f.Remove(key)
		synctest.Wait()
	}
	c.others = c.others[n:]
}

// pass has the waiters get the lock in their order and in no time, when all others have left.
func (c *crowd) pass() {
	c.Helper()
	start := time.Now()
	for _, tk := range c.tickets {
		h, err := tk.Wait(c.Context())
		require.NoError(c, err)
		require.NoError(c, h.Unlock(c.Context()))
	}
	require.Zero(c, time.Since(start))
}

// Of any number of waiters of a session the two in front ask etcd. What they learn serves the others.
func TestWaitlist_TwoAsk(t *testing.T) {
	for _, others := range []int{1, waitlist.Lookahead + 1, enqueueReadLimit - 2, 3 * enqueueReadLimit} {
		for _, waiters := range []int{1, 2, 5, 60} {
			t.Run(fmt.Sprintf("%d behind %d", waiters, others), func(t *testing.T) {
				inCrowd(t, others, waiters, func(c *crowd) {
					require.LessOrEqual(c, len(c.f.Watches()), 2)
					require.LessOrEqual(c, c.reads.Load(), int32(4))
					<-time.After(time.Minute)
					require.LessOrEqual(c, len(c.f.Watches()), 2)
					require.LessOrEqual(c, c.reads.Load(), int32(4+16), "the session asks each 3.75 s or less often, and none of them by itself")
					c.reads.Store(4)
					c.leave(others)
					c.pass()
					require.LessOrEqual(c, c.reads.Load(), int32(5+waiters/8))
					require.LessOrEqual(c, c.watches.Load(), int32(4))
				})
			})
		}
	}
}

// asked are the requests that are sent from now on, without their replies.
func (st *stage) asked() *[]string {
	asked := new([]string)
	st.seen = func(what string) {
		if !strings.HasSuffix(what, ".") { // which is the reply
			*asked = append(*asked, what)
		}
	}
	return asked
}

// Sessions that take the lock in turn write and remove their entries, and ask nothing: the
// watch of each stays from turn to turn, until it was not used for a while.
func TestWaitlist_TurnByTurn(t *testing.T) {
	onStage(t, func(st *stage) {
		asked := st.asked()
		turn := func() []string {
			*asked = nil
			st.f.Write("a/1")
			st.f.Write("a/2")
			tk := st.ticket(st.mutex().Enqueue)
			st.f.Remove("a/1")
			st.requireOut(tk)
			st.f.Remove("a/2")
			require.NoError(st, st.wait(tk).Unlock(st.Context()))
			return *asked
		}
		first := []string{"Txn", "Watch", "Txn"}
		require.Equal(st, first, turn())
		for range 20 {
			<-time.After(90 * time.Millisecond)
			require.Len(st, st.f.Watches(), 1)
			require.Equal(st, []string{"Txn", "Txn"}, turn())
		}
		st.requireForgotten()
		require.Equal(st, first, turn())
		require.NoError(st, st.lock(st.mutex().Lock).Unlock(st.Context())) // its listing shows that it is alone
		st.requireForgotten()
	})
}

// In a queue of more keys each turn costs a watch and a reading, as long as the one before in the queue is the same. The
// other watch stays between the turns.
func TestWaitlist_TurnByTurnOfMany(t *testing.T) {
	onStage(t, func(st *stage) {
		const others = 2*waitlist.ManyShare - 1
		key := func(i int) string { return fmt.Sprintf("a/6%x", i) }
		asked := st.asked()
		turn := func() []string {
			*asked = nil
			for i := range others {
				st.f.Write(key(i))
			}
			tk := st.ticket(st.mutex().Enqueue)
			for i := range others {
				synctest.Wait()
				require.LessOrEqual(st, len(st.f.Watches()), 2)
				st.f.Remove(key(i))
				st.f.Write("x") // time goes on
			}
			require.NoError(st, st.wait(tk).Unlock(st.Context()))
			return *asked
		}
		first := []string{"Txn", "Watch", "Watch", "pinned Range", "Txn"}
		require.Equal(st, first, turn())
		for range 20 {
			<-time.After(90 * time.Millisecond)
			require.Len(st, st.f.Watches(), 1)
			require.Equal(st, []string{"Txn", "Watch", "pinned Range", "Txn"}, turn())
		}
		st.requireForgotten()
		require.Equal(st, first, turn())
		st.requireForgotten()
	})
}

// Whoever gives up, in whatever way, has the next one go on.
func TestWaitlist_SomeGiveUp(t *testing.T) {
	for _, gone := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 0}, {1, 3}, {0, 1, 2, 3}, {4}, {0, 1, 2, 3, 4}} {
		for _, others := range []int{1, 3, 3 * enqueueReadLimit} {
			t.Run(fmt.Sprint(gone, " behind ", others), func(t *testing.T) {
				inCrowd(t, others, 5, func(c *crowd) {
					left := c.tickets
					c.tickets = nil
					for _, i := range gone {
						require.NoError(c, left[i].Cancel(c.Context()))
						synctest.Wait()
						left[i] = nil
					}
					for _, tk := range left {
						if tk != nil {
							c.tickets = append(c.tickets, tk)
						}
					}
					require.LessOrEqual(c, len(c.f.Watches()), 2)
					c.leave(others)
					c.pass()
				})
			})
		}
	}
}

// When the watches break, all keep their places, and it takes a few requests for all of them.
func TestWaitlist_WatchesBreak(t *testing.T) {
	for _, others := range []int{1, 3, 3 * enqueueReadLimit} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			inCrowd(t, others, 100, func(c *crowd) {
				before := c.reads.Load()
				c.f.BreakWatches()
				<-time.After(etcd.RetryMax)
				require.LessOrEqual(c, c.reads.Load()-before, int32(5))
				require.LessOrEqual(c, len(c.f.Watches()), 2)
				c.leave(others)
				c.pass()
			})
		})
	}
}

// A waiter whose turn has not come is told that its entry was removed when the session next inspects
// its keys; so is a hold that nobody watches.
func TestWaitlist_EntryRemoved(t *testing.T) {
	inCrowd(t, 3*enqueueReadLimit, 5, func(c *crowd) {
		start := time.Now()
		c.f.Remove(c.tickets[3].h.Key())
		_, err := c.tickets[3].Wait(c.Context())
		require.ErrorIs(c, err, ErrLost)
		require.LessOrEqual(c, time.Since(start), c.s.lease.TTL/8*5)
		c.tickets = append(c.tickets[:3], c.tickets[4])
		c.leave(len(c.others))
		c.pass()
	})
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		st.f.Remove(h.Key())
		<-time.After(st.s.lease.TTL)
		require.ErrorIs(st, h.Err(), ErrLost)
	})
}

// The key of a waiter that is taken by another user of the lease is passed over, whenever it is seen.
func TestWaitlist_KeyOfOthers(t *testing.T) {
	onStage(t, func(st *stage) {
		st.f.Write("a/1")
		first := st.ticket(st.mutex().Enqueue)
		st.f.Write("a/5-1")
		st.f.Write("a/r5")
		second := st.ticket(st.rw().Enqueue)
		third := st.ticket(st.mutex().Enqueue)
		st.f.Remove("a/1")
		st.wait(first).Release()
		st.requireOut(second, third)
		st.f.Remove("a/5-1")
		st.requireOut(second, third)
		st.f.Remove("a/r5")
		st.wait(second).Release()
		st.wait(third).Release()
	})
}

// A watch on a member that hangs is noticed, and another one opened, long before the lease would be
// inspected: also for waiters that came before.
func TestFault_I5_WatchOnAHungMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxies := []*etcdtest.Proxy{own.Proxy(t, 0), own.Proxy(t, 1), own.Proxy(t, 2)}
	require.NoError(t, own.MoveLeader(testCtx(t), 1))
	h, err := NewRWMutex(newTestSession(t, own.Client(t)), "a").Lock(testCtx(t))
	require.NoError(t, err)
	proxies[1].Refuse()
	proxies[2].Refuse()
	s := newTestSession(t, own.Client(t, proxies[0], proxies[1], proxies[2]), WithTTL(4*hang))
	var tickets []*Ticket
	for range 3 {
		tk, err := NewRWMutex(s, "a").REnqueue(testCtx(t))
		require.NoError(t, err)
		tickets = append(tickets, tk)
	}
	require.Eventually(t, s.etcd.Watches, hang, tick)
	proxies[1].Accept()
	proxies[2].Accept()
	require.Eventually(t, func() bool { return proxies[1].Connections() > 0 && proxies[2].Connections() > 0 }, hang, tick)
	proxies[0].Hold(etcdtest.Both)
	require.NoError(t, h.Unlock(testCtx(t)))
	for _, tk := range tickets {
		h, err := tk.Wait(testCtx(t)) // within hang, when the lease is inspected later
		require.NoError(t, err)
		h.Release()
	}
	require.True(t, s.etcd.OwnWatcher())
}

// A watch stream that can't be had anew, since the user has put it in its place, may go silent: the
// session asks now and then.
func TestWaitlist_SilentWatcherOfTheUser(t *testing.T) {
	onStage(t, func(st *stage) {
		st.f.Write("a/1")
		st.s.etcd.UseWatcher(deaf{st.f})
		tickets := []*Ticket{st.ticket(st.mutex().Enqueue), st.ticket(st.mutex().Enqueue)}
		st.f.Remove("a/1")
		st.requireOut(tickets...)
		for _, tk := range tickets {
			start := time.Now()
			h, err := tk.Wait(st.Context())
			require.NoError(st, err)
			require.LessOrEqual(st, time.Since(start), st.s.lease.TTL)
			h.Release()
		}
	})
}

// At rest such a Watcher, or a proxy's, is silent too. Then a session that waits for many names asks etcd seldom, and for all of them.
func TestWaitlist_SilentWatcherOfManyNames(t *testing.T) {
	onStage(t, func(st *stage) {
		st.s.etcd.UseWatcher(deaf{st.f})
		const names, ttls = 4*wait.RecheckMost + 1, 2
		var tickets []*Ticket
		var others []string
		for i := range names {
			others = append(others, fmt.Sprint("b", i, "/1"))
		}
		st.f.writeAll(strings.Join(others, " "))
		for i := range names {
			tk, err := NewMutex(st.s, fmt.Sprint("b", i)).Enqueue(st.Context())
			require.NoError(st, err)
			tickets = append(tickets, tk)
		}
		<-time.After(2 * time.Second) // each name is read once for the error of a wait that is given up
		var reads atomic.Int32
		st.change(func() {
			st.seen = func(what string) {
				if strings.HasSuffix(what, "Range") {
					reads.Add(1)
				}
			}
		})
		<-time.After(ttls * st.s.TTL())
		require.Less(st, int(reads.Load()), names/2, "it asks for each name by itself")
		st.f.Remove(others...)
		start := time.Now()
		for _, tk := range tickets {
			_, err := tk.Wait(st.Context())
			require.NoError(st, err)
		}
		require.LessOrEqual(st, time.Since(start), st.s.TTL())
	})
}

// deaf opens watches that tell of nothing but that.
type deaf struct{ *fakeEtcd }

func (d deaf) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ch := make(chan clientv3.WatchResponse, 1)
	ch <- <-d.fakeEtcd.Watch(ctx, key, opts...)
	return ch
}

func (d deaf) RequestProgress(context.Context) error { return nil }

// Sessions of one client share a stream of watches, and etcd's word that it lives goes to the watches of all. So it is
// asked about twice a second at most, however many sessions wait. A session by itself asks once a second.
func TestWaitlist_OneSessionProbesForAll(t *testing.T) {
	for sessions, atMost := range map[int]int64{1: 1, 50: 2} {
		synctest.Test(t, func(t *testing.T) {
			const seconds = 100
			f := newFakeEtcd()
			f.Write("a/1")
			var asked atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			var all []*Session
			for i := range sessions {
				s := f.bareSession(clientv3.LeaseID(i + 5))
				s.etcd.UseWatcher(counted{f, &asked})
				tk, err := NewMutex(s, "a").Enqueue(ctx)
				require.NoError(t, err)
				go func() { _, _ = tk.Wait(ctx) }()
				all = append(all, s)
			}
			<-time.After(seconds * time.Second)
			require.Less(t, asked.Load(), atMost*seconds+seconds/2+int64(sessions), "%d sessions", sessions)
			require.Greater(t, asked.Load(), int64(seconds/2), "%d sessions", sessions)
			cancel()
			for _, s := range all {
				s.lease.End(ErrSessionClosed, "test")
				s.lease.NotFound()
			}
		})
	}
}

// counted counts how often the watches are asked whether they live.
type counted struct {
	*fakeEtcd
	asked *atomic.Int64
}

func (c counted) RequestProgress(ctx context.Context) error {
	c.asked.Add(1)
	return c.fakeEtcd.RequestProgress(ctx)
}

// The lease of a wait is revoked, and etcd takes its time to say so: the wait's error says so even then.
func TestWait_CauseThatComesLate(t *testing.T) {
	t.Parallel()
	c, tap, name := cluster.Client(t), etcdtest.NewTap(), lockName(t)
	h := harness.Take(t, NewMutex(newTestSession(t, c), name).Lock)
	s := newTestSession(t, cluster.Client(t, tap), WithTTL(time.Minute))
	left := async(func() error {
		_, err := NewMutex(s, name).Lock(testCtx(t))
		return err
	})
	require.Eventually(t, func() bool { return len(entries(t, c, name)) == 2 }, hang, tick)
	late := tap.Next("LeaseTimeToLive", etcdtest.Before(func() { harness.Elapse(500 * time.Millisecond) }))
	_, err := c.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	require.ErrorIs(t, result(t, left), ErrSessionExpired)
	<-late
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A wall clock that is set forward by more than a TTL is no reason to lose a place while the session
// lives: the entry is granted when a renewal has confirmed that.
func TestFault_I7_WallClockSetForward(t *testing.T) {
	onStage(t, func(st *stage) {
		st.f.Write("a/1")
		tk := st.ticket(st.mutex().Enqueue)
		var ahead atomic.Int64
		ahead.Store(int64(2 * time.Hour))
		st.s.lease.WallClock = func() time.Time { return time.Now().Round(0).Add(time.Duration(ahead.Load())) }
		st.s.lease.KeepAlive = func(context.Context) (int64, error) { ahead.Store(0); return 10, nil }
		h := st.lock(NewMutex(st.s, "b").Lock)
		require.True(st, h.Valid())
		ahead.Store(int64(2 * time.Hour))
		require.False(st, h.Valid())
		st.f.Remove("a/1")
		st.wait(tk).Release()
		require.True(st, h.Valid())
		h.Release()
	})
}

// Where nothing is written between the txn that enqueues and the watch, nothing can have been missed: the
// first in line makes no read.
func TestWaitlist_FirstInLineReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s := f.bareSession(5)
		f.Write("a/1")
		var steps []string
		f.Step = func(_ context.Context, what string) error {
			steps = append(steps, what)
			return nil
		}
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		f.Remove("a/1")
		_, err = tk.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"Txn", "Txn.", "Watch", "Watch."}, steps)
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
	})
}

// toAdopt plays with a session on whose lease the process before has left an entry.
func toAdopt(t *testing.T, play func(t *testing.T, f *fakeEtcd, s *Session)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		f.WriteOn(5, "one", "a/5")
		s := f.bareSession(5)
		play(t, f, s)
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
	})
}

// While an Adopt reads, another one takes the same entry and releases it. Only one of them has it.
func TestAdopt_BesideAnother_I6(t *testing.T) {
	for what, at := range map[string]int32{"after it has found the entry": 1, "after it has judged the entry": 2} {
		toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
			other := make(chan error, 1)
			var reads atomic.Int32
			f.Step = func(_ context.Context, step string) error {
				if step == "Range." && reads.Add(1) == at {
					go func() {
						h, err := s.Adopt(t.Context(), "a")
						if err == nil {
							err = h.Unlock(t.Context())
						}
						other <- err
					}()
					synctest.Wait()
				}
				return nil
			}
			h, err := s.Adopt(t.Context(), "a")
			if err == nil {
				require.NoError(t, h.Check(t.Context()), what)
				require.NoError(t, h.Unlock(t.Context()), what)
				require.ErrorIs(t, <-other, ErrNotFound, what)
			} else {
				require.ErrorIs(t, err, ErrNotFound, what)
				require.NoError(t, <-other, what)
			}
			next, err := NewMutex(s, "a").Lock(t.Context())
			require.NoError(t, err)
			require.Equal(t, "a/5-1", next.Key(), "the adopted key is not settled yet")
			require.NoError(t, next.Unlock(t.Context()))
			harness.Elapse(time.Minute)
			require.False(t, s.keys.InUse(), "all keys are free in the end")
		})
	}
}

// If Adopt ends while it reads, the entry is there for the next Adopt.
func TestAdopt_EndsWhileItReads(t *testing.T) {
	toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		var reads atomic.Int32
		var answers atomic.Bool
		f.Step = func(ctx context.Context, step string) error {
			if step == "Range" && reads.Add(1) > 1 && !answers.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.Adopt(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, s.keys.InUse())
		answers.Store(true)
		h, err := s.Adopt(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "a/5", h.Key())
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// After the wall clock was set forward, Adopt asks etcd first. If ctx ends without an answer, an entry that has the lock
// stays as it was.
func TestAdopt_WallClockSetForward(t *testing.T) {
	toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		s.etcd.Lease = f.Client(func(context.Context) (int64, error) { return 10, nil }).Lease // etcd still says what the lease has
		var ahead atomic.Int64
		ahead.Store(int64(2 * time.Hour))
		s.lease.WallClock = func() time.Time { return time.Now().Round(0).Add(time.Duration(ahead.Load())) }
		s.lease.KeepAlive = func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Adopt(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Len(t, f.There("a/"), 1, "the entry stays")
		s.lease.KeepAlive = func(context.Context) (int64, error) { ahead.Store(0); return 10, nil }
		h, err := s.Adopt(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, h.Valid())
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// What keeps Adopt from an entry that has the lock, after Adopt has claimed the keys, does not outlast its ctx: the clock is set
// forward and etcd renews nothing, or a list that knows more than Adopt has read wants to read again. Then the entry is there for
// the next Adopt; the session's own waiter stays behind it.
func TestAdopt_EndsAfterItsClaim(t *testing.T) {
	for _, what := range []string{"the clock is set forward", "the list knows more"} {
		toAdopt(t, func(t *testing.T, f *fakeEtcd, s *Session) {
			for i := range 20 { // more than the list asks for at once
				f.Write(fmt.Sprintf("a/6-%x", i+1))
			}
			removeOthers := func() {
				for _, key := range f.There("a/6") {
					f.Remove(key)
				}
				synctest.Wait()
			}
			var reads atomic.Int32
			var forward, hangs atomic.Bool
			goesOn := make(chan struct{})
			f.Step = func(_ context.Context, step string) error {
				switch {
				case hangs.Load():
					<-goesOn
				case step != "Range." || reads.Add(1) != 2:
				case what == "the list knows more":
					hangs.Store(true)
					removeOthers()
				default:
					forward.Store(true)
				}
				return nil
			}
			s.lease.WallClock = func() time.Time {
				if forward.Load() {
					return time.Now().Round(0).Add(2 * time.Hour)
				}
				return time.Now().Round(0)
			}
			s.lease.KeepAlive = func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
			s.etcd.Lease = f.Client(func(context.Context) (int64, error) { return 10, nil }).Lease
			reads.Store(1000)
			tk, err := NewMutex(s, "a").Enqueue(t.Context())
			require.NoError(t, err)
			harness.Elapse(30 * time.Second) // the search for late writes under the key that the entry has is over
			reads.Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err = s.Adopt(ctx, "a")
			require.ErrorIs(t, err, context.DeadlineExceeded, what)
			require.Equal(t, time.Second, time.Since(start), what)
			require.Equal(t, []string{"a/5", "a/5-1"}, f.There("a/5"), what)
			require.Len(t, s.parts(), 1)
			forward.Store(false)
			hangs.Store(false)
			close(goesOn)
			harness.Elapse(3 * time.Second)
			require.Empty(t, tk.Done())
			h, err := s.Adopt(t.Context(), "a")
			require.NoError(t, err, what)
			require.Equal(t, "a/5", h.Key())
			require.NoError(t, h.Unlock(t.Context()))
			removeOthers()
			h, err = tk.Wait(t.Context())
			require.NoError(t, err)
			require.NoError(t, h.Unlock(t.Context()))
			harness.Elapse(time.Minute)
			require.False(t, s.keys.InUse(), what)
		})
	}
}

// Of a write lock, only the shared key is left: it was downgraded, or somebody has removed the other key. Etcd has the same in both
// cases. It is adopted as a read hold, beside other readers.
func TestAdopt_ReadsWithTheSharedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		f.WriteOn(5, "one", "a/5", "a/r5")
		f.Remove("a/5")
		s := f.bareSession(5)
		h, err := s.Adopt(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "a/r5", h.Key())
		reader, err := NewRWMutex(s, "a").TryRLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, reader.Unlock(t.Context()))
		require.NoError(t, h.Unlock(t.Context()))
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
	})
}

// Somebody removes a key of an entry that has the lock, after Adopt has claimed the entry. Then the entry is lost, and Adopt
// removes the rest.
func TestAdopt_RemovedAfterItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		f.WriteOn(5, "one", "a/5", "a/r5")
		s := f.bareSession(5)
		reads := 0
		f.Step = func(_ context.Context, step string) error {
			if step == "Range." {
				reads++
			}
			return nil
		}
		ahead := time.Now().Add(time.Second)
		s.lease.WallClock = func() time.Time {
			if reads >= 2 && time.Now().Before(ahead) {
				return time.Now().Round(0).Add(2 * time.Hour)
			}
			return time.Now().Round(0)
		}
		s.lease.KeepAlive = func(context.Context) (int64, error) {
			f.Remove("a/5")
			for _, p := range s.parts() {
				_ = p.Missing("a/5", f.Write("x"))
			}
			harness.Elapse(time.Second)
			return 10, nil
		}
		s.etcd.Lease = f.Client(func(context.Context) (int64, error) { return 10, nil }).Lease
		_, err := s.Adopt(t.Context(), "a")
		require.ErrorIs(t, err, ErrLost)
		harness.Elapse(time.Minute)
		require.Empty(t, f.There("a/"))
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
	})
}

// An entry of the process before waits, and its key is removed before what blocks it leaves; the watch tells neither. Then
// another entry is adopted, above it, which nobody blocks now. That is news for the first one, of now and not of the time at
// which the other entry was written: the first one is lost, and not granted.
func TestAdopt_TellsTheListOfNow_I1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		f.Write("a/6")
		f.WriteOn(5, "one", "a/r5")
		f.WriteOn(5, "two", "a/r5-1")
		s := f.session(5)
		s.etcd.UseWatcher(deaf{f})
		ended := make(chan error, 1)
		go func() {
			_, err := s.Adopt(t.Context(), "a")
			ended <- err
		}()
		synctest.Wait()
		f.Remove("a/r5")
		f.Remove("a/6")
		h, err := s.Adopt(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "a/r5-1", h.Key())
		require.ErrorIs(t, <-ended, ErrLost)
		require.NoError(t, h.Unlock(t.Context()))
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
	})
}
