package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/removal"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Who gets in while the request of the holder before is on its way to etcd, or its reply on the way
// back. All of it runs on the fake, which holds requests back.

// stage is a session on the fake, and what of it is held back.
type stage struct {
	*testing.T
	f  *fakeEtcd
	s  *Session
	mu sync.Mutex
	// before and after hold back requests that write, before they are carried out and after.
	before, after chan struct{}
	// lose makes the next reply of such a request get lost.
	lose bool
	seen func(what string) // is told of each step
	ends []*Session        // with the play
}

// change changes what is held back.
func (st *stage) change(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
}

// onStage runs play with nothing held back.
func onStage(t *testing.T, play func(*stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := &stage{T: t, f: newFakeEtcd()}
		st.s = st.f.session(5)
		st.f.Step = func(ctx context.Context, what string) error {
			st.mu.Lock()
			ch := map[string]chan struct{}{"Txn": st.before, "Txn.": st.after}[what]
			if st.seen != nil {
				st.seen(what)
			}
			st.mu.Unlock()
			if ch != nil {
				select {
				case <-ch:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			st.mu.Lock()
			defer st.mu.Unlock()
			if what == "Txn." && st.lose {
				st.lose = false
				return errLostReply
			}
			return nil
		}
		st.ends = []*Session{st.s}
		defer func() {
			for _, s := range st.ends {
				s.lease.End(ErrSessionClosed, "test")
				s.lease.NotFound()
			}
		}()
		play(st)
	})
}

// requireForgotten requires that the session forgets its lists and watches when they are not used for a while.
func (st *stage) requireForgotten() {
	<-time.After(time.Second / 2)
	synctest.Wait()
	require.Empty(st, st.s.lists)
	require.Empty(st, st.f.Watches())
}

// remote is another session.
func (st *stage) remote() *Session {
	s := st.f.session(6)
	st.ends = append(st.ends, s)
	return s
}

func (st *stage) holdBack() (goOn func()) {
	held := make(chan struct{})
	st.change(func() { st.before = held })
	return func() {
		st.change(func() { st.before = nil })
		close(held)
		synctest.Wait()
	}
}

// refuse answers the next requests that write with an error.
func (st *stage) refuse(err error, times int32) {
	var refused atomic.Int32
	step := st.f.Step
	st.f.Step = func(ctx context.Context, what string) error {
		if what == "Txn" && refused.Add(1) <= times {
			return err
		}
		return step(ctx, what)
	}
}

// countTxns counts the requests that write, from now on.
func (st *stage) countTxns() *int {
	n := new(int)
	st.change(func() {
		st.seen = func(what string) {
			if what == "Txn" {
				*n++
			}
		}
	})
	return n
}

func (st *stage) ticket(enqueue func(context.Context) (*Ticket, error)) *Ticket {
	st.Helper()
	tk, err := enqueue(st.Context())
	require.NoError(st, err)
	synctest.Wait()
	return tk
}

func (st *stage) wait(tk *Ticket) *Held {
	st.Helper()
	synctest.Wait()
	require.True(st, isClosed(tk.Done()), "it is in")
	h, err := tk.Wait(st.Context())
	require.NoError(st, err)
	return h
}

func (st *stage) requireOut(tickets ...*Ticket) {
	st.Helper()
	synctest.Wait()
	for _, tk := range tickets {
		require.False(st, isClosed(tk.Done()), "it is not in")
	}
}

func (st *stage) mutex() *Mutex { return NewMutex(st.s, "a") }
func (st *stage) rw() *RWMutex  { return NewRWMutex(st.s, "a") }

func (st *stage) lock(lock func(context.Context) (*Held, error)) *Held {
	st.Helper()
	h, err := lock(st.Context())
	require.NoError(st, err)
	return h
}

// With nothing of the fence in use the next one of the session is in at once, and the one after it, in
// the order of the queue and with tokens that grow. For others nothing has changed: they wait for all.
func TestHandOver_AtOnce(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		first, second := st.ticket(st.mutex().Enqueue), st.ticket(st.mutex().Enqueue)
		remote := st.remote()
		other := st.ticket(NewMutex(remote, "a").Enqueue)
		third := st.ticket(st.mutex().Enqueue)
		goOn := st.holdBack()
		start := time.Now()
		h.Release()
		h1 := st.wait(first)
		st.requireOut(second, other, third)
		require.Greater(st, h1.Token(), h.Token())
		require.True(st, h1.Valid())
		h1.Release()
		h2 := st.wait(second)
		require.Greater(st, h2.Token(), h1.Token())
		require.Zero(st, time.Since(start))
		st.requireOut(other, third)
		h2.Release()
		st.requireOut(other, third)
		goOn()
		ho := st.wait(other)
		st.requireOut(third)
		ho.Release()
		st.wait(third).Release()
		st.requireForgotten()
		require.Empty(st, st.f.entries("a/"))
	})
}

