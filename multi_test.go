package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// multiNamesOf are n names that no other test uses.
func multiNamesOf(t testing.TB, n int) (names []string) {
	base := harness.LockName(t)
	for i := range n {
		names = append(names, fmt.Sprintf("%s/%02d", base, i))
	}
	return names
}

func writes(names ...string) (parts []Part) {
	for _, name := range names {
		parts = append(parts, Write(name))
	}
	return parts
}

func entriesIn(t testing.TB, c *clientv3.Client, names ...string) (keys []string) {
	t.Helper()
	for _, name := range names {
		keys = append(keys, harness.Entries(t, c, name)...)
	}
	return keys
}

// All parts are written at one revision, which is the token; they exclude all locks of their names, and are
// released together.
func TestMulti_ExcludesAllLocksOfItsNames(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s, other := newTestSession(t, c), newTestSession(t, cluster.Client(t))
	names := multiNamesOf(t, 3)
	h, err := NewMulti(s, Write(names[0]), Write(names[1]), Read(names[2])).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.Len(t, h.Keys(), 3)
	require.Equal(t, h.Keys()[0], h.Key())
	require.Equal(t, h.Keys(), entriesIn(t, c, names...))
	for _, key := range h.Keys() {
		got, err := c.Get(harness.Ctx(t), key)
		require.NoError(t, err)
		require.Equal(t, h.Token(), got.Kvs[0].CreateRevision, key)
	}
	require.True(t, h.Valid())
	require.NoError(t, h.Check(harness.Ctx(t)))
	cs, err := concurrency.NewSession(c)
	require.NoError(t, err)
	defer cs.Close()
	for i, name := range names {
		_, err := NewMutex(other, name).TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, ErrLocked)
		require.ErrorIs(t, concurrency.NewMutex(cs, name).TryLock(harness.Ctx(t)), concurrency.ErrLocked)
		_, err = NewMulti(other, Write(name+"x"), Write(name)).TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, ErrLocked)
		r, err := NewRWMutex(other, name).TryRLock(harness.Ctx(t))
		if i < 2 {
			require.ErrorIs(t, err, ErrLocked)
			continue
		}
		require.NoError(t, err, "a reader beside a reader")
		require.NoError(t, r.Unlock(harness.Ctx(t)))
	}
	require.ErrorContains(t, h.Downgrade(harness.Ctx(t)), "Multi")
	require.NoError(t, h.Err())
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	require.ErrorIs(t, h.Unlock(harness.Ctx(t)), ErrNotHeld)
	for _, name := range names {
		queueIs(t, c, name, 0)
	}
}

// Each call says what is wrong with the names.
func TestMulti_InvalidNames(t *testing.T) {
	t.Parallel()
	s := newTestSession(t, cluster.Client(t))
	many := multiNamesOf(t, 33)
	for want, parts := range map[string][]Part{
		"at least one name":           nil,
		"at most 32 names":            writes(many...),
		`"a" is given twice`:          {Write("a"), Write("b"), Read("a")},
		`invalid lock name: "b/": `:   {Write("a"), Read("b/")},
		`invalid lock name: "": `:     {Write("")},
		`invalid lock name: "x\ny": `: {Read("c"), Write("x\ny")},
		`etcdlock: lock "a, b/"`:      {Write("a"), Write("b/")},
	} {
		m := NewMulti(s, parts...)
		_, err := m.Lock(harness.Ctx(t))
		require.ErrorIs(t, err, ErrInvalidName)
		require.ErrorContains(t, err, want)
		_, err = m.TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, ErrInvalidName)
		_, err = m.Enqueue(harness.Ctx(t))
		require.ErrorIs(t, err, ErrInvalidName)
		err = m.Do(harness.Ctx(t), func(context.Context, *Held) error { panic("not called") })
		require.ErrorIs(t, err, ErrInvalidName)
	}
	h, err := NewMulti(s, writes(many[:32]...)...).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	_, err = NewMulti(nil, Write("a")).Lock(harness.Ctx(t))
	require.ErrorContains(t, err, "NewSession")
	_, err = (&Multi{}).Lock(harness.Ctx(t))
	require.ErrorContains(t, err, "NewMulti")
}

