package etcdlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// entryOf returns the entry with that token, as Inspect shows it.
func entryOf(t testing.TB, c *clientv3.Client, name string, token int64) Entry {
	t.Helper()
	for _, e := range inspected(t, c, name).Entries {
		if e.Token == token {
			return e
		}
	}
	require.Fail(t, "the queue has no entry with this token")
	return Entry{}
}

// toldLost requires that the hold ends with ErrLost and that its session lives.
func toldLost(t *testing.T, h *Held, since time.Time) {
	t.Helper()
	select {
	case <-h.Done():
		require.Less(t, time.Since(since), told)
	case <-time.After(hang):
		t.Fatal("the holder is not told of the loss")
	}
	require.ErrorIs(t, h.Err(), ErrLost)
	require.NotErrorIs(t, h.Err(), ErrSessionExpired)
	require.NoError(t, h.s.Err())
}

// The holder is told in time, the other entries of the same owner stay, and the same entry
// can't be broken twice.
func TestBreakHolder(t *testing.T) {
	for kind := range lockFuncs(nil, "") {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c, name := cluster.Client(t), lockName(t)
			s := newTestSession(t, c)
			h, err := lockFuncs(s, name)[kind](testCtx(t))
			require.NoError(t, err)
			behind, err := NewRWMutex(s, name).REnqueue(testCtx(t))
			require.NoError(t, err)
			other, err := NewMutex(s, name+"-2").Lock(testCtx(t))
			require.NoError(t, err)
			done, otherDone := h.Done(), other.Done()
			e := entryOf(t, c, name, h.Token())
			require.True(t, e.Holds)

			began := time.Now()
			require.NoError(t, New(c).Break(testCtx(t), e))
			toldLost(t, h, began)
			<-done
			require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
			require.ErrorIs(t, New(c).Break(testCtx(t), e), ErrNotFound)

			next, err := behind.Wait(testCtx(t))
			require.NoError(t, err)
			require.NoError(t, next.Check(testCtx(t)))
			require.NoError(t, other.Check(testCtx(t)))
			select {
			case <-otherDone:
				t.Fatal("another hold of the same owner must not end")
			default:
			}
			require.Equal(t, []string{next.Key()}, entries(t, c, name))
		})
	}
}

// Breaking a write lock removes both of its keys, also if it was downgraded before Inspect, or
// between Inspect and Break.
func TestBreakDowngraded(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	for _, when := range []string{"before", "after"} {
		name := lockName(t)
		h, err := NewRWMutex(newTestSession(t, c), name).Lock(testCtx(t))
		require.NoError(t, err)
		var e Entry
		if when == "before" {
			e = entryOf(t, c, name, h.Token())
		}
		require.NoError(t, h.Downgrade(testCtx(t)))
		if when == "after" {
			e = entryOf(t, c, name, h.Token())
		}
		h.Done()
		began := time.Now()
		require.NoError(t, New(c).Break(testCtx(t), e), when)
		toldLost(t, h, began)
		require.Empty(t, entries(t, c, name), when)
		require.ErrorIs(t, New(c).Break(testCtx(t), e), ErrNotFound)
	}
}

func TestBreakWaiter(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	s := newTestSession(t, c)
	h, err := NewMutex(s, name).Lock(testCtx(t))
	require.NoError(t, err)
	tk, err := NewMutex(s, name).Enqueue(testCtx(t))
	require.NoError(t, err)
	waiters := inspected(t, c, name).Waiters()
	require.Len(t, waiters, 1)
	require.NoError(t, New(c).Break(testCtx(t), waiters[0]))
	_, err = tk.Wait(testCtx(t))
	require.ErrorIs(t, err, ErrLost)
	require.NoError(t, h.Check(testCtx(t)))
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A later acquisition with the same key is another entry.
func TestBreakIsOfOneAcquisition(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	m := NewRWMutex(newTestSession(t, c), name)
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	first := entryOf(t, c, name, h.Token())
	require.NoError(t, h.Unlock(testCtx(t)))
	h, err = m.Lock(testCtx(t))
	require.NoError(t, err)
	second := entryOf(t, c, name, h.Token())
	require.Equal(t, first.Key, second.Key)
	require.Equal(t, first.SharedKey, second.SharedKey)
	require.ErrorIs(t, New(c).Break(testCtx(t), first), ErrNotFound)
	require.NoError(t, h.Check(testCtx(t)))
	require.Len(t, entries(t, c, name), 2)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// Break also removes entries that others wrote: an entry of etcd's own lock, and an entry
// without a lease, which nothing else would remove.
func TestBreakOthers(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	s, err := concurrency.NewSession(c)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, concurrency.NewMutex(s, name).Lock(testCtx(t)))
	_, err = c.Put(testCtx(t), name+"/abc", "")
	require.NoError(t, err)
	m := NewMutex(newTestSession(t, c), name)
	for _, e := range inspected(t, c, name).Entries {
		_, err = m.TryLock(testCtx(t))
		require.ErrorIs(t, err, ErrLocked)
		require.NoError(t, New(c).Break(testCtx(t), e))
	}
	h, err := m.TryLock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(testCtx(t)))
}

// A lost reply is not an error. If no reply is lost, Break makes one request.
func TestBreakLostReply(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c, direct := cluster.Client(t, tap), cluster.Client(t)
	for i, faults := range [][]etcdtest.Fault{nil, {etcdtest.DropReply}, {etcdtest.FailBefore, etcdtest.DropReply}} {
		h, err := NewRWMutex(newTestSession(t, direct), name).Lock(testCtx(t))
		require.NoError(t, err)
		for _, f := range faults {
			tap.Next("Txn", f)
		}
		before := tap.Calls()
		require.NoError(t, New(c).Break(testCtx(t), entryOf(t, direct, name, h.Token())))
		require.Equal(t, i+1, tap.Calls()-before)
		require.Empty(t, entries(t, direct, name))
	}
}

// Break removes no key that is not an entry.
func TestBreakNoEntry(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	put, err := c.Put(testCtx(t), name+"/x", "")
	require.NoError(t, err)
	rev := put.Header.Revision
	_, err = c.Put(testCtx(t), name+"/1f", "")
	require.NoError(t, err)
	for _, e := range []Entry{
		{Name: name},
		{Name: name, Key: name + "/x", Token: rev},
		{Name: name, Key: name + "/1f", Token: 0},
		{Name: name, Key: name + "/1f", Token: -1},
		{Name: name, Key: name + "/1f", SharedKey: name + "/x", Token: rev},
	} {
		require.ErrorContains(t, New(c).Break(testCtx(t), e), "is no entry: take one from Inspect or Watch")
	}
	require.ErrorIs(t, New(c).Break(testCtx(t), Entry{Key: name + "/x", Token: rev}), ErrInvalidName)
	require.ErrorIs(t, New(c).Break(testCtx(t), Entry{Name: name, Key: name + "/2f", Token: rev}), ErrNotFound)
	require.ErrorIs(t, New(c).Break(testCtx(t), Entry{Name: name, Key: name + "/1f", Token: rev}), ErrNotFound)
	require.Len(t, entries(t, c, name), 2)
}
