package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// multiNames are what the Multi of the scenes locks: the last one to read.
var multiNames = []string{"a", "b", "c"}

// multiQueues are who is before it. What belongs together is written by one txn.
var multiQueues = map[string][]string{
	"free":                      nil,
	"the first":                 {"a/1"},
	"the last":                  {"c/1"},
	"a reader of the last":      {"c/r1"},
	"all, by another Multi":     {"a/1 b/1 c/1"},
	"two Multis that overlap":   {"a/1 b/1", "b/2 c/2"},
	"one after the other":       {"a/1", "b/2", "c/3"},
	"one before the other":      {"c/1", "b/2", "a/3"},
	"a writer and readers":      {"a/1 a/r1", "a/r2", "b/r3"},
	"deep in one":               {"b/1", "b/2", "b/3", "b/4", "a/5"},
	"foreign keys":              {"a/x/1", "b/config", "b/1"},
	"a holder of its own":       {ownOf + "a"},
	"its own of all":            {ownOf + "a", ownOf + "b", ownOf + "c"},
	"its own and another":       {ownOf + "a", "b/1"},
	"its own, and a Multi":      {ownOf + "b", "a/1 c/1"},
	"its own behind another":    {"a/1", ownOf + "b"},
	"a fenced one of its own":   {ownFencedOf + "b"},
	"its own after another one": {"b/1", ownOf + "b"},
}

// ownOf and ownFencedOf stand for a mutex that the Multi's own session has, or waits for, with its fence in
// use or not.
const ownOf, ownFencedOf = "own ", "fenced "

// multiScene is one acquisition on the fake.
type multiScene struct {
	f          *fakeEtcd
	own        *Session
	cancel     context.CancelFunc
	again      error // at the next step
	pinned     error // of the next pinned read
	revoked    atomic.Bool
	interfered bool // somebody else may have removed keys of its own
	early      bool // and before it was entitled to all
	before     []queue.Entry
	over       sync.Map // those of the session that were released without a fence
	releases   map[string]func()
}

// mine are the keys of the acquisition that are there. The caller holds f.mu.
func (s *multiScene) mineLocked() (mine []queue.Entry) {
	for _, name := range multiNames {
		for _, q := range s.f.entries(name + "/") {
			if keyspace.LeaseOf(name, q.Key) == "f" && !slices.Contains(s.before, q) {
				mine = append(mine, q)
			}
		}
	}
	return mine
}

func (s *multiScene) takeKeys(names ...string) error {
	s.interfered = true
	mine := s.mineLocked()
	s.early = len(mine) > 0 && !s.entitledLocked(mine)
	for _, q := range mine {
		if slices.Contains(names, q.Key[:1]) {
			s.f.Remove(q.Key)
		}
	}
	return nil
}

var multiMishaps = map[string]func(*multiScene) error{
	"nothing":                       func(*multiScene) error { return nil },
	"ctx ends":                      func(s *multiScene) error { s.cancel(); return nil },
	"session ends":                  func(s *multiScene) error { s.own.lease.End(ErrSessionClosed, "test"); return nil },
	"the first key is deleted":      func(s *multiScene) error { return s.takeKeys("a") },
	"the second key is deleted":     func(s *multiScene) error { return s.takeKeys("b") },
	"the last key is deleted":       func(s *multiScene) error { return s.takeKeys("c") },
	"the lease is revoked":          func(s *multiScene) error { s.revoked.Store(true); return s.takeKeys(multiNames...) },
	"the watches break":             func(s *multiScene) error { s.f.BreakWatches(); return nil },
	"the reply is lost":             func(*multiScene) error { return harness.ErrLostReply },
	"the reply is lost twice":       func(s *multiScene) error { s.again = harness.ErrLostReply; return harness.ErrLostReply },
	"the reply is lost, ctx ends":   func(s *multiScene) error { s.cancel(); return harness.ErrLostReply },
	"the revision is compacted":     func(s *multiScene) error { s.pinned = rpctypes.ErrGRPCCompacted; return nil },
	"reads by a member that lags":   func(s *multiScene) error { s.pinned = rpctypes.ErrGRPCFutureRev; return nil },
	"watches by a member that lags": func(s *multiScene) error { s.f.Lag(6); return nil },
}