// What it costs on the wire, for any number of names.
func TestRequests_Multi(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s, other := unhedged(t, c), newTestSession(t, cluster.Client(t))
	for _, n := range []int{1, 2, 8, 32} {
		names := multiNamesOf(t, n)
		m := NewMulti(s, writes(names...)...)
		for _, lock := range []func(context.Context) (*Held, error){m.Lock, m.TryLock} {
			w.Reset()
			before := harness.Revision(t, cluster.Client(t))
			h, err := lock(harness.Ctx(t))
			require.NoError(t, err)
			require.Greater(t, h.Token(), before)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			w.Require(t, map[string]int{"Txn": 2}, 0)
		}
		// One name is taken.
		taken := mustLock(t, other, names[n-1])
		at := len(entriesIn(t, c, names...))
		w.Reset()
		_, err := m.TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, ErrLocked)
		w.Require(t, map[string]int{"Txn": 1}, 0)
		require.Len(t, entriesIn(t, c, names...), at, "nothing was written")
		// It waits for that one with a watch, and reads at most what follows that and all of its own.
		w.Reset()
		granted := harness.InBackground(t, m.Lock)
		require.Eventually(t, func() bool { _, created := w.Counts(); return len(created) == 1 }, hang, tick)
		require.NoError(t, taken.Unlock(harness.Ctx(t)))
		h := <-granted
		require.NotNil(t, h)
		calls, created := w.Counts()
		require.Equal(t, 1, calls["Txn"])
		require.LessOrEqual(t, calls["Range"], 2)
		require.Len(t, created, 1)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}

// While it waits for one name it keeps the others, and nobody passes it there.
func TestMulti_FairInEachQueue(t *testing.T) {
	t.Parallel()
	s, other := newTestSession(t, cluster.Client(t)), newTestSession(t, cluster.Client(t))
	names := multiNamesOf(t, 3)
	h := mustLock(t, other, names[1])
	tk, err := NewMulti(s, Write(names[0]), Write(names[1]), Read(names[2])).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	var behind []*Ticket
	for _, enqueue := range []func(context.Context) (*Ticket, error){
		NewMutex(other, names[0]).Enqueue, NewMutex(s, names[0]).Enqueue, NewMulti(other, writes(names...)...).Enqueue,
		NewRWMutex(other, names[2]).Enqueue,
	} {
		b, err := enqueue(harness.Ctx(t))
		require.NoError(t, err)
		behind = append(behind, b)
	}
	reader, err := NewRWMutex(s, names[2]).REnqueue(harness.Ctx(t))
	require.NoError(t, err)
	for i, want := range []int{1, 2, 4, 2} {
		n, err := behind[i].Ahead(harness.Ctx(t))
		require.NoError(t, err)
		require.Equal(t, want, n, "%d, who waits in several queues counts once", i)
	}
	n, err := tk.Ahead(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	got, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	for _, b := range append(behind, reader) {
		require.False(t, isClosed(b.Done()))
	}
	require.NoError(t, got.Unlock(harness.Ctx(t)))
	last := got.Token()
	for _, b := range append(behind, reader) {
		h, err := b.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.Greater(t, h.Token(), last)
		last = h.Token()
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}

// The loss of any part is the loss of the hold: it is told, its guard fails, and what is left is removed.
func TestMulti_LossOfAPart(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s := newTestSession(t, c, WithTTL(10*time.Minute)) // else it may be told when the session asks
	s.etcd.NeverHedge()                                // the machine may stall: a copy that has no answer may be what has removed it
	for part := range 3 {
		for what, use := range map[string]func(h *Held) error{
			"context": func(h *Held) error { closes(t, h.Done(), "its loss"); return h.Err() },
			"check":   func(h *Held) error { return h.Check(harness.Ctx(t)) },
			"txn": func(h *Held) error {
				_, err := h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(h.names()[0]+"-x", "")).Commit()
				return err
			},
			"unlock": func(h *Held) error { return h.Unlock(harness.Ctx(t)) },
		} {
			names := multiNamesOf(t, 3)
			h, err := NewMulti(s, Write(names[0]), Read(names[1]), Write(names[2])).Lock(harness.Ctx(t))
			require.NoError(t, err)
			if what == "context" {
				h.Context()
			}
			require.NoError(t, h.Check(harness.Ctx(t)))
			resp, err := h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(names[0]+"-x", "1")).Commit()
			require.NoError(t, err)
			require.True(t, resp.Succeeded)
			_, err = c.Delete(harness.Ctx(t), h.Keys()[part])
			require.NoError(t, err)
			err = use(h)
			require.ErrorIs(t, err, ErrLost, "%s of part %d", what, part)
			require.NotErrorIs(t, err, ErrSessionExpired)
			require.Eventually(t, func() bool { return len(entriesIn(t, c, names...)) == 0 }, hang, tick, "the rest is removed")
			for _, name := range names {
				requireFree(t, name)
			}
		}
	}
	require.NoError(t, s.Err())
}

