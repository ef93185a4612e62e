package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

func scoped(scope any) *etcd.Client {
	c := etcd.NewClient(clientv3.NewCtxClient(context.Background()))
	c.UseWatcher(nil, scope)
	return c
}

// Who shares: several, who are a good part of the queue.
func TestCrowded(t *testing.T) {
	e := &entry{s: &Session{id: 0x12, etcd: scoped(t)}, name: "a"}
	other := &entry{s: &Session{id: 0x13, etcd: e.s.etcd}, name: "a", mode: writeMode}
	for _, more := range []*entry{
		{s: other.s, name: "b"},
		{s: &Session{id: 0x12, etcd: scoped("another")}, name: "a"},
	} {
		defer more.joinCrowd().leave()
	}
	k := e.crowd()
	require.False(t, k.crowded(1, 2), "alone")
	leave := e.joinCrowd().leave
	require.False(t, k.crowded(0, 2), "alone")
	require.True(t, k.crowded(1, 2*crowdShare))
	leaveToo := other.joinCrowd().leave
	require.True(t, k.crowded(0, 2*crowdShare))
	require.False(t, k.crowded(0, 2*crowdShare+1))
	leave()
	require.False(t, k.crowded(0, 2))
	leaveToo()
	shares.mu.Lock()
	defer shares.mu.Unlock()
	require.NotContains(t, shares.crowds, k)
}

func TestViewOf(t *testing.T) {
	three := []queue.Entry{{Key: "a/12", Rev: 7}, {Key: "a/13", Rev: 3}, {Key: "a/12-2", Rev: 5}}
	deep := queue.View{Blockers: []queue.Entry{{Key: "a/13", Rev: 3}}, Next: []queue.Entry{{Key: "a/12-2", Rev: 5}, {Key: "a/12", Rev: 7}}}
	for name, tc := range map[string]struct {
		others int
		wants  mode
		queue  []queue.Entry
		want   queue.View
	}{
		"one of a crowd":             {1, mutexMode, three, queue.View{Blockers: three, Last: true}},
		"one of a crowd, write lock": {1, writeMode, three, queue.View{Blockers: three, Last: true}},
		"a stray key":                {1, mutexMode, append([]queue.Entry{{Key: "a/12-zz", Rev: 4}}, three...), queue.View{Blockers: three, Last: true}},
		"a reader among them":        {1, mutexMode, append([]queue.Entry{{Key: "a/r12", Rev: 4}}, three...), deep},
		"of a reader":                {1, readMode, three, deep},
		"alone":                      {0, mutexMode, three, deep},
		"alone behind two":           {0, mutexMode, []queue.Entry{three[1], three[0]}, queue.View{Blockers: []queue.Entry{three[1], three[0]}, Last: true}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &entry{s: &Session{id: 0x12, etcd: scoped(t)}, name: "a", mode: tc.wants, rev: 9}
			for range tc.others {
				defer e.joinCrowd().leave()
			}
			require.Equal(t, tc.want, e.viewOf(tc.queue))
		})
	}
}

// crowdOn are a holder and waiters of one session on a fake etcd. One more is said to
// wait, so that the first one shares its watch too.
func crowdOn(t *testing.T, f *fakeEtcd, waiters int) (s *Session, h *Held, tickets []*Ticket) {
	s = f.session(5)
	t.Cleanup(func() {
		s.terminate(ErrSessionClosed, "test")
		s.endLease()
	})
	h, err := NewMutex(s, "a").Lock(t.Context())
	require.NoError(t, err)
	t.Cleanup(h.joinCrowd().leave)
	for range waiters {
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		tickets = append(tickets, tk)
	}
	synctest.Wait()
	return s, h, tickets
}

// passOn unlocks h and has each ticket granted, in turn and in no time.
func passOn(t *testing.T, h *Held, tickets ...*Ticket) {
	t.Helper()
	start := time.Now()
	for _, tk := range tickets {
		require.NoError(t, h.Unlock(t.Context()))
		var err error
		h, err = tk.Wait(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, h.Unlock(t.Context()))
	require.Zero(t, time.Since(start))
}

// holdWatches has watches wait to be opened until open is called.
func (f *fakeEtcd) holdWatches() (open func()) {
	opened := make(chan struct{})
	f.step = func(_ context.Context, what string) error {
		if what == "Watch" {
			<-opened
		}
		return nil
	}
	return func() { close(opened) }
}

// openWatches are those that nobody has closed.
func (f *fakeEtcd) openWatches() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers {
		if !w.closed {
			n++
		}
	}
	return n
}