var multiUnhurt = []string{"nothing", "the revision is compacted", "reads by a member that lags", "watches by a member that lags"}

// leave lets one of those before leave.
func (s *multiScene) leave(who string) {
	if release, own := s.releases[who]; own {
		release()
		return
	}
	s.f.Remove(strings.Fields(who)...)
}

// join lets one of those before take its place.
func (s *multiScene) join(t *testing.T, who string) {
	name, own := strings.CutPrefix(who, ownOf)
	name, fenced := strings.CutPrefix(name, ownFencedOf)
	if !own && !fenced {
		s.f.writeAll(who)
		return
	}
	tk, err := NewMutex(s.own, name).Enqueue(context.Background())
	require.NoError(t, err)
	synctest.Wait()
	s.before = append(s.before, queue.Entry{Key: tk.h.Key(), Rev: tk.h.rev})
	s.releases[who] = sync.OnceFunc(func() {
		go func() { // it may have to wait for one before it
			h, err := tk.Wait(context.Background())
			if err != nil {
				return
			}
			if fenced {
				h.IsOwner()
			} else {
				s.over.Store(h.Key(), h.Token())
			}
			h.Release()
		}()
	})
}

// entitled reports whether each of the keys has its lock, in the queues as they are.
func (s *multiScene) entitled(mine []queue.Entry) bool {
	return s.entitledLocked(mine)
}

func (s *multiScene) entitledLocked(mine []queue.Entry) bool {
	for _, m := range mine {
		name := m.Key[:1]
		for _, q := range s.f.entries(name + "/") {
			kind, own := keyspace.KindOf(name, q.Key), keyspace.KindOf(name, m.Key)
			over, left := s.over.Load(q.Key)
			if q.Rev < m.Rev && (!left || over != q.Rev) && (kind == keyspace.Exclusive || kind == keyspace.Shared && own == keyspace.Exclusive) {
				return false
			}
		}
	}
	return true
}

// TestMulti_Interleavings: whoever is before, whatever happens at any step of the acquisition and whenever
// the others leave, it is granted only when it is entitled in all of its queues at once, or fails for a reason;
// and nothing of it stays behind.
func TestMulti_Interleavings(t *testing.T) {
	for queueName, others := range multiQueues {
		t.Run(queueName, func(t *testing.T) {
			t.Parallel()
			var scenes sample.Scenes
			defer scenes.Log(t)
			for _, kind := range []string{"Lock", "Ticket", "Try"} {
				for mishap := range multiMishaps {
					if harness.Race && rand.N(3) > 0 {
						continue // without the detector all of them are played
					}
					eachStep(&scenes, len(others) == 0, 8, 16, func(at int) (reached bool) {
						for leaveAt := at - 3; leaveAt <= at+4; leaveAt++ {
							if len(others) == 0 && leaveAt != at {
								continue
							}
							for _, lag := range []int{0, 3} {
								switch {
								case len(others) < 2 && lag > 0:
									continue
								case (leaveAt != at || lag > 0) && (rand.N(40) > 0 || !scenes.Plays(4)):
									continue // all of them take minutes
								}
								ok := true
								synctest.Test(t, func(t *testing.T) {
									name := fmt.Sprintf("%s, %s at step %d, the others leave at %d, the last %d later", kind, mishap, at, leaveAt, lag)
									reached = playMulti(t, name, kind, others, mishap, at, leaveAt, lag) || reached
									ok = !t.Failed()
								})
								if !ok {
									t.FailNow()
								}
							}
						}
						return reached
					})
				}
			}
		})
	}
}