// What a guard of the former holder can still do comes before the next one is in: it waits for etcd's
// word that the entry is gone, which it has from the release itself.
func TestHandOver_FenceInUse(t *testing.T) {
	for name, use := range map[string]func(st *stage, h *Held){
		"IsOwner was given out": func(st *stage, h *Held) { h.IsOwner() },
		"Txn was made":          func(st *stage, h *Held) { h.Txn(st.Context()) },
		"a Txn is in flight": func(st *stage, h *Held) {
			st.change(func() { st.after = make(chan struct{}) })
			go func() { _, _ = h.Txn(st.Context()).Then(clientv3.OpPut("x", "")).Commit() }()
			synctest.Wait()
			st.change(func() { st.after = nil })
		},
		"a Txn has an unknown outcome": func(st *stage, h *Held) {
			st.change(func() { st.lose = true })
			_, err := h.Txn(st.Context()).Then(clientv3.OpPut("x", "")).Commit()
			require.ErrorIs(st, err, ErrOutcomeUnknown)
		},
		"downgraded": func(st *stage, h *Held) { require.NoError(st, h.Downgrade(st.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				h := st.lock(st.rw().Lock)
				next := st.ticket(st.rw().Enqueue)
				use(st, h)
				goOn := st.holdBack()
				h.Release()
				st.requireOut(next)
				reads := 0
				st.change(func() {
					st.seen = func(what string) {
						if what == "Range" || what == "pinned Range" || what == "Watch" {
							reads++
						}
					}
				})
				goOn()
				st.wait(next).Release()
				require.Zero(st, reads, "it needs no watch and no read for that")
			})
		})
	}
}

// A release that may have found the entry gone says nothing about those behind. They look first, or its
// reply has told that they are there.
func TestHandOver_ReleaseInDoubt(t *testing.T) {
	for _, removed := range []bool{false, true} {
		onStage(t, func(st *stage) {
			h := st.lock(st.mutex().Lock)
			h.IsOwner()
			next := st.ticket(st.mutex().Enqueue)
			if removed {
				st.f.Remove(next.h.Key())
			}
			st.change(func() { st.lose = true })
			require.NoError(st, h.Unlock(st.Context()))
			got, err := next.Wait(st.Context())
			if removed {
				require.ErrorIs(st, err, ErrLost)
				return
			}
			require.NoError(st, err)
			require.NoError(st, got.Unlock(st.Context()))
		})
	}
	// The same where nobody knows how much of the entry etcd has yet to write.
	onStage(t, func(st *stage) {
		st.change(func() { st.lose = true })
		h := st.lock(st.mutex().Lock)
		next := st.ticket(st.mutex().Enqueue)
		goOn := st.holdBack()
		h.Release()
		st.requireOut(next)
		goOn()
		st.wait(next).Release()
	})
}

// An entry of another session that is in between, exclusive or a reader, of this process or not, keeps its turn.
func TestHandOver_OthersBetween(t *testing.T) {
	for _, key := range []string{"a/7", "a/r7", "a/5-9"} { // the last one is another user's of the lease
		t.Run(key, func(t *testing.T) {
			onStage(t, func(st *stage) {
				h := st.lock(st.mutex().Lock)
				st.f.Write(key)
				next, after := st.ticket(st.mutex().Enqueue), st.ticket(st.mutex().Enqueue)
				goOn := st.holdBack()
				h.Release()
				st.requireOut(next, after)
				goOn()
				st.requireOut(next, after)
				st.f.Remove(key)
				h2 := st.wait(next)
				st.requireOut(after)
				h2.Release()
				st.wait(after).Release()
			})
		})
	}
}