func requireNoneShared(t *testing.T, f *fakeEtcd, s *Session) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, s.listening())
	require.Zero(t, f.openWatches())
}

func TestSharedWatch_OneForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 5)
		require.Equal(t, 1, f.openWatches())
		passOn(t, h, tickets...)
		requireNoneShared(t, f, s)
	})
}

// A watch of which nothing was heard for a while may be on a member that hangs. Who
// comes then does not rely on it.
func TestSharedWatch_Silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 2)
		come := func(after time.Duration, watches int) {
			<-time.After(after)
			tk, err := NewMutex(s, "a").Enqueue(t.Context())
			require.NoError(t, err)
			tickets = append(tickets, tk)
			synctest.Wait()
			require.Equal(t, watches, f.openWatches())
		}
		const long, short = 1500 * time.Millisecond, time.Second
		come(short, 1)
		come(long, 2)
		come(short, 2)
		come(0, 2)
		require.NoError(t, tickets[0].Cancel(t.Context())) // its leaving is heard
		synctest.Wait()
		come(short, 2)
		tickets = tickets[1:]
		passOn(t, h, tickets...)
		requireNoneShared(t, f, s)
	})
}

// The last one closes the watch, and who comes then opens another one at once.
func TestSharedWatch_LastWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 1)
		passOn(t, h, tickets...)
		for range 3 {
			h, err := NewMutex(s, "a").Lock(t.Context())
			require.NoError(t, err)
			tk, err := NewMutex(s, "a").Enqueue(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, 1, f.openWatches())
			passOn(t, h, tk) // and the next one comes before anything else is done
		}
		requireNoneShared(t, f, s)
	})
}

// The watch goes on as long as anybody uses it, whoever it was opened for.
func TestSharedWatch_FirstWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 3)
		require.NoError(t, tickets[0].Cancel(t.Context()))
		require.Equal(t, 1, f.openWatches())
		require.NoError(t, tickets[2].Cancel(t.Context()))
		synctest.Wait()
		require.Equal(t, []int{1}, s.listening())
		passOn(t, h, tickets[1])
		requireNoneShared(t, f, s)
	})
}

// Readers on one client share it too, and it outlives the session that it was
// opened for.
func TestSharedWatch_FirstSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		var ss []*Session
		for i := range 3 {
			s := f.session(clientv3.LeaseID(5 + i))
			t.Cleanup(s.endLease)
			s.etcd.UseWatcher(f, f)
			ss = append(ss, s)
		}
		h, err := NewRWMutex(ss[2], "a").Lock(t.Context())
		require.NoError(t, err)
		var tickets []*Ticket
		for _, s := range []*Session{ss[0], ss[1], ss[1]} {
			tk, err := NewRWMutex(s, "a").REnqueue(t.Context())
			require.NoError(t, err)
			tickets = append(tickets, tk)
			synctest.Wait()
		}
		require.Equal(t, []int{3}, ss[0].listening())
		ss[0].terminate(ErrSessionClosed, "test")
		_, err = tickets[0].Wait(t.Context())
		require.ErrorIs(t, err, ErrSessionClosed)
		synctest.Wait()
		require.Equal(t, []int{2}, ss[0].listening())
		start := time.Now()
		require.NoError(t, h.Unlock(t.Context()))
		for _, tk := range tickets[1:] {
			_, err := tk.Wait(t.Context())
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(start))
		require.Len(t, f.watchers, 1, "it was opened once")
		requireNoneShared(t, f, ss[0])
	})
}

// Sessions whose watchers are not the same share nothing.
func TestSharedWatch_Scope(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	a, b := newTestSession(t, c), newTestSession(t, c)
	share := func(a, b *Session) bool { return a.etcd.WatchScope() == b.etcd.WatchScope() }
	require.True(t, share(a, b))
	require.False(t, share(a, newTestSession(t, cluster.Client(t))))
	b.etcd.ReplaceWatcher()
	require.False(t, share(a, b))
	c.Watcher = namespace.NewWatcher(c.Watcher, "x/")
	require.False(t, share(newTestSession(t, c), newTestSession(t, c)), "who knows what others' watchers do")
}