// playMulti reports whether the step of the mishap was reached.
func playMulti(t *testing.T, name, kind string, others []string, mishap string, at, leaveAt, lag int) (reached bool) {
	f := newFakeEtcd()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), callers{}, true))
	defer cancel()
	s := &multiScene{f: f, own: f.session(15), cancel: cancel, releases: map[string]func(){}}
	s.own.lease.KeepAlive = func(context.Context) (int64, error) {
		if s.revoked.Load() {
			return 0, nil
		}
		return 10, nil
	}
	for _, who := range others {
		s.join(t, who)
	}
	hooks := &recorder{}
	s.own.hooks = []*Hooks{hooks.hooks()}
	var mu sync.Mutex
	n := -1
	aside := false // the mishap was at a step of another goroutine
	f.Step = func(ctx context.Context, what string) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		if n == leaveAt && lag > 0 {
			for _, who := range others[:len(others)-1] {
				s.leave(who)
			}
		}
		if n == leaveAt+lag {
			for _, who := range others {
				s.leave(who)
			}
		}
		if again := s.again; again != nil {
			s.again = nil
			return again
		}
		if err := s.pinned; err != nil && what == "pinned Range" {
			s.pinned = nil
			return err
		}
		if n == at {
			reached = true
			aside = ctx.Value(callers{}) == nil
			err := multiMishaps[mishap](s)
			if err != nil && strings.HasPrefix(what, "Watch") {
				f.BreakWatches()
			}
			return err
		}
		return nil
	}
	time.AfterFunc(100*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, who := range others {
			s.leave(who) // at last
		}
	})
	m := NewMulti(s.own, Write("a"), Write("b"), Read("c"))
	var h *Held
	var err error
	switch kind {
	case "Lock":
		h, err = m.Lock(ctx)
	case "Try":
		h, err = m.TryLock(ctx)
	default:
		var tk *Ticket
		if tk, err = m.Enqueue(ctx); err == nil {
			if h, err = tk.Wait(ctx); err != nil {
				_ = tk.Cancel(context.WithoutCancel(ctx))
			}
		}
	}

	mine := s.mineLocked()
	mu.Lock() // a step of another one's release may be the mishap, also now
	early, interfered, aside := s.early, s.interfered, aside
	mu.Unlock()

	switch {
	case err == nil && ctx.Err() != nil && kind != "Ticket" && !aside:
		t.Errorf("%s: granted although ctx had ended", name)
		fallthrough
	case err == nil:
		if early {
			t.Errorf("%s: granted after a part of it had gone", name)
		}
		if !interfered && len(mine) != len(multiNames) {
			t.Errorf("%s: granted with %v only", name, mine)
		}
		for _, q := range mine {
			if q.Rev != h.Token() || !slices.Contains(h.Keys(), q.Key) {
				t.Errorf("%s: %v is not of the token %d", name, q, h.Token())
			}
		}
		if !s.entitled(mine) {
			t.Errorf("%s: granted at %d in %v, %v and %v", name, h.Token(), f.entries("a/"), f.entries("b/"), f.entries("c/"))
		}
		checkHold(ctx, t, name, h, len(mine) == len(multiNames), slices.Contains(multiUnhurt, mishap))
	case kind != "Try" || !errors.Is(err, ErrLocked):
		checkRefusal(t, name, s.own, err, interfered)
	}
	for _, who := range others {
		s.leave(who)
	}
	<-time.After(2 * time.Minute) // for all settling
	if s.own.Err() == nil {

		left := s.mineLocked()

		if len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
		s.own.mu.Lock()
		if s.own.keys.InUse() || len(s.own.lists) > 0 {
			t.Errorf("%s: keys are left in use: %v; lists: %v", name, s.own.keys.InUse(), s.own.lists)
		}
		s.own.mu.Unlock()
	}
	stories := slices.DeleteFunc(hooks.stories(), func(story string) bool { return !strings.Contains(story, "a, b, c") && story == "" })
	if len(stories) != 1 || !whole.MatchString(stories[0]) || kind != "Ticket" && (err == nil) != strings.Contains(stories[0], "granted") {
		t.Errorf("%s: the hooks were told %q of %v", name, stories, err)
	}
	s.own.lease.End(ErrSessionClosed, "test")
	s.own.lease.NotFound()
	return reached
}