// A wait that loses a part, whether it had the lock of the part or not, fails when that is found, and leaves nothing.
func TestMulti_WaitLosesAPart(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s, other := newTestSession(t, c, WithTTL(5*time.Second)), newTestSession(t, cluster.Client(t))
	for i := range 6 { // part 1 is what it waits for; it has the others
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			part, names, holder, before := i%3, multiNamesOf(t, 3), other, 1
			if i >= 3 { // deep among those of its own session, where it has no watch
				holder, before = s, 3
			}
			h := mustLock(t, holder, names[1])
			var others []*Ticket
			for range before - 1 {
				tk, err := NewMutex(s, names[1]).Enqueue(harness.Ctx(t))
				require.NoError(t, err)
				others = append(others, tk)
			}
			tk, err := NewMulti(s, writes(names...)...).Enqueue(harness.Ctx(t))
			require.NoError(t, err)
			_, err = c.Delete(harness.Ctx(t), tk.h.Keys()[part])
			require.NoError(t, err)
			_, err = tk.Wait(harness.Ctx(t))
			require.ErrorIs(t, err, ErrLost, "while the one before still holds")
			require.Eventually(t, func() bool { return len(entriesIn(t, c, names...)) == before }, hang, tick)
			for _, tk := range others {
				require.NoError(t, tk.Cancel(harness.Ctx(t)))
			}
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		})
	}
}

// Under Do the names belong to its hold: the same set goes on inside, all else that shares a name would wait
// for its own caller.
func TestMulti_Reentrancy(t *testing.T) {
	t.Parallel()
	locks := newTestClient(t, cluster.Client(t))
	names := multiNamesOf(t, 4)
	a, b, free := names[0], names[1], names[3]
	ran := 0
	fn := func(context.Context, *Held) error { ran++; return nil }
	within := func(ctx context.Context, m *Multi) {
		_, err := m.Lock(ctx)
		require.ErrorIs(t, err, ErrWouldDeadlock)
		_, err = m.Enqueue(ctx)
		require.ErrorIs(t, err, ErrWouldDeadlock)
		_, err = m.TryLock(ctx)
		require.ErrorIs(t, err, ErrLocked)
	}
	require.NoError(t, locks.Multi(Write(a), Read(b)).Do(harness.Ctx(t), func(ctx context.Context, h *Held) error {
		within(ctx, locks.Multi(Write(a), Read(b)))
		within(ctx, locks.Multi(Write(free), Read(b)))
		require.NoError(t, locks.Multi(Read(b), Write(a)).Do(ctx, func(_ context.Context, in *Held) error { ran++; require.Same(t, h, in); return nil }))
		require.NoError(t, locks.Multi(Read(a), Read(b)).Do(ctx, fn), "to read what it writes")
		require.Equal(t, 2, ran)
		for _, m := range []*Multi{locks.Multi(Write(a), Write(b)), locks.Multi(Write(a)), locks.Multi(Write(a), Read(b), Write(free)), locks.Multi(Read(b), Write(free))} {
			require.ErrorIs(t, m.Do(ctx, fn), ErrWouldDeadlock)
		}
		for _, name := range []string{a, b} {
			_, err := locks.Mutex(name).Lock(ctx)
			require.ErrorIs(t, err, ErrWouldDeadlock)
			_, err = locks.Mutex(name).TryLock(ctx)
			require.ErrorIs(t, err, ErrLocked)
			require.ErrorIs(t, locks.Mutex(name).Do(ctx, fn), ErrWouldDeadlock)
			require.ErrorIs(t, locks.RWMutex(name).RDo(ctx, fn), ErrWouldDeadlock)
		}
		return locks.Multi(Write(free), Write(names[2])).Do(ctx, fn)
	}))
	require.Equal(t, 3, ran)
	require.NoError(t, locks.Mutex(a).Do(harness.Ctx(t), func(ctx context.Context, _ *Held) error {
		within(ctx, locks.Multi(Write(b), Write(a)))
		require.ErrorIs(t, locks.Multi(Write(b), Write(a)).Do(ctx, fn), ErrWouldDeadlock)
		require.ErrorIs(t, locks.Multi(Write(a)).Do(ctx, fn), ErrWouldDeadlock)
		return locks.Multi(Write(b), Write(free)).Do(ctx, fn)
	}))
	require.Equal(t, 4, ran)
	// After a loss the Do inside does not run.
	err := locks.Multi(Write(a), Write(b)).Do(harness.Ctx(t), func(ctx context.Context, h *Held) error {
		_, err := cluster.Client(t).Delete(harness.Ctx(t), h.Keys()[1])
		require.NoError(t, err)
		<-ctx.Done()
		return locks.Multi(Write(a), Write(b)).Do(ctx, fn)
	})
	require.ErrorIs(t, err, ErrLost)
	require.Equal(t, 4, ran)
}