// An entry that somebody has removed learns it with the reply to the release before it at the latest,
// and those behind it go on.
func TestHandOver_EntryRemoved(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		next, after := st.ticket(st.mutex().Enqueue), st.ticket(st.mutex().Enqueue)
		st.f.Remove(next.h.Key())
		goOn := st.holdBack()
		h.Release()
		got := st.wait(next)
		require.NoError(st, got.Err())
		st.requireOut(after)
		goOn()
		require.ErrorIs(st, got.Err(), ErrLost)
		<-time.After(time.Second)
		st.wait(after).Release()
	})
	// The holder's own: it is told by its release, and the others of the session are looked for.
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		h.IsOwner()
		next, after := st.ticket(st.mutex().Enqueue), st.ticket(st.mutex().Enqueue)
		st.f.Remove(h.Key())
		st.f.Remove(next.h.Key())
		require.ErrorIs(st, h.Unlock(st.Context()), ErrLost)
		_, err := next.Wait(st.Context())
		require.ErrorIs(st, err, ErrLost)
		<-time.After(time.Second)
		st.wait(after).Release()
	})
	// A holder's that stays: the next one is told of that within an instant, and is in.
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		next := st.ticket(st.mutex().Enqueue)
		<-time.After(time.Second)
		st.f.Remove(h.Key())
		<-time.After(500 * time.Millisecond)
		require.ErrorIs(st, h.Err(), ErrLost)
		st.wait(next).Release()
	})
	// One that waits behind a holder of the session is told within an instant too.
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		next := st.ticket(st.mutex().Enqueue)
		<-time.After(time.Second)
		start := time.Now()
		st.f.Remove(next.h.Key())
		_, err := next.Wait(st.Context())
		require.ErrorIs(st, err, ErrLost)
		require.Less(st, time.Since(start), 500*time.Millisecond)
		h.Release()
	})
}

// A hold that is lost hands nothing over: its lease may be gone. Nor does a session that has ended.
func TestHandOver_Lost(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		next := st.ticket(st.mutex().Enqueue)
		st.f.Remove(h.Key(), next.h.Key()) // the lease is revoked
		st.s.lease.KeepAlive = func(context.Context) (int64, error) { return 0, nil }
		require.ErrorIs(st, h.Check(st.Context()), ErrLost)
		_, err := next.Wait(st.Context())
		require.ErrorIs(st, err, ErrSessionExpired)
	})
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		next := st.ticket(st.mutex().Enqueue)
		st.s.lease.End(ErrSessionExpired, "test")
		h.Release()
		_, err := next.Wait(st.Context())
		require.ErrorIs(st, err, ErrSessionExpired)
	})
}

// Readers with no writer between them are in together, and the writer behind them when all have left.
func TestHandOver_ReadersAndWriters(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.rw().Lock)
		r1, r2 := st.ticket(st.rw().REnqueue), st.ticket(st.rw().REnqueue)
		w := st.ticket(st.rw().Enqueue)
		r3 := st.ticket(st.rw().REnqueue)
		goOn := st.holdBack()
		h.Release()
		h1, h2 := st.wait(r1), st.wait(r2)
		st.requireOut(w, r3)
		h1.Release()
		st.requireOut(w, r3)
		h2.Release()
		hw := st.wait(w)
		st.requireOut(r3)
		hw.Release()
		st.wait(r3).Release()
		goOn()
		require.Empty(st, st.f.entries("a/"))
	})
	// A downgrade lets those readers in that are next, and only when etcd has confirmed it.
	onStage(t, func(st *stage) {
		h := st.lock(st.rw().Lock)
		r1, r2 := st.ticket(st.rw().REnqueue), st.ticket(st.rw().REnqueue)
		w := st.ticket(st.rw().Enqueue)
		st.f.Remove(r2.h.Key())
		goOn := st.holdBack()
		done := make(chan error)
		go func() { done <- h.Downgrade(st.Context()) }()
		st.requireOut(r1, r2, w)
		goOn()
		require.NoError(st, <-done)
		h1 := st.wait(r1)
		_, err := r2.Wait(st.Context())
		require.ErrorIs(st, err, ErrLost, "it was looked for")
		st.requireOut(w)
		h1.Release()
		st.requireOut(w)
		h.Release()
		st.wait(w).Release()
	})
}