// A watch that could not be opened is the failure of all who wait for it.
func TestSharedWatch_AllGetAnotherWatcher(t *testing.T) {
	t.Parallel()
	c, w := wiredClient(t, cluster)
	name := lockName(t)
	h, err := NewRWMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	opening := make(chan struct{})
	w.onRecv(func(method string, _ any) (bool, error) {
		if method == "Watch" {
			<-opening
		}
		return true, nil
	})
	var tickets []*Ticket
	var ss []*Session
	for range 3 {
		s := newTestSession(t, c)
		tk, err := NewRWMutex(s, name).REnqueue(testCtx(t))
		require.NoError(t, err)
		ss, tickets = append(ss, s), append(tickets, tk)
	}
	for _, s := range ss {
		require.Eventually(t, s.watchesAnew, hang, tick)
	}
	close(opening)
	require.NoError(t, h.Unlock(testCtx(t)))
	for _, tk := range tickets {
		h, err := tk.Wait(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(testCtx(t)))
	}
}

// The watch is on a member that hangs. Who comes then, on the same client, gets one
// that is on another member, long before it would ask.
func TestSharedWatch_HungMember(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t, etcdtest.WithMembers(3))
	proxies := []*etcdtest.Proxy{own.Proxy(t, 0), own.Proxy(t, 1), own.Proxy(t, 2)}
	require.NoError(t, own.MoveLeader(testCtx(t), 1))
	h, err := NewRWMutex(newTestSession(t, own.Client(t)), "a").Lock(testCtx(t))
	require.NoError(t, err)
	proxies[1].Refuse()
	proxies[2].Refuse()
	s := newTestSession(t, own.Client(t, proxies[0], proxies[1], proxies[2]), WithTTL(4*hang))
	first, err := NewRWMutex(s, "a").REnqueue(testCtx(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return slices.Equal(s.listening(), []int{1}) }, hang, tick)
	proxies[1].Accept()
	proxies[2].Accept()
	require.Eventually(t, func() bool { return proxies[1].Connections() > 0 && proxies[2].Connections() > 0 }, hang, tick)
	proxies[0].Hold(etcdtest.Both)
	<-time.After(2 * etcd.AttemptMin)
	granted := make(chan error, 1)
	go func() {
		_, err := NewRWMutex(s, "a").RLock(testCtx(t))
		granted <- err
	}()
	require.Eventually(t, func() bool { return slices.Contains(s.listening(), 1) && s.watchesAnew() }, hang, tick)
	require.NoError(t, h.Unlock(testCtx(t)))
	began := time.Now()
	require.NoError(t, <-granted)
	require.Less(t, time.Since(began), hang)
	require.NoError(t, first.Cancel(testCtx(t)))
}

// watchesAnew reports whether the session has another watcher than its client.
func (s *Session) watchesAnew() bool {
	return s.etcd.OwnWatcher()
}

func TestSharedWatch_FirstWaiterLeavesWhileItIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, _ := crowdOn(t, f, 0)
		open := f.holdWatches()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := NewMutex(s, "a").Lock(ctx)
			failed <- err
		}()
		synctest.Wait()
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		start := time.Now()
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		require.Zero(t, time.Since(start), "it does not wait for the watch")
		open()
		passOn(t, h, tk)
		requireNoneShared(t, f, s)
	})
}

// The last one leaves before the watch is there: it is closed nevertheless.
func TestSharedWatch_AllLeaveWhileItIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, _ := crowdOn(t, f, 0)
		open := f.holdWatches()
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, tk.Cancel(t.Context()))
		open()
		passOn(t, h)
		requireNoneShared(t, f, s)
	})
}

// Close waits for what the session's waiters leave behind.
func TestSharedWatch_CloseWaits(t *testing.T) {
	for name, closing := range map[string]bool{"who leaves before": false, "who leaves because of it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEtcd()
				s, _, _ := crowdOn(t, f, 0)
				open := f.holdWatches()
				tk, err := NewMutex(s, "a").Enqueue(t.Context())
				require.NoError(t, err)
				synctest.Wait()
				s.mu.Lock()
				s.closing = closing
				s.mu.Unlock()
				require.NoError(t, tk.Cancel(t.Context()))
				done := make(chan struct{})
				go func() {
					s.wg.Wait()
					close(done)
				}()
				synctest.Wait()
				require.False(t, isClosed(done))
				open()
				synctest.Wait()
				require.True(t, isClosed(done))
			})
		})
	}
}

// A watch may end between its opening and somebody's joining, who opens the next.
func TestSharedWatch_EndsBeforeItIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, _ := crowdOn(t, f, 0)
		k := h.crowd()
		old := s.enterShared(s.etcd.EnterWatcher(), k.from, k.end)
		synctest.Wait()
		f.breakWatches()
		synctest.Wait()
		shares.mu.Lock()
		shares.all[old.shareKey], old.users = old, 0 // as if it had been entered just before
		shares.mu.Unlock()
		w := &waiter{entry: &h.entry, crowded: true, from: k.from, to: k.end}
		defer h.joinCrowd().leave()
		on, err := w.watchBlockers(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, f.openWatches())
		on.close()
		requireNoneShared(t, f, s)
	})
}

