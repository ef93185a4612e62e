package holdwatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// A scene is the watches of a session on the fake, in a bubble. A hold is its entry.
type scene struct {
	*testing.T
	*Watches[queue.Entry]
	f   *fakeetcd.Server
	end context.CancelFunc // of the session

	mu       sync.Mutex
	tooLate  bool // to start a goroutine
	opened   int
	lost     map[queue.Entry]bool // deleted, or not there; some are told twice
	ended    []queue.Entry
	verified []int // how many at a time
	log      logtest.Log
}

func play(t *testing.T, act func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, f: fakeetcd.New(), lost: map[queue.Entry]bool{}}
		c := Config[queue.Entry]{Etcd: etcd.NewClient(s.f.Client(nil)), Verify: s.verify}
		c.Ctx, s.end = context.WithCancel(t.Context())
		c.Outages = &outage.Source{All: &outage.Outages{}, Client: c.Etcd, Life: c.Ctx, Log: s.log.Logger(), Lease: logtest.NoLease{}}
		c.Go = func(run func(context.Context)) (ok bool) {
			s.note(func() { ok = !s.tooLate })
			if ok {
				go run(c.Ctx)
			}
			return ok
		}
		c.Opened = func() { s.note(func() { s.opened++ }) }
		c.Rev = func(q queue.Entry) int64 { return q.Rev }
		c.Ended = func(q queue.Entry) { s.note(func() { s.ended = append(s.ended, q) }) }
		c.Deleted = func(q queue.Entry, key string) {
			require.Equal(t, q.Key, key)
			s.note(func() { s.lost[q] = true })
		}
		s.Watches = New(c)
		act(s)
		s.end()
		synctest.Wait()
		require.Empty(t, s.f.Watches())
	})
}

func (s *scene) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *scene) verify(ctx context.Context, holds []queue.Entry, at int64) error {
	got, _, err := s.Etcd.ReadAt(ctx, ctx, at, etcd.ReadRange(" ", "~"))
	if err != nil {
		return err
	}
	there := queue.Entries(got[0].Kvs)
	s.note(func() {
		s.verified = append(s.verified, len(holds))
		for _, q := range holds {
			if !slices.Contains(there, q) {
				s.lost[q] = true
			}
		}
	})
	return nil
}

// hold writes an entry in the queue of name, and has it watched.
func (s *scene) hold(name string) queue.Entry {
	s.Helper()
	key := name + "/1c"
	q := queue.Entry{Key: key, Rev: s.f.Write(key)}
	require.True(s, s.Watch(key, q))
	return q
}

// holds takes n holds in a directory.
func (s *scene) holds(dir string, n int) (holds []queue.Entry) {
	s.Helper()
	for i := range n {
		holds = append(holds, s.hold(fmt.Sprint(dir, i)))
	}
	return holds
}

// unwatch is for holds that have ended. Their keys stay: nobody is told of them any more.
func (s *scene) unwatch(holds ...queue.Entry) {
	for _, q := range holds {
		s.Unwatch(q.Key)
	}
	synctest.Wait()
}

// requireWatches requires that n watches are open.
func (s *scene) requireWatches(n int) {
	s.Helper()
	synctest.Wait()
	require.Len(s, s.f.Watches(), n)
}

// requireTold requires that all the holds that were lost are these, and forgets them.
func (s *scene) requireTold(holds ...queue.Entry) {
	s.Helper()
	synctest.Wait()
	s.note(func() {
		require.ElementsMatch(s, holds, slices.Collect(maps.Keys(s.lost)))
		clear(s.lost)
	})
}