// Try does not stumble over an entry of its own session that is on its way out, and an enqueue takes
// another key; but nobody is passed.
func TestHandOver_Try(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		goOn := st.holdBack()
		h.Release()
		got := make(chan *Held, 1)
		go func() {
			h, err := st.mutex().TryLock(st.Context())
			require.NoError(st, err)
			got <- h
		}()
		synctest.Wait()
		require.Empty(st, got)
		goOn()
		h = <-got
		waiter := st.ticket(st.mutex().Enqueue)
		goOn = st.holdBack()
		h.Release()
		h = st.wait(waiter)
		goOn()
		_, err := st.mutex().TryLock(st.Context())
		require.ErrorIs(st, err, ErrLocked)
		h.Release()
	})
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		_ = st.holdBack()
		h.Release()
		synctest.Wait()
		st.change(func() { st.before = nil }) // for those that come later
		h2 := st.lock(st.mutex().Lock)
		require.Equal(st, []queue.Entry{{Key: "a/5", Rev: h.Token()}, {Key: "a/5-1", Rev: h2.Token()}}, st.f.entries("a/"))
		h2.Release()
	})
}

// A reader of the session has the lock, since a writer of the session has left, or has given up behind the reader. While that
// writer's key is on its way out, a Try for reading waits for the removal: no writer has the lock, or waits for it. A Try for
// writing does not wait.
func TestHandOver_TryBesideAReader(t *testing.T) {
	for name, begin := range map[string]func(*stage, *RWMutex) (reader *Held, leave func()){
		"the writer has left": func(st *stage, rw *RWMutex) (*Held, func()) {
			w := st.lock(rw.Lock)
			tk := st.ticket(rw.REnqueue)
			goOn := st.holdBack()
			w.Release()
			return st.wait(tk), goOn
		},
		"the writer has given up": func(st *stage, rw *RWMutex) (*Held, func()) {
			r := st.lock(rw.RLock)
			tk := st.ticket(rw.Enqueue)
			goOn := st.holdBack()
			go func() { _ = tk.Cancel(st.Context()) }()
			return r, goOn
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				rw := st.rw()
				r, goOn := begin(st, rw)
				synctest.Wait()
				st.change(func() { st.before = nil }) // for those that come later
				got := make(chan error, 1)
				go func() {
					h, err := rw.TryRLock(st.Context())
					if got <- err; err == nil {
						h.Release()
					}
				}()
				synctest.Wait()
				require.Empty(st, got)
				_, err := rw.TryLock(st.Context())
				require.ErrorIs(st, err, ErrLocked)
				goOn()
				require.NoError(st, <-got)
				synctest.Wait()
				h, err := rw.TryRLock(st.Context())
				require.NoError(st, err, "nothing is on its way")
				h.Release()
				r.Release()
				synctest.Wait()
			})
		})
	}
}

// A Try whose txn was on its way when the holder of its session left has the lock, since etcd has found the
// queue empty: the reply to that release may be late.
func TestHandOver_TryBehindALateRelease(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.rw().Lock)
		h.IsOwner()
		goOn := st.holdBack()
		got := make(chan *Held, 1)
		go func() {
			h, err := st.rw().TryRLock(st.Context())
			assert.NoError(st, err)
			got <- h
		}()
		synctest.Wait()
		late := make(chan struct{})
		st.change(func() { st.before, st.after = nil, late })
		h.Release()
		synctest.Wait()
		require.Empty(st, st.f.entries("a/"))
		st.change(func() { st.after = nil })
		goOn()
		reader := <-got
		require.NotNil(st, reader)
		require.True(st, reader.Valid())
		close(late)
		synctest.Wait()
		require.True(st, reader.Valid())
		reader.Release()
	})
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// What is asked about a hold ends with its session, and with the hold alone when that is known to be lost: also
// on a member that hangs, and with a ctx that never ends.
func TestFault_I8_RequestsEndWithTheHold(t *testing.T) {
	for what, ask := range map[string]func(h *Held) error{
		"Txn": func(h *Held) error {
			_, err := h.Txn(context.Background()).Then(clientv3.OpPut("x", "")).Commit()
			return err
		},
		"Check":     func(h *Held) error { return h.Check(context.Background()) },
		"Downgrade": func(h *Held) error { return h.Downgrade(context.Background()) },
	} {
		for how, end := range map[string]func(st *stage, h *Held){
			"session": func(st *stage, _ *Held) { st.s.lease.End(ErrSessionExpired, "test") },
			"hold":    func(st *stage, h *Held) { require.ErrorIs(st, h.markLost(h.Key()), ErrLost) },
		} {
			t.Run(what+" with the "+how, func(t *testing.T) {
				onStage(t, func(st *stage) {
					h := st.lock(NewRWMutex(st.s, "a").Lock)
					hang := make(chan struct{})
					st.f.Step = func(ctx context.Context, _ string) error {
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-hang:
							return nil
						}
					}
					done := make(chan error)
					go func() { done <- ask(h) }()
					synctest.Wait()
					end(st, h)
					select {
					case err := <-done:
						require.ErrorIs(st, err, ErrLost)
						require.Equal(st, what == "Txn", errors.Is(err, ErrOutcomeUnknown), "what was sent may be carried out")
					case <-time.After(time.Minute):
						require.Fail(st, "it goes on")
					}
					close(hang)
				})
			})
		}
	}
}

