package etcdlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func closes(t testing.TB, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(hang):
		require.Fail(t, "it is not told", what)
	}
}

// Call staysOpen when what might close ch has been heard of.
func staysOpen(t testing.TB, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
		require.Fail(t, "it is told that it is wanted", what)
	case <-time.After(50 * time.Millisecond):
	}
}

// contenders take a place in the queue of name, and return what gives it back. reads says whether it is
// one for reading.
func contenders(t *testing.T, own, other *Session) map[string]func(name string) (reads bool, leave func()) {
	enqueue := func(enqueue func(context.Context) (*Ticket, error)) func() {
		tk, err := enqueue(harness.Ctx(t))
		require.NoError(t, err)
		return func() { require.NoError(t, tk.Cancel(harness.Ctx(t))) }
	}
	return map[string]func(name string) (bool, func()){
		"mutex of the session":  func(name string) (bool, func()) { return false, enqueue(NewMutex(own, name).Enqueue) },
		"writer of the session": func(name string) (bool, func()) { return false, enqueue(NewRWMutex(own, name).Enqueue) },
		"reader of the session": func(name string) (bool, func()) { return true, enqueue(NewRWMutex(own, name).REnqueue) },
		"multi of the session": func(name string) (bool, func()) {
			return false, enqueue(NewMulti(own, Read(name+"x"), Write(name)).Enqueue)
		},
		"mutex":  func(name string) (bool, func()) { return false, enqueue(NewMutex(other, name).Enqueue) },
		"writer": func(name string) (bool, func()) { return false, enqueue(NewRWMutex(other, name).Enqueue) },
		"reader": func(name string) (bool, func()) { return true, enqueue(NewRWMutex(other, name).REnqueue) },
		"multi": func(name string) (bool, func()) {
			return false, enqueue(NewMulti(other, Write(name+"x"), Write(name)).Enqueue)
		},
		"concurrency.Mutex": func(name string) (bool, func()) {
			s, err := concurrency.NewSession(other.Client())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(harness.Ctx(t))
			n := len(harness.Entries(t, other.Client(), name))
			m := concurrency.NewMutex(s, name)
			locked := harness.Async(func() error { return m.Lock(ctx) })
			require.Eventually(t, func() bool { return len(harness.Entries(t, other.Client(), name)) > n }, hang, tick)
			return false, func() {
				cancel()
				require.ErrorIs(t, harness.Result(t, locked), context.Canceled)
				require.NoError(t, s.Close())
			}
		},
	}
}

func holdFuncs(s *Session, name string) map[string]func(context.Context) (*Held, error) {
	return map[string]func(context.Context) (*Held, error){
		"mutex":       NewMutex(s, name).Lock,
		"write lock":  NewRWMutex(s, name).Lock,
		"read lock":   NewRWMutex(s, name).RLock,
		"multi":       NewMulti(s, Read(name+"y"), Write(name)).Lock,
		"multi, read": NewMulti(s, Read(name), Write(name+"y")).Lock,
		"downgraded": func(ctx context.Context) (*Held, error) {
			h, err := NewRWMutex(s, name).Lock(ctx)
			if err == nil {
				err = h.Downgrade(ctx)
			}
			return h, err
		},
	}
}