// A server that allows fewer operations says what that means.
func TestMulti_ServerOfFewOperations(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s := newTestSession(t, c)
	names := multiNamesOf(t, 20)
	w.OnUnary(func(ctx context.Context, method string, _ any, send func(context.Context) error) error {
		if method == "Txn" {
			return rpctypes.ErrGRPCTooManyOps
		}
		return send(ctx)
	})
	_, err := NewMulti(s, writes(names...)...).Lock(harness.Ctx(t))
	require.ErrorContains(t, err, "--max-txn-ops allows less than the 40 that these names need")
	_, err = NewRWMutex(s, names[0]).Lock(harness.Ctx(t))
	require.ErrorContains(t, err, "less than the 3 that", "a listing and two keys: see TestFault_J9_LeastOperationsInATxn")
	require.Empty(t, entriesIn(t, c, names...))
}

// A ticket's place is released in all queues; so is an unclaimed grant.
func TestMulti_TicketCancel(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	s := newTestSession(t, c)
	names := multiNamesOf(t, 2)
	for _, taken := range []bool{false, true} {
		if taken {
			defer mustLock(t, newTestSession(t, c), names[1]).Release()
		}
		tk, err := NewMulti(s, writes(names...)...).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, tk.Cancel(harness.Ctx(t)))
		_, err = tk.Wait(harness.Ctx(t))
		require.ErrorIs(t, err, ErrNotHeld)
		require.True(t, strings.Contains(err.Error(), names[0]+", "+names[1]), err)
		queueIs(t, c, names[0], 0)
	}
}

// B1, B6, C2: a wait ends with its ctx when etcd is silent, and with its lease; compaction and broken
// connections keep its place.
func TestMulti_FaultsOfAWait(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	proxy := cluster.Proxy(t)
	other := newTestSession(t, c)
	s := newTestSession(t, cluster.Client(t, proxy), WithTTL(time.Minute))
	names := multiNamesOf(t, 3)
	m := NewMulti(s, writes(names...)...)
	h := mustLock(t, other, names[2])
	tk, err := m.Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	for range 3 {
		proxy.Reset()
		_, err := c.Put(harness.Ctx(t), "elsewhere", "")
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	ended := harness.Async(func() error { _, err := m.Lock(ctx); return err })
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, names[0])) == 2 }, hang, tick)
	proxy.Blackhole(etcdtest.Both)
	cancel()
	require.ErrorIs(t, harness.Result(t, ended), context.Canceled)
	proxy.Heal()
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	got, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, tk.h.Token(), got.Token())
	require.Eventually(t, func() bool { return len(entriesIn(t, c, names...)) == 3 }, hang, tick, "the one that was given up is gone")
	require.NoError(t, got.Unlock(harness.Ctx(t)))

	h = mustLock(t, other, names[1])
	tk, err = m.Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	taking := time.Now()
	revoke(t, s)
	_, err = tk.Wait(harness.Ctx(t))
	harness.RequireCause(t, taking, err, ErrSessionExpired, ErrLost)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// A closed session gives all parts back at once; so does the death of a lease.
func TestMulti_SessionEnds(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	names := multiNamesOf(t, 4)
	s := newTestSession(t, c)
	h, err := NewMulti(s, writes(names...)...).Lock(harness.Ctx(t))
	require.NoError(t, err)
	tk, err := NewMulti(s, writes(names[1:]...)...).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	done := h.Done()
	require.NoError(t, s.Close())
	<-done
	require.True(t, errors.Is(h.Err(), ErrLost) && errors.Is(h.Err(), ErrSessionClosed), h.Err())
	_, err = tk.Wait(harness.Ctx(t))
	require.ErrorIs(t, err, ErrSessionClosed)
	require.Empty(t, entriesIn(t, c, names...))
	require.False(t, slices.Contains([]bool{h.Valid()}, true))
}

// A Multi that meets another one in all of its names asks as much as one that meets it in two: what is before
// the others is read at once.
func TestMulti_SurveyRequests(t *testing.T) {
	t.Parallel()
	c, w := harness.WiredClient(t, cluster)
	s, other := unhedged(t, c), newTestSession(t, cluster.Client(t))
	names := multiNamesOf(t, 8)
	before, err := NewMulti(other, writes(names...)...).Lock(harness.Ctx(t))
	require.NoError(t, err)
	w.Reset()
	granted := harness.InBackground(t, NewMulti(s, writes(names...)...).Lock)
	require.Eventually(t, func() bool { _, created := w.Counts(); return len(created) == 1 }, hang, tick)
	require.NoError(t, before.Unlock(harness.Ctx(t)))
	h := <-granted
	require.NotNil(t, h)
	calls, created := w.Counts()
	require.LessOrEqual(t, calls["Range"], 4)
	require.Len(t, created, 1)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// requireFree requires that another session gets the lock.
func requireFree(t *testing.T, name string) {
	t.Helper()
	h := mustLock(t, newTestSession(t, cluster.Client(t)), name)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}