// When it breaks, all keep their places, and one of them opens the next one for all.
func TestSharedWatch_Breaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 4)
		f.breakWatches()
		synctest.Wait()
		require.Zero(t, f.openWatches())
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, f.openWatches(), "whoever comes now has a watch at once")
		<-time.After(etcd.RetryMax)
		require.Equal(t, 1, f.openWatches())
		passOn(t, h, append(tickets, tk)...)
		requireNoneShared(t, f, s)
	})
}

// When it can't be opened, those who wait for that try again.
func TestSharedWatch_NotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, _ := crowdOn(t, f, 0)
		var once atomic.Bool
		f.step = func(_ context.Context, what string) error {
			if what == "Watch" && !once.Swap(true) {
				return errLostReply
			}
			return nil
		}
		tk, err := NewMutex(s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, f.openWatches())
		<-time.After(etcd.RetryMax)
		require.Equal(t, 1, f.openWatches())
		passOn(t, h, tk)
		requireNoneShared(t, f, s)
	})
}

// A waiter behind others of its session is told at once when its entry is
// removed; the others wait on.
func TestSharedWatch_EntryRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		s, h, tickets := crowdOn(t, f, 5)
		start := time.Now()
		f.del(tickets[3].h.key)
		_, err := tickets[3].Wait(t.Context())
		require.ErrorIs(t, err, ErrLost)
		require.Zero(t, time.Since(start))
		passOn(t, h, tickets[0], tickets[1], tickets[2], tickets[4])
		requireNoneShared(t, f, s)
	})
}

// Those who wait while the watch is opened look behind it once for all. Where that fails
// each looks on its own; and nobody waits for it longer than its ctx lasts.
func TestSharedWatch_First(t *testing.T) {
	const waiters = 5
	hangs := func(ctx context.Context, _ int32) error { <-ctx.Done(); return ctx.Err() }
	for name, tc := range map[string]struct {
		read  func(ctx context.Context, n int32) error // before attemptMin has passed
		soon  int32                                    // reads before that
		later int32                                    // afterwards, at least
		stray int
	}{
		"it succeeds": {func(context.Context, int32) error { return nil }, 1, 0, 0},
		"it is refused": {func(_ context.Context, n int32) error {
			return map[bool]error{true: rpctypes.ErrGRPCPermissionDenied}[n < 3]
		}, 2 + waiters, 0, 0},
		"too many keys": {func(context.Context, int32) error { return nil }, 2*waiters + 1, 0, presentLimit}, // the txn shows too little too
		"it hangs":      {hangs, 1 + 2, waiters, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEtcd()
				var stray strings.Builder
				for i := range tc.stray {
					fmt.Fprintf(&stray, "a/b/%x ", i+1)
				}
				f.putAll(stray.String())
				_, h, _ := crowdOn(t, f, 0)
				opened := make(chan struct{})
				late, cancel := context.WithCancel(t.Context())
				var reads atomic.Int32
				f.step = func(ctx context.Context, what string) error {
					if what == "Watch" {
						<-opened
					}
					if !strings.HasSuffix(what, "Range") {
						return nil
					}
					n := reads.Add(1)
					ctx, stop := context.WithCancel(ctx)
					defer stop()
					defer context.AfterFunc(late, stop)()
					if err := tc.read(ctx, n); late.Err() == nil {
						return err
					}
					return nil
				}
				var tickets []*Ticket
				for range waiters {
					tk, err := NewRWMutex(h.s, "a").REnqueue(t.Context())
					require.NoError(t, err)
					tickets = append(tickets, tk)
					synctest.Wait()
				}
				f.putAll("b/1") // so that the watch begins behind what they know
				close(opened)
				<-time.After(etcd.AttemptMin - time.Millisecond)
				require.Equal(t, tc.soon, reads.Load())
				<-time.After(2 * time.Millisecond)
				cancel()
				synctest.Wait()
				require.GreaterOrEqual(t, reads.Load(), tc.soon+tc.later)
				require.NoError(t, h.Unlock(t.Context()))
				start := time.Now()
				for _, tk := range tickets {
					_, err := tk.Wait(t.Context())
					require.NoError(t, err)
				}
				require.Zero(t, time.Since(start))
			})
		})
	}
	t.Run("ctx ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEtcd()
			s, h, _ := crowdOn(t, f, 0)
			open := make(chan struct{})
			f.step = func(ctx context.Context, what string) error {
				switch what {
				case "Watch":
					<-open
				case "pinned Range":
					return hangs(ctx, 0)
				}
				return nil
			}
			var cancels []func()
			var done []chan error
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error, 1)
				go func() {
					_, err := NewRWMutex(s, "a").RLock(ctx)
					failed <- err
				}()
				cancels, done = append(cancels, cancel), append(done, failed)
				synctest.Wait()
			}
			f.putAll("b/1")
			close(open)
			synctest.Wait()
			start := time.Now()
			for i, cancel := range cancels {
				cancel()
				require.ErrorIs(t, <-done[i], context.Canceled)
			}
			require.Zero(t, time.Since(start))
			passOn(t, h)
		})
	})
}