// Every kind of hold is told of every kind of waiter, whether that was there before somebody asked or came
// later, but not of a reader behind a reader. What was told stays told when the waiter is gone; one that was
// gone before is not told of.
func TestContended(t *testing.T) {
	t.Parallel()
	own, other := newTestSession(t, cluster.Client(t)), newTestSession(t, cluster.Client(t))
	for holdName := range holdFuncs(own, "") {
		for name, contend := range contenders(t, own, other) {
			for _, order := range []string{"before", "after", "before, and gone"} {
				t.Run(fmt.Sprintf("%s, %s, %s", holdName, name, order), func(t *testing.T) {
					t.Parallel()
					lock := harness.LockName(t)
					h, err := holdFuncs(own, lock)[holdName](harness.Ctx(t))
					require.NoError(t, err)
					var contended <-chan struct{}
					if order == "after" {
						contended = h.Contended()
						staysOpen(t, contended, "nobody is there")
					}
					reads, leave := contend(lock)
					if order == "before, and gone" {
						leave()
						require.Eventually(t, func() bool { return len(harness.Entries(t, own.Client(), lock)) == len(entriesOf(h, lock)) }, hang, tick)
					}
					contended = h.Contended()
					switch reading := holdName == "read lock" || holdName == "downgraded" || holdName == "multi, read"; {
					case order == "before, and gone", reads && reading:
						staysOpen(t, contended, "nobody waits for it")
					default:
						closes(t, contended, name)
					}
					require.Equal(t, contended, h.Contended(), "it is the same channel")
					was := isClosed(contended)
					if order != "before, and gone" {
						leave()
					}
					require.Equal(t, was, isClosed(contended))
					require.NoError(t, h.Unlock(harness.Ctx(t)))
				})
			}
		}
	}
}

// entriesOf are the keys of a hold under name.
func entriesOf(h *Held, name string) (keys []string) {
	for p := range h.all() {
		if p.Name == name {
			keys = p.Keys()
		}
	}
	if h.holdCtx != nil && h.holdCtx.downgrade != nil {
		keys = keys[:1] // downgraded: the other one is gone
	}
	return keys
}

