package etcdlock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

// A Multi that is given up hands over nothing of what it had: that somebody has removed a part of it may mean
// that others of the session are gone too. The one behind it looks at etcd first.
func TestMulti_GivenUpHandsNothingOver(t *testing.T) {
	onStage(t, func(st *stage) {
		remote := st.remote()
		st.lock(NewMutex(remote, "b").Lock)
		multi := st.ticket(NewMulti(st.s, Write("a"), Write("b")).Enqueue)
		hooks := &recorder{}
		st.s.config.hooks = []*Hooks{hooks.hooks()}
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

// A part may lose its lock between the read of all parts and the grant. Then the Multi is not granted, and the hooks are
// told nothing.
func TestMulti_NotHeldWithoutAPart_I1(t *testing.T) {
	onStage(t, func(st *stage) {
		remote := st.lock(NewMutex(st.remote(), "b").Lock)
		hooks := &recorder{}
		st.s.config.hooks = []*Hooks{hooks.hooks()}
		multi := st.ticket(NewMulti(st.s, Write("a"), Write("b")).Enqueue)
		require.True(t, multi.h.parts()[0].Granted())
		require.False(t, multi.h.becomeHeld(), "it waits for b")
		st.requireOut(multi)
		synctest.Wait() // for the hooks
		require.Equal(t, []string{"enqueued"}, hooks.stories())
		remote.Release()
		st.wait(multi).Release()
		synctest.Wait()
		require.Equal(t, []string{"enqueued granted released"}, hooks.stories())
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