// offer gives a hold back, as Release does, and leaves its removal to the next txn that writes an entry.
func (st *stage) offer(h *Held) *removal.Leaving {
	st.Helper()
	l, err := h.beginRelease()
	require.NoError(st, err)
	return l
}

// The removal of a waiter that is given up waits for no other request of its session: another session may be next behind it.
func TestAbandon_BesideARequestThatHangs(t *testing.T) {
	onStage(t, func(st *stage) {
		others := NewMutex(st.remote(), "a")
		h := st.lock(others.Lock)
		ctx, cancel := context.WithCancel(st.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := st.mutex().Lock(ctx)
			ended <- err
		}()
		synctest.Wait()
		next := st.ticket(others.Enqueue)
		goOn := st.holdBack()
		go func() { _, _ = st.mutex().Enqueue(st.Context()) }()
		synctest.Wait()
		st.change(func() { st.before = nil }) // what comes now passes it
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		synctest.Wait()
		require.NoError(t, h.Unlock(st.Context()))
		h = st.wait(next)
		goOn()
		require.NoError(t, h.Unlock(st.Context()))
	})
}

// A lock that is taken again at once costs one commit for the release and the acquisition, if the release is not
// on its way yet. Others see nothing but two entries that follow each other.
func TestRelease_WithTheNextLock(t *testing.T) {
	for name, ways := range map[string][2]func(*stage) func(context.Context) (*Held, error){
		"mutex":               {func(st *stage) func(context.Context) (*Held, error) { return st.mutex().Lock }, func(st *stage) func(context.Context) (*Held, error) { return st.mutex().Lock }},
		"writer, then reader": {func(st *stage) func(context.Context) (*Held, error) { return st.rw().Lock }, func(st *stage) func(context.Context) (*Held, error) { return st.rw().RLock }},
		"reader, then writer": {func(st *stage) func(context.Context) (*Held, error) { return st.rw().RLock }, func(st *stage) func(context.Context) (*Held, error) { return st.rw().Lock }},
		"multi, then one of it": {func(st *stage) func(context.Context) (*Held, error) {
			return NewMulti(st.s, Write("a"), Read("b"), Write("c")).Lock
		}, func(st *stage) func(context.Context) (*Held, error) { return st.mutex().Lock }},
		"one, then a multi": {func(st *stage) func(context.Context) (*Held, error) { return st.mutex().Lock }, func(st *stage) func(context.Context) (*Held, error) {
			return NewMulti(st.s, Write("a"), Read("b")).Lock
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				for range 3 {
					h := st.lock(ways[0](st))
					old := h.Token()
					l := st.offer(h)
					txns := st.countTxns()
					h = st.lock(ways[1](st))
					require.Equal(st, 1, *txns)
					require.True(st, isClosed(st.s.removals.RemoveLater(l)))
					synctest.Wait()
					require.Equal(st, 1, *txns, "nobody else has to remove it")
					require.Greater(st, h.Token(), old)
					require.NoError(st, h.Check(st.Context()))
					for _, q := range append(st.f.entries("a/"), st.f.entries("b/")...) {
						require.Equal(st, h.Token(), q.Rev, "all else is gone")
					}
					require.NoError(st, h.Unlock(st.Context()))
				}
				synctest.Wait()
				require.False(st, st.s.keys.InUse())
				require.Empty(st, st.s.lists)
				require.False(st, st.s.removals.Any())
			})
		})
	}
}