// The first holds of a directory have a watch each, the others one for all of them; each hears of its loss.
// Watches are opened few at a time, so that those of waits have their turn.
func TestManyShareOne(t *testing.T) {
	play(t, func(s *scene) {
		opening, most := 0, 0
		s.f.Step = func(_ context.Context, what string) error {
			if what == "Watch" {
				s.note(func() { opening++; most = max(most, opening) })
				<-time.After(time.Millisecond)
				s.note(func() { opening-- })
			}
			return nil
		}
		holds := s.holds("dir/", maxSingles+100)
		<-time.After(time.Second)
		s.requireWatches(maxSingles + 1)
		require.Equal(s, maxSingles+1, s.opened)
		require.Equal(s, maxOpening, most)
		for _, i := range []int{0, maxSingles - 1, maxSingles, maxSingles + 99} {
			s.f.Remove(holds[i].Key)
			s.requireTold(holds[i])
		}
		s.unwatch(holds[maxSingles:]...)
		s.requireWatches(maxSingles)
		s.f.Remove(holds[maxSingles+1].Key)
		s.unwatch(holds[:maxSingles]...)
		s.requireWatches(0)
		require.Empty(s, s.dirs)
		s.Unwatch("dir/0/1c") // not watched
		s.requireTold()
		require.Empty(s, s.ended, "they have ended before")
	})
}

// Locks without a directory would share a watch with all of etcd.
func TestNoDirectory(t *testing.T) {
	play(t, func(s *scene) {
		s.holds("name", maxSingles+10)
		s.requireWatches(maxSingles + 10)
	})
}

// A hold that ends before its watch is opened leaves none.
func TestEndsAtOnce(t *testing.T) {
	play(t, func(s *scene) {
		for range 10 {
			s.Unwatch(s.hold("dir/x").Key)
		}
		s.requireWatches(0)
	})
}

// The session's end is that of all holds. Nothing is watched after it.
func TestSessionEnds(t *testing.T) {
	play(t, func(s *scene) {
		holds := s.holds("dir/", maxSingles+10)
		s.requireWatches(maxSingles + 1)
		s.end()
		synctest.Wait()
		require.ElementsMatch(s, holds, s.ended)
		s.tooLate = true
		require.False(s, s.Watch("late/1c", queue.Entry{Key: "late/1c", Rev: 1000}))
	})
}

// What was removed before the watch can tell is found by one reading: as the watch is opened, when the shared watch
// has told of it before, and after the watch was away.
func TestRemovedUnseen(t *testing.T) {
	for _, n := range []int{1, maxSingles + 2} { // a watch for one, a shared one
		play(t, func(s *scene) {
			gone := sync.OnceFunc(func() { s.f.Remove(fmt.Sprintf("dir/%d/1c", n-1)) })
			all := make(chan struct{}) // closed when all holds are there
			s.f.Step = func(_ context.Context, what string) error {
				if what == "Watch" {
					<-all
					gone()
				}
				return nil
			}
			holds := s.holds("dir/", n)
			close(all)
			last := holds[n-1]
			s.requireTold(last)
			s.unwatch(last)

			// While the watch is away.
			holds[n-1] = s.hold("dir/x")
			last = holds[n-1]
			synctest.Wait()
			s.verified = nil
			gone = sync.OnceFunc(func() { s.f.Remove(last.Key) })
			s.f.BreakWatches()
			s.requireTold()
			<-time.After(time.Second)
			s.requireTold(last)
			require.Len(s, s.verified, len(s.f.Watches()), "each watch reads once, for all of its holds")
			require.Contains(s, s.verified, max(1, n-maxSingles))
			require.Equal(s, []string{logtest.Outage, logtest.Over}, s.log.Messages(), "one for all")
			s.unwatch(last)

			// It is watched too late.
			s.f.Step = func(context.Context, string) error { return nil }
			s.verified = nil
			late := queue.Entry{Key: "dir/y/1c", Rev: s.f.Write("dir/y/1c")}
			s.f.Remove(late.Key)
			synctest.Wait()
			require.True(s, s.Watch(late.Key, late))
			s.requireTold(late)
			require.Equal(s, []int{1}, s.verified)
		})
	}
}

// A watch on a member that lags tells of an earlier use of the key, and the queue that this member shows has no
// entry yet. Neither is a loss.
func TestMemberLags(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("dir/x/1c")
		s.f.Remove("dir/x/1c")
		s.f.Lag(2)
		q := s.hold("dir/x")
		s.requireWatches(1)
		s.requireTold()
		require.Empty(s, s.verified)
		s.f.Remove(q.Key)
		s.requireTold(q)
	})
}