// A Multi that is given up hands over nothing of what it had: that somebody has removed a part of it may mean
// that others of the session are gone too. The one behind it looks at etcd first.
func TestMulti_GivenUpHandsNothingOver(t *testing.T) {
	onStage(t, func(st *stage) {
		remote := st.remote()
		st.lock(NewMutex(remote, "b").Lock)
		multi := st.ticket(NewMulti(st.s, Write("a"), Write("b")).Enqueue)
		hooks := &recorder{}
		st.s.hooks = []*Hooks{hooks.hooks()}
		next := st.ticket(st.mutex().Enqueue)
		st.requireOut(multi, next)
		st.f.Remove(multi.h.Keys()[1], next.h.Key())
		_, err := multi.Wait(st.Context())
		require.ErrorIs(t, err, ErrLost)
		_, err = next.Wait(st.Context())
		require.ErrorIs(t, err, ErrLost)
		synctest.Wait() // for the hooks
		require.Equal(t, []string{"enqueued abandoned:lost"}, hooks.stories())
		st.lock(st.mutex().Lock)
	})
}

// The parts that a Multi has while it waits for others are in the way of its own session too, and go by
// hand-over when it gives them back.
func TestMulti_HandOver(t *testing.T) {
	onStage(t, func(st *stage) {
		a, b := st.lock(st.mutex().Lock), st.lock(NewMutex(st.s, "b").Lock)
		multi := st.ticket(NewMulti(st.s, Write("a"), Write("b")).Enqueue)
		nextA, nextB := st.ticket(st.mutex().Enqueue), st.ticket(NewMutex(st.s, "b").Enqueue)
		a.Release()
		st.requireOut(multi, nextA, nextB)
		b.Release()
		h := st.wait(multi)
		st.requireOut(nextA, nextB)
		goOn := st.holdBack()
		h.Release()
		st.wait(nextA).Release()
		st.wait(nextB).Release()
		goOn()
	})
}

// The release of a Multi tells each list whether its own part was there. Where somebody has removed that, the
// session looks for all that wait there; where not, it asks nothing.
func TestMulti_ReleaseFindsAPartGone(t *testing.T) {
	names := []string{"a", "b"}
	for gone := -1; gone < len(names); gone++ {
		onStage(t, func(st *stage) {
			multi := st.lock(NewMulti(st.s, writes(names...)...).Lock)
			next, after := map[string]*Ticket{}, map[string]*Ticket{}
			for _, name := range names {
				next[name], after[name] = st.ticket(NewMutex(st.s, name).Enqueue), st.ticket(NewMutex(st.s, name).Enqueue)
			}
			if gone >= 0 {
				st.f.Remove(multi.Keys()[gone], after[names[gone]].h.Key())
			}
			began, reads, wanted := time.Now(), 0, 0
			st.change(func() {
				st.seen = func(what string) {
					if strings.HasSuffix(what, "Range") {
						reads++
					}
				}
			})
			multi.Release()
			for i, name := range names {
				h := st.wait(next[name])
				if i != gone {
					h.Release()
					st.wait(after[name]).Release()
					continue
				}
				wanted = 1
				_, err := after[name].Wait(st.Context())
				require.ErrorIs(st, err, ErrLost, "while the one before it has the lock")
				h.Release()
			}
			require.Zero(st, time.Since(began), "nothing was found by waiting")
			st.change(func() { require.Equal(st, wanted, reads) })
		})
	}
}