// Who comes to a watch that has been told of much reads nothing, also where it is told of
// more while they write their entry.
func TestSharedWatch_Newcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		_, h, tickets := crowdOn(t, f, 1)
		tell := func() {
			f.putAll("a/b/1")
			f.del("a/b/1")
			synctest.Wait()
		}
		for range 2 * recentEvents {
			tell()
		}
		f.step = func(_ context.Context, what string) error {
			switch what {
			case "Txn.":
				tell()
			case "Range", "pinned Range":
				t.Error("it reads")
			}
			return nil
		}
		tk, err := NewMutex(h.s, "a").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		passOn(t, h, append(tickets, tk)...)
	})
}

// Nobody waits for what a session that is being closed would have read.
func TestSharedWatch_FirstByAClosingSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEtcd()
		h, err := NewMutex(f.session(9), "a").Lock(t.Context())
		require.NoError(t, err)
		open := f.holdWatches()
		var tickets []*Ticket
		var ss []*Session
		for i := range 2 {
			s := f.session(clientv3.LeaseID(5 + i))
			t.Cleanup(s.endLease)
			s.etcd.UseWatcher(f, f)
			tk, err := NewRWMutex(s, "a").REnqueue(t.Context())
			require.NoError(t, err)
			ss, tickets = append(ss, s), append(tickets, tk)
			synctest.Wait()
		}
		for _, s := range ss { // whichever comes first
			s.mu.Lock()
			s.closing = true
			s.mu.Unlock()
		}
		f.putAll("b/1") // so that the watch begins behind what they know
		open()
		start := time.Now()
		passOn(t, h, tickets...)
		require.Zero(t, time.Since(start))
	})
}

// A waiter that is busy while several of those before it leave hears of all of them;
// one who comes later also of those that it can't know of, if not too many.
func TestSharedWatch_AddsUp(t *testing.T) {
	w := &sharedWatch{opened: 9, at: 9, forgot: 9, subscribers: make(map[*subscriber]struct{})}
	on := w.subscribe("a/5", "a/5-3", 9, nil)
	del := func(key string, rev int) {
		w.publish(clientv3.WatchResponse{Events: []*clientv3.Event{{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: int64(rev)}}}})
	}
	for i, key := range []string{"a/5", "a/5-2", "a/5-3", "a/5-1"} {
		del(key, 10+i)
	}
	wr := <-on.ch
	require.True(t, etcd.Deleted(&wr, "a/5", 9))
	require.True(t, etcd.Deleted(&wr, "a/5-2", 9))
	require.False(t, etcd.Deleted(&wr, "a/5-3", 9), "out of its range")
	require.EqualValues(t, 13, etcd.Latest(&wr))

	later := func(since, at int64, told ...int64) {
		t.Helper()
		on := w.subscribe("a/5", "a/5-3", since, nil)
		require.Equal(t, at, on.at)
		var revs []int64
		if len(on.ch) > 0 {
			for _, ev := range (<-on.ch).Events {
				revs = append(revs, ev.Kv.ModRevision)
			}
		}
		require.Equal(t, told, revs)
	}
	later(8, 9, 10, 11, 13) // before the watch, and so to ask what was there at first
	later(9, 9, 10, 11, 13)
	later(11, 11, 13)
	later(12, 12, 13)
	later(13, 13)
	later(20, 13)
	for range recentEvents - 3 {
		del("a/6", 14)
	}
	later(9, 14)
	later(10, 10, 11, 13)
	for range recentEvents {
		del("a/6", 15)
	}
	later(14, 14)
	later(13, 15)

	w = &sharedWatch{opened: 9, at: 9, forgot: 9, subscribers: make(map[*subscriber]struct{})}
	for range recentEvents + 1 {
		del("a/5", 5) // which the watch may not have been told of all
	}
	later(5, 9)
	later(8, 9)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