// A hold that comes while the shared watch is away is not judged by what that watch has told: the member that opens the next
// watch may lag, and show a queue in which the hold is not yet.
func TestMemberLags_WhileAway(t *testing.T) {
	play(t, func(s *scene) {
		s.holds("dir/", maxSingles+1)
		s.requireWatches(maxSingles + 1)
		q := queue.Entry{Key: "dir/x/1c", Rev: s.f.Write("dir/x/1c")}
		s.f.Write("dir/y/1c")
		s.f.Remove("dir/y/1c") // so the shared watch has come further than the hold
		synctest.Wait()
		s.f.BreakWatches()
		s.f.Lag(3)
		synctest.Wait()
		require.True(s, s.Watch(q.Key, q))
		<-time.After(time.Second)
		s.requireWatches(maxSingles + 1)
		s.requireTold()
		s.f.Remove(q.Key)
		s.requireTold(q)
	})
}

// A watch that has something is known to live. One that has lived for long is replaced at once when it breaks, and
// the log has each outage.
func TestLivesLong(t *testing.T) {
	for _, what := range []string{"a hold", "a waiter"} {
		play(t, func(s *scene) {
			if what == "a hold" {
				s.hold("a")
			} else {
				go s.AwaitWaiter(s.Ctx, "a", 1, func(keyspace.Kind) bool { return true })
			}
			var log []string
			for range 10 {
				s.requireWatches(1)
				for range 3 {
					require.False(s, s.Etcd.Probe(s.Ctx), what)
					<-time.After(etcd.AttemptMin + time.Second)
				}
				s.f.BreakWatches()
				<-time.After(2 * etcd.RetryMin)
				log = append(log, logtest.Outage, logtest.Over)
			}
			s.requireWatches(1)
			require.Equal(s, log, s.log.Messages())
			require.Contains(s, s.log.Lines()[0], "lock=a ")
		})
	}
}

// refuseDirectory has etcd refuse the shared watch as often as told says, and calls f each time.
func (s *scene) refuseDirectory(times int, f func(n int)) {
	n := 0
	s.f.Refuse = func(w *fakeetcd.Watch) bool {
		if w.From != "dir/" || n == times {
			return false
		}
		n++
		f(n)
		return true
	}
}

// Where etcd does not let the session watch the whole directory, each hold has a watch, also those that come later.
func TestDirectoryRefused(t *testing.T) {
	play(t, func(s *scene) {
		s.refuseDirectory(2, func(int) {})
		holds := s.holds("dir/", maxSingles+3)
		<-time.After(10 * time.Second)
		holds = append(holds, s.hold("dir/x"))
		s.requireWatches(maxSingles + 4)
		s.requireTold()
		for _, q := range holds[maxSingles:] {
			s.f.Remove(q.Key)
			s.requireTold(q)
		}
		s.unwatch(holds...)
		s.requireWatches(0)
		require.Empty(s, s.ended)
		require.Equal(s, []string{logtest.Outage, logtest.Nobody}, s.log.Messages())
		require.Contains(s, s.log.Lines()[0], `lock=dir/ endpoints=[] error="the watch was not opened: no watch tells of etcd's changes"`)
	})
}

// Etcd refuses the shared watch, and to read all holds together, since it denies the rights on one. Each hold has a watch then.
func TestDirectoryRefused_ForOneHold(t *testing.T) {
	play(t, func(s *scene) {
		s.Verify = func(ctx context.Context, holds []queue.Entry, at int64) error {
			if len(holds) > 1 {
				return rpctypes.ErrPermissionDenied
			}
			return s.verify(ctx, holds, at)
		}
		s.refuseDirectory(2, func(int) {})
		holds := s.holds("dir/", maxSingles+3)
		<-time.After(2 * refusedMax)
		s.requireWatches(maxSingles + 3)
		s.f.Remove(holds[maxSingles].Key)
		s.requireTold(holds[maxSingles])
		s.unwatch(holds...)
	})
}

// A watch that etcd did not open now and then, since it was away, is not refused. Holds are asked after meanwhile.
func TestNotOpenedAtTimes(t *testing.T) {
	play(t, func(s *scene) {
		holds := s.holds("dir/", maxSingles+4)
		synctest.Wait()
		for i := range 4 {
			s.refuseDirectory(1, func(int) {})
			s.f.BreakWatches()
			s.f.Remove(holds[maxSingles+i].Key)
			<-time.After(10 * time.Second)
			s.requireTold(holds[maxSingles+i])
			s.unwatch(holds[maxSingles+i])
			holds = append(holds, s.hold(fmt.Sprint("dir/x", i)))
			s.requireWatches(maxSingles + 1)
		}
	})
}