// Each part of a Multi is looked after: by a watch of its own, by that of its directory, and by its own again where
// etcd refuses that. All of them end with the hold.
func TestMulti_EachPartIsWatched(t *testing.T) {
	for part := range 3 {
		for _, many := range []bool{false, true} {
			for _, refused := range []bool{false, true} {
				holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
					f.Refuse = func(w *fakeetcd.Watch) bool { return refused && w.From == "dir/" }
					if many {
						watchedHolds(t, s, "dir", singleHoldWatches)
					}
					synctest.Wait()
					before := len(f.Watches())
					m := NewMulti(s, Write("dir/a"), Read("dir/b"), Write("dir/c"))
					h, err := m.Lock(t.Context())
					require.NoError(t, err)
					h.Context()
					<-time.After(10 * time.Second)
					require.NoError(t, h.Err())
					watches := 3
					if many && !refused {
						watches = 1
					}
					require.Len(t, f.Watches(), before+watches)
					require.NoError(t, h.Unlock(t.Context()))
					synctest.Wait()
					require.Len(t, f.Watches(), before)

					h, err = m.Lock(t.Context())
					require.NoError(t, err)
					h.Context()
					<-time.After(10 * time.Second)
					f.Remove(h.Keys()[part])
					requireLost(t, h)
					synctest.Wait()
					require.Len(t, f.Watches(), before)
				})
			}
		}
	}
}

// A hold that can't be watched, since its session ends, is told so at once: nobody would do it later.
func TestMulti_NoWatchInASessionThatEnds(t *testing.T) {
	holdScene(t, func(t *testing.T, _ *fakeEtcd, s *Session) {
		h, err := NewMulti(s, Write("a"), Read("b")).Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.Check(t.Context()))
		s.lease.End(ErrSessionClosed, "test")
		s.lease.NotFound()
		require.True(t, isClosed(h.Done()))
		require.ErrorIs(t, h.Err(), ErrSessionClosed)
	})
	// While the watch that it shares with others is split.
	for range 10 { // the parts come in any order
		holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
			refused := 0
			f.Refuse = func(w *fakeetcd.Watch) bool {
				if w.From == "dir/" {
					if refused++; refused == 2 {
						s.holdWatches.Go = func(func(context.Context)) bool { return false } // as if Close had begun
					}
				}
				return w.From == "dir/"
			}
			watchedHolds(t, s, "dir", singleHoldWatches)
			h, err := NewMulti(s, Write("dir/a"), Read("dir/b"), Write("dir/c")).Lock(t.Context())
			require.NoError(t, err)
			h.Context()
			<-time.After(10 * time.Second)
			require.True(t, isClosed(h.Done()))
			require.ErrorIs(t, h.Err(), ErrLost)
		})
	}
}

// A Multi waits for its parts one after the other. A reader of the session that is behind a part which it has not come
// to yet gets its lock as soon as that is free, and not when the Multi has got the parts before.
func TestMulti_NobodyWaitsForAPartBeforeItsTurn(t *testing.T) {
	for name, behind := range map[string]func(*RWMutex, context.Context) (*Held, error){"Lock": (*RWMutex).Lock, "RLock": (*RWMutex).RLock} {
		for _, multis := range []int{1, 3} {
			holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
				f.Write("a/1")
				f.Write("b/1")
				var waiting sync.WaitGroup
				for range multis {
					waiting.Go(func() {
						h, err := NewMulti(s, Write("a"), Read("b")).Lock(t.Context())
						assert.NoError(t, err)
						h.Release()
					})
					synctest.Wait()
				}
				got := make(chan struct{})
				waiting.Go(func() {
					h, err := behind(NewRWMutex(s, "b"), t.Context())
					assert.NoError(t, err)
					close(got)
					h.Release()
				})
				synctest.Wait()
				f.Remove("b/1")
				<-time.After(time.Second)
				early := isClosed(got)
				f.Remove("a/1")
				waiting.Wait()
				require.Equal(t, name == "RLock", early, "%s behind %d", name, multis)
			})
		}
	}
}