// Whatever becomes of the txn that was to remove an entry, the entry is removed, and who waits behind it gets in.
func TestRelease_WithTheNextLockThatFails(t *testing.T) {
	for name, play := range map[string]func(st *stage, lock func(context.Context) error){
		"the reply is lost": func(st *stage, lock func(context.Context) error) {
			st.change(func() { st.lose = true })
			require.NoError(st, lock(st.Context()))
		},
		"ctx ends": func(st *stage, lock func(context.Context) error) {
			goOn := st.holdBack()
			defer goOn()
			ctx, cancel := context.WithTimeout(st.Context(), time.Second)
			defer cancel()
			require.ErrorIs(st, lock(ctx), context.DeadlineExceeded)
		},
		"etcd refuses": func(st *stage, lock func(context.Context) error) {
			st.refuse(rpctypes.ErrGRPCNoSpace, 3) // both together, and each by itself
			require.ErrorIs(st, lock(st.Context()), rpctypes.ErrNoSpace)
		},
		"etcd allows less in one txn": func(st *stage, lock func(context.Context) error) {
			st.refuse(rpctypes.ErrGRPCTooManyOps, 1)
			require.NoError(st, lock(st.Context()))
		},
		"another has the key": func(st *stage, lock func(context.Context) error) {
			st.f.Write("a/5-1")
			remove := time.AfterFunc(time.Second, func() { st.f.Remove("a/5-1") })
			defer remove.Stop()
			require.NoError(st, lock(st.Context()))
		},
		"another has removed it": func(st *stage, lock func(context.Context) error) {
			st.f.Remove("a/5")
			require.NoError(st, lock(st.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				remote := st.remote()
				h := st.lock(st.mutex().Lock)
				require.Equal(st, "a/5", h.Key())
				_ = h.IsOwner() // so that who is behind waits for etcd's word
				l := st.offer(h)
				play(st, func(ctx context.Context) error {
					h, err := st.mutex().Lock(ctx)
					if err == nil {
						require.NoError(st, h.Check(st.Context()))
						h.Release()
					}
					return err
				})
				st.s.removals.RemoveLater(l)
				<-time.After(30 * time.Second) // until what may be late is settled
				require.Empty(st, st.f.entries("a/"))
				require.False(st, st.s.removals.Any())
				require.Empty(st, st.s.lists)
				require.NoError(st, st.lock(NewMutex(remote, "a").Lock).Unlock(st.Context()))
			})
		})
	}
}

// The next Lock takes the removal along. Its reply is lost, and before it is sent again somebody breaks the new entry. So the
// repetition writes that anew, and finds the former one gone: nobody else has removed that, so Unlock says nothing of a loss.
// It does if somebody had.
func TestUnlock_ReplyToTheNextLockIsLost(t *testing.T) {
	for _, lost := range []bool{false, true} {
		onStage(t, func(st *stage) {
			h := st.lock(st.mutex().Lock)
			l := st.offer(h)
			if lost {
				st.f.Remove("a/5")
			} else {
				step := st.f.Step
				st.f.Step = func(ctx context.Context, what string) error {
					err := step(ctx, what)
					if err != nil {
						st.f.Remove("a/5-1")
					}
					return err
				}
				st.change(func() { st.lose = true })
			}
			next := st.lock(st.mutex().Lock)
			require.Equal(st, "a/5-1", next.Key())
			if err := h.finishRelease(st.Context(), l); lost {
				require.ErrorIs(st, err, ErrLost)
			} else {
				require.NoError(st, err)
			}
			require.NoError(st, next.Check(st.Context()))
			require.NoError(st, next.Unlock(st.Context()))
		})
	}
}

// A waiter of another session that was there before gets the lock, and not the caller that comes back at once.
func TestRelease_WithTheNextLockIsFair(t *testing.T) {
	onStage(t, func(st *stage) {
		remote := st.remote()
		h := st.lock(st.mutex().Lock)
		other := st.ticket(NewMutex(remote, "a").Enqueue)
		st.offer(h)
		again := st.ticket(st.mutex().Enqueue)
		ho := st.wait(other)
		st.requireOut(again)
		ho.Release()
		st.wait(again).Release()
	})
}