// A member that hangs refuses nothing, however often the shared watch is not open in time. Else a session would have thousands of
// watches from then on.
func TestNotOpenedInTime(t *testing.T) {
	play(t, func(s *scene) {
		holds := s.holds("dir/", maxSingles+4)
		s.requireWatches(maxSingles + 1)
		goesOn := make(chan struct{})
		s.f.Step = func(_ context.Context, what string) error {
			if what == "Watch" {
				<-goesOn
			}
			return nil
		}
		s.f.BreakWatches()
		<-time.After(3 * time.Minute) // a few watches are opened at a time
		close(goesOn)
		<-time.After(time.Minute)
		s.requireWatches(maxSingles + 1)
		s.requireTold()
		s.f.Remove(holds[maxSingles].Key)
		s.requireTold(holds[maxSingles])
	})
}

// However many watches end at once and can't be opened anew, as while etcd has no leader, few of them ask after their holds at a time.
func TestNotOpened_NoStorm(t *testing.T) {
	play(t, func(s *scene) {
		const n = 100
		holds := s.holds("name", n)
		s.requireWatches(n)
		goesOn, asked := make(chan struct{}), 0
		var opens atomic.Bool
		s.f.Step = func(_ context.Context, what string) error {
			if what == "Range" {
				s.note(func() { asked++ })
				<-goesOn
			}
			return nil
		}
		s.f.Refuse = func(*fakeetcd.Watch) bool { return !opens.Load() }
		s.f.BreakWatches()
		s.f.Remove(holds[n-1].Key)
		<-time.After(etcd.HedgeMin / 2) // later each is sent again
		together := 0
		s.note(func() { together = asked })
		opens.Store(true)
		close(goesOn)
		<-time.After(10 * time.Second)
		require.LessOrEqual(s, together, maxReading)
		s.requireWatches(n)
		s.requireTold(holds[n-1])
	})
}

// If it is too late to give each hold a watch, nobody looks after those, and they are told so.
func TestSplitTooLate(t *testing.T) {
	play(t, func(s *scene) {
		s.refuseDirectory(1000, func(n int) {
			if n == 2 {
				s.note(func() { s.tooLate = true })
			}
		})
		holds := s.holds("dir/", maxSingles+3)
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.ElementsMatch(s, holds[maxSingles:], s.ended)
	})
}

// The last holds of a shared watch leave as it is about to be split, and others come: those have another watch.
func TestNothingToSplit(t *testing.T) {
	play(t, func(s *scene) {
		splits := false
		s.refuseDirectory(2, func(n int) { splits = n == 2 })
		next, verify := queue.Entry{Key: "dir/next/1c"}, s.Verify
		s.Verify = func(ctx context.Context, holds []queue.Entry, at int64) error {
			err := verify(ctx, holds, at)
			if len(holds) == 2 && splits {
				splits = false
				s.Unwatch(holds[0].Key)
				s.Unwatch(holds[1].Key)
				next.Rev = s.f.Write(next.Key)
				require.True(s, s.Watch(next.Key, next))
			}
			return err
		}
		s.holds("dir/", maxSingles+2)
		<-time.After(10 * time.Second)
		s.requireWatches(maxSingles + 1)
		require.NotZero(s, next.Rev)
		s.unwatch(next)
		s.requireWatches(maxSingles)
	})
}