// The first use costs a watch and a read at most, nothing if the waiter is one of the session, and the
// second nothing.
func TestRequests_Contended(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s, other := unhedged(t, c), newTestSession(t, cluster.Client(t))
	for name, lock := range holdFuncs(s, harness.LockName(t)) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err)
		w.Reset()
		h.Contended()
		n := len(h.Keys())
		require.Eventually(t, func() bool { _, created := w.Counts(); return len(created) == n }, hang, tick, name)
		staysOpen(t, h.Contended(), name)
		calls, created := w.Counts()
		harness.RequireFromNow(t, created)
		require.LessOrEqual(t, calls["Range"], n, "%s: %v", name, calls)
		require.Zero(t, calls["Txn"], name)
		require.Len(t, created, n, name)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	// A waiter of the session.
	name := harness.LockName(t)
	h := mustLock(t, s, name)
	tk, err := NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	w.Reset()
	require.True(t, isClosed(h.Contended()))
	calls, created := w.Counts()
	require.Empty(t, calls)
	require.Empty(t, created)
	require.NoError(t, tk.Cancel(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))

	// With nobody there, none is told of after the hold.
	h = mustLock(t, s, name)
	contended := h.Contended()
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	h2, err := NewMutex(other, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = NewMutex(other, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	staysOpen(t, contended, "the hold is over")
	staysOpen(t, h.Contended(), "the hold is over")
	require.NoError(t, h2.Unlock(harness.Ctx(t)))
}

// What is no entry, and a Try, which does not wait, are not told of; nor is a reader after a downgrade, which
// was asked for before.
func TestContended_Not(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s, other := newTestSession(t, c), newTestSession(t, cluster.Client(t))
	name := harness.LockName(t)
	h, err := NewRWMutex(s, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	key, token := h.Key(), h.Token()
	w.OnRecv(func(_ string, msg any) (bool, error) { // a member that lags tells of the hold's own key too
		if r, ok := msg.(*pb.WatchResponse); ok {
			for _, ev := range r.Events {
				if string(ev.Kv.Key) == name+"/1c" {
					ev.Kv.Key, ev.Kv.CreateRevision = []byte(key), token
				}
			}
		}
		return true, nil
	})
	w.Reset()
	contended := h.Contended()
	w.WaitForAnswers(t, 1, 1) // what is written from now on only the watch tells of
	staysOpen(t, contended, "nobody is there")
	_, err = NewMutex(other, name).TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, ErrLocked)
	nested := mustLock(t, other, name+"/nested")
	for _, stray := range []string{"config", "1c"} {
		_, err = c.Put(harness.Ctx(t), name+"/"+stray, "")
		require.NoError(t, err)
	}
	staysOpen(t, contended, "nobody waits")
	_, err = c.Delete(harness.Ctx(t), name+"/1c")
	require.NoError(t, err)
	require.NoError(t, h.Downgrade(harness.Ctx(t)))
	r, err := NewRWMutex(other, name).RLock(harness.Ctx(t))
	require.NoError(t, err)
	staysOpen(t, contended, "a reader beside a reader")
	_, err = NewRWMutex(other, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	closes(t, contended, "a writer behind a downgraded lock")
	closes(t, r.Contended(), "the same behind the reader")
	require.NoError(t, nested.Unlock(harness.Ctx(t)))
}

// A watch that breaks while somebody comes is replaced, and the read behind it shows who has come.
func TestContended_WatchBreaks(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	proxy := own.Proxy(t)
	direct := own.Client(t)
	c := own.Client(t, proxy)
	s, other := newTestSession(t, c, WithTTL(time.Minute)), newTestSession(t, direct)
	for range 3 {
		h := mustLock(t, s, "a")
		contended := h.Contended()
		staysOpen(t, contended, "nobody is there")
		proxy.Reset() // the watch is made anew
		staysOpen(t, contended, "nobody is there")
		proxy.Refuse()
		proxy.Reset()
		tk, err := NewMutex(other, "a").Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		proxy.Accept()
		closes(t, contended, "a waiter that came when the watch was broken")
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		next, err := tk.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, next.Unlock(harness.Ctx(t)))
	}
}

// The news of a waiter is lost as the watch ends: the next watch, and the read behind it, tell.
func TestContended_WatchEnds(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s, other := newTestSession(t, c, WithTTL(time.Minute)), newTestSession(t, cluster.Client(t))
	name := harness.LockName(t)
	h := mustLock(t, s, name)
	var ended atomic.Bool
	w.OnRecv(func(_ string, msg any) (bool, error) {
		r, ok := msg.(*pb.WatchResponse)
		if ok && len(r.Events) > 0 && ended.CompareAndSwap(false, true) {
			r.Events, r.Canceled, r.CancelReason = nil, true, "etcdserver: no leader"
		}
		return true, nil
	})
	w.Reset()
	contended := h.Contended()
	w.WaitForAnswers(t, 1, 1) // else the read behind the watch would show the waiter
	staysOpen(t, contended, "nobody is there")
	_, err := NewMutex(other, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	closes(t, contended, "a waiter whose event was lost")
	require.True(t, ended.Load())
}

// The watches for waiters end with the first waiter, whichever name that waits for.
func TestContended_WatchesEnd(t *testing.T) {
	holdScene(t, func(t *testing.T, f *fakeEtcd, s *Session) {
		h, err := NewMulti(s, Write("a"), Write("b")).Lock(t.Context())
		require.NoError(t, err)
		contended := h.Contended()
		synctest.Wait()
		require.Len(t, f.Watches(), 2)
		_, err = NewMutex(s, "b").Enqueue(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, isClosed(contended))
		require.Empty(t, f.Watches())
		require.NoError(t, h.Err())
	})
}

// A hold that was released is not told of those who come while its key is on its way out.
func TestContended_NotAfterTheHold(t *testing.T) {
	onStage(t, func(st *stage) {
		h := st.lock(st.mutex().Lock)
		contended := h.Contended()
		next := st.ticket(st.mutex().Enqueue)
		require.True(st, isClosed(contended))
		other := st.lock(NewMutex(st.s, "b").Lock)
		contended = other.Contended()
		goOn := st.holdBack()
		other.Release()
		synctest.Wait()
		st.change(func() { st.before = nil }) // that of the release alone
		behind := []*Ticket{st.ticket(NewMutex(st.s, "b").Enqueue), st.ticket(NewMutex(st.s, "b").Enqueue)}
		st.wait(behind[0])
		st.requireOut(behind[1], next)
		require.False(st, isClosed(contended), "it waits for the one in between")
		goOn()
		h.Release()
	})
}