// One txn removes all that leave, as far as there is room; the others are removed as ever.
func TestRelease_ManyBeforeTheNextLock(t *testing.T) {
	onStage(t, func(st *stage) {
		for range 3 {
			var parts []Part
			for i := range maxParts - 1 {
				parts = append(parts, Write(fmt.Sprintf("b%d", i)))
			}
			many := st.lock(NewMulti(st.s, append(parts, Write("a"))...).Lock)
			many.Release()
			var readers []*Held
			for range 40 {
				readers = append(readers, st.lock(st.rw().RLock))
			}
			for _, h := range readers {
				h.Release()
			}
			next := st.lock(st.mutex().Lock)
			synctest.Wait()
			require.Equal(st, []queue.Entry{{Key: next.Key(), Rev: next.Token()}}, append(st.f.entries("a"), st.f.entries("b")...))
			require.False(st, st.s.removals.Any())
			require.NoError(st, next.Unlock(st.Context()))
		}
		require.False(st, st.s.keys.InUse())
	})
}

// The lock goes through a session in memory: what its holders leave behind goes with the removal of the last one, by
// which others get in. One whose successor has the lock waits for the reply to the removal before.
func TestRelease_OfManyTogether(t *testing.T) {
	for name, give := range map[string]func(*stage, *Held){
		"Release": func(_ *stage, h *Held) { h.Release() },
		"Unlock":  func(st *stage, h *Held) { go func() { assert.NoError(st, h.Unlock(st.Context())) }() },
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				h := st.lock(st.mutex().Lock)
				var waiters []*Ticket
				for range 6 {
					waiters = append(waiters, st.ticket(st.mutex().Enqueue))
				}
				other := st.ticket(NewMutex(st.remote(), "a").Enqueue)
				txns := st.countTxns()
				goOn := st.holdBack()
				for _, tk := range waiters[:3] {
					give(st, h)
					h = st.wait(tk)
				}
				require.Equal(st, 1, *txns)
				goOn()
				require.Equal(st, 2, *txns, "what has waited for the reply goes together")
				goOn = st.holdBack()
				for _, tk := range waiters[3:] {
					give(st, h)
					h = st.wait(tk)
				}
				require.Equal(st, 3, *txns)
				give(st, h)
				st.requireOut(other)
				require.Equal(st, 4, *txns, "this one lets others in")
				goOn()
				require.NoError(st, st.wait(other).Unlock(st.Context()))
				require.Equal(st, 5, *txns)
				require.Empty(st, st.f.entries("a/"))
				require.False(st, st.s.removals.Any())
			})
		})
	}
}

// A reader of the session that gets in lets others' readers in too: the removal of the writer before it does not wait.
func TestRelease_LetsOthersReadersIn(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.rw().Lock)
		writer, reader := st.ticket(st.rw().Enqueue), st.ticket(st.rw().REnqueue)
		other := st.ticket(NewRWMutex(st.remote(), "a").REnqueue)
		before := make(chan struct{})
		st.change(func() { st.before = before })
		h.Release()
		hw := st.wait(writer)
		st.change(func() { st.before = nil }) // the first removal stays on its way
		hw.Release()
		hr := st.wait(reader)
		require.Len(st, st.f.entries("a/5"), 1, "nothing of the writer is left")
		st.requireOut(other)
		close(before)
		st.wait(other).Release()
		hr.Release()
	})
}

// So does that of a Multi, which has other names that others wait for.
func TestRelease_OfAMultiLetsOthersIn(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		multi := st.ticket(NewMulti(st.s, Write("a"), Write("b")).Enqueue)
		next := st.ticket(st.mutex().Enqueue)
		other := st.ticket(NewMutex(st.remote(), "b").Enqueue)
		before := make(chan struct{})
		st.change(func() { st.before = before })
		h.Release()
		hm := st.wait(multi)
		st.change(func() { st.before = nil }) // the first removal stays on its way
		hm.Release()
		st.wait(other).Release()
		st.wait(next).Release()
		close(before)
	})
}

// What many give up that wait no longer is removed by few requests.
func TestRelease_OfManyThatGiveUp(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(NewMutex(st.remote(), "a").Lock)
		ctx, cancel := context.WithCancel(st.Context())
		var over sync.WaitGroup
		for range 100 {
			over.Go(func() {
				_, err := st.mutex().Lock(ctx)
				assert.ErrorIs(st, err, context.Canceled)
			})
		}
		synctest.Wait()
		txns := st.countTxns()
		goOn := st.holdBack()
		cancel()
		over.Wait()
		goOn()
		require.Len(st, st.f.entries("a/"), 1)
		require.LessOrEqual(st, *txns, 8)
		require.NoError(st, h.Unlock(st.Context()))
	})
}