// A waiter is found that is there before the watch, or comes when the watch is away, but not one that was here
// before or that is not excluded. The wait for it ends with its ctx, and with the session.
func TestAwaitWaiter(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Write("a/2c")
		q := s.hold("a")
		await := func(ctx context.Context, kinds ...keyspace.Kind) <-chan bool {
			found := make(chan bool, 1)
			go func() {
				found <- s.AwaitWaiter(ctx, "a", q.Rev, func(k keyspace.Kind) bool { return slices.Contains(kinds, k) })
			}()
			synctest.Wait()
			return found
		}
		requireNone := func(found <-chan bool) {
			s.Helper()
			synctest.Wait()
			require.Empty(s, found)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := await(ctx, keyspace.Exclusive, keyspace.Shared)
		writer := await(context.Background(), keyspace.Exclusive)
		s.requireWatches(3) // that of the hold too
		require.ElementsMatch(s, []string{"", "a/s", "a/g"}, []string{s.f.Watches()[0].To, s.f.Watches()[1].To, s.f.Watches()[2].To})
		cancel()
		require.False(s, <-ended)
		s.f.Write("a/r3c")
		s.f.Write("a/config")
		requireNone(writer)
		requireNone(await(context.Background(), keyspace.Exclusive))
		require.True(s, <-await(context.Background(), keyspace.Exclusive, keyspace.Shared))
		comes := sync.OnceFunc(func() { s.f.Write("a/3c") })
		s.f.Step = func(_ context.Context, what string) error {
			if what == "Watch" {
				comes()
			}
			return nil
		}
		requireNone(writer)
		s.f.BreakWatches()
		require.True(s, <-writer)
		s.f.Remove("a/3c")
		requireNone(await(context.Background(), keyspace.Exclusive))
		last := await(context.Background(), keyspace.Exclusive)
		s.end()
		require.False(s, <-last)
	})
}

// Refresh finds a waiter that a silent watch does not tell of. However many look for one, few read at a time.
func TestRefresh(t *testing.T) {
	play(t, func(s *scene) {
		const n = 50
		found := make(chan bool, n)
		for i := range n {
			name := fmt.Sprint("a", i)
			go func() { found <- s.AwaitWaiter(s.Ctx, name, 1, func(keyspace.Kind) bool { return true }) }()
		}
		s.requireWatches(n)
		reading, reads, most := 0, 0, 0
		s.f.Step = func(_ context.Context, what string) error {
			if what == "Range" {
				s.note(func() { reads++; reading++; most = max(most, reading) })
				<-time.After(time.Millisecond)
				s.note(func() { reading-- })
			}
			return nil
		}
		for range 2 {
			s.Refresh()
			<-time.After(time.Second)
		}
		require.Equal(t, 2*n, reads)
		require.Equal(t, maxReading, most)
		for i := range n {
			s.f.Write(fmt.Sprint("a", i, "/1c")) // that the fake does not tell of
		}
		synctest.Wait()
		require.Empty(t, found)
		s.Refresh()
		for range n {
			require.True(t, <-found)
		}
		s.requireWatches(0)
	})
}

// A waiter is found where no watch can be had: each time that no watch was opened, etcd is asked.
func TestAwaitWaiter_NoWatch(t *testing.T) {
	play(t, func(s *scene) {
		s.f.Refuse = func(*fakeetcd.Watch) bool { return true }
		found := make(chan bool, 1)
		go func() { found <- s.AwaitWaiter(s.Ctx, "a", 1, func(keyspace.Kind) bool { return true }) }()
		<-time.After(time.Minute)
		require.Empty(t, found)
		s.f.Write("a/1c")
		<-time.After(2 * etcd.RetryMax)
		require.Len(t, found, 1)
	})
}

// The client has no rights any more. Etcd is asked seldom for a hold, and for a waiter, and yet both are told of soon after the
// rights are back.
func TestRefused_NoStorm(t *testing.T) {
	play(t, func(s *scene) {
		q := s.hold("a")
		s.requireWatches(1)
		forbidden, asked := true, 0
		s.f.Refuse = func(*fakeetcd.Watch) (refused bool) {
			s.note(func() { refused = forbidden })
			return refused
		}
		s.f.Step = func(_ context.Context, what string) (err error) {
			if what == "Range" {
				s.note(func() {
					if asked++; forbidden {
						err = rpctypes.ErrGRPCPermissionDenied
					}
				})
			}
			return err
		}
		s.f.BreakWatches()
		found := make(chan bool, 1)
		go func() { found <- s.AwaitWaiter(s.Ctx, "a", q.Rev, func(keyspace.Kind) bool { return true }) }()
		<-time.After(5 * time.Minute)
		s.note(func() {
			require.Less(t, asked, 2*60)
			forbidden = false
		})
		s.f.Remove(q.Key)
		s.f.Write("a/2c")
		<-time.After(2 * refusedMax)
		require.Len(t, found, 1)
		s.requireTold(q)
		s.unwatch(q)
	})
}