// Two calls of Downgrade at once are one downgrade. Neither takes what the other has done for the work of somebody else,
// and a list of the session that is made in between is told once.
func TestFault_J3_DowngradeTwice(t *testing.T) {
	for name, chosen := range map[string][]int{"the first one is over before the second one begins": {0, 1}, "the second one comes first": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(st *stage) {
				h := st.lock(st.rw().Lock)
				o := &order{chosen: chosen, from: chosen}
				st.f.Step = o.step
				done := make(chan error, 2)
				for range 2 {
					go func() { done <- h.Downgrade(st.Context()) }()
					synctest.Wait()
				}
				for range 2 {
					o.next()
					synctest.Wait()
				}
				reader := make(chan *Ticket, 1)
				go func() {
					tk, err := st.rw().REnqueue(st.Context())
					assert.NoError(st, err)
					reader <- tk
				}()
				for synctest.Wait(); o.next(); {
					synctest.Wait()
				}
				require.NoError(st, <-done)
				require.NoError(st, <-done)
				require.NoError(st, h.Err())
				o.end()
				st.wait(<-reader).Release()
				h.Release()
			})
		})
	}
}

// A session hands a lock over in memory, and the removal of the former entry, which was released or withdrawn, waits for a request
// of that name. Orphan has the removal sent, so what the successor adopts has the highest token that was used. What leaves while
// Orphan waits is handed to nobody before etcd has confirmed its removal.
func TestOrphan_AfterAHandOver(t *testing.T) {
	for _, what := range []string{"released", "withdrawn", "released meanwhile"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEtcd()
			s, s2 := f.bareSession(5), f.bareSession(5)
			var away atomic.Bool
			back := make(chan struct{})
			f.Step = func(_ context.Context, what string) error {
				if what == "Txn" && away.Load() {
					<-back
					harness.Elapse(time.Millisecond)
				}
				return nil
			}
			m := NewMutex(s, "a")
			h, err := m.Lock(t.Context())
			require.NoError(t, err)
			var all []*Ticket
			for range 3 {
				tk, err := m.Enqueue(t.Context())
				require.NoError(t, err)
				all = append(all, tk)
			}
			away.Store(true)
			go func() { _, _ = m.Enqueue(context.Background()) }()
			synctest.Wait()
			if what == "withdrawn" {
				go func() { _ = all[0].Cancel(context.Background()) }()
				synctest.Wait()
				all = all[1:]
			}
			h.Release()
			h, err = all[0].Wait(t.Context())
			require.NoError(t, err)
			orphaned := make(chan struct{})
			go func() { s.Orphan(); close(orphaned) }()
			synctest.Wait()
			if what == "released meanwhile" {
				h.Release()
				synctest.Wait()
				require.False(t, all[1].h.parts()[0].Granted())
			}
			require.Len(t, f.There("a/"), 4, "nothing is removed yet")
			close(back)
			<-orphaned
			adopted, err := s2.Adopt(t.Context(), "a")
			require.NoError(t, err)
			require.GreaterOrEqual(t, adopted.Token(), h.Token(), what)
			s2.lease.End(ErrSessionClosed, "test")
			s2.lease.NotFound()
		})
	}
}

// Who hands a lock over adds the removal before anybody else can look at the hold, and Orphan waits for that: else a removal
// could be added when Orphan has looked for them, without a fence.
func TestOrphan_WhileALockIsHandedOver(t *testing.T) {
	for range 100 {
		f := newFakeEtcd()
		s := f.bareSession(5)
		h, err := NewMutex(s, "a").Lock(t.Context())
		require.NoError(t, err)
		looked := make(chan struct{})
		f.Step = func(context.Context, string) error { <-looked; return nil }
		go h.Release()
		for over, added := false, false; !over; {
			if !h.mu.TryLock() { // at the very moment at which it is free
				continue
			}
			over, added = h.state == released, s.removals.Any()
			h.mu.Unlock()
			require.True(t, added || !over)
		}
		close(looked)
		s.Orphan()
	}
	s := newFakeEtcd().bareSession(5)
	h, err := NewMutex(s, "a").Lock(t.Context())
	require.NoError(t, err)
	h.mu.Lock()
	orphaned := async(func() error { s.Orphan(); return nil })
	harness.Hangs(t, orphaned, 50*time.Millisecond)
	h.mu.Unlock()
	require.NoError(t, result(t, orphaned))
}
