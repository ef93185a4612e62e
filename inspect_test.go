package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/settle"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

func inspected(t testing.TB, c *clientv3.Client, name string) Queue {
	t.Helper()
	q, err := New(c).Inspect(testCtx(t), name)
	require.NoError(t, err)
	require.Equal(t, name, q.Name)
	return q
}

// tokens returns the tokens of the entries, in order.
func tokens(es []Entry) []int64 {
	out := []int64{}
	for _, e := range es {
		out = append(out, e.Token)
	}
	return out
}

func TestInspectNone(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	before := revision(t, c)
	q := inspected(t, c, lockName(t))
	require.NotNil(t, q.Entries)
	require.Empty(t, q.Entries)
	require.Empty(t, q.Foreign)
	require.Empty(t, q.Holders())
	require.Empty(t, q.Waiters())
	require.GreaterOrEqual(t, q.Revision, before)
}

// A queue with all kinds of entries, and with keys that are not entries.
func TestInspectQueue(t *testing.T) {
	t.Parallel()
	c, ctx := cluster.Client(t), testCtx(t)
	a := newTestSession(t, c, WithOwner("a \"quoted\" owner"), WithTTL(7*time.Second))
	b := newTestSession(t, c, WithTTL(20*time.Second))
	name := lockName(t)
	for _, key := range []string{"/x/1f", "/stray", "/r", "x/1f"} {
		_, err := c.Put(ctx, name+key, "{not JSON")
		require.NoError(t, err)
	}
	before := time.Now()
	h, err := NewRWMutex(a, name).Lock(ctx)
	require.NoError(t, err)
	r1, err := NewRWMutex(a, name).REnqueue(ctx)
	require.NoError(t, err)
	r2, err := NewRWMutex(b, name).REnqueue(ctx)
	require.NoError(t, err)
	m, err := NewMutex(b, name).Enqueue(ctx)
	require.NoError(t, err)
	orphan, err := c.Put(ctx, name+"/abc-1", "a value of another program")
	require.NoError(t, err)
	after := time.Now()

	q := inspected(t, c, name)
	require.GreaterOrEqual(t, q.Revision, orphan.Header.Revision)
	require.Equal(t, []string{name + "/r", name + "/stray", name + "/x/1f"}, q.Foreign)
	require.Equal(t, []int64{h.Token(), r1.h.Token(), r2.h.Token(), m.h.Token(), orphan.Header.Revision}, tokens(q.Entries))
	require.Equal(t, q.Entries[:1], q.Holders())
	require.Equal(t, q.Entries[1:], q.Waiters())
	for i, s := range []*Session{a, a, b, b} {
		e := q.Entries[i]
		require.Equal(t, name, e.Name)
		require.Equal(t, s.Lease(), e.Lease)
		require.Equal(t, s.TTL(), e.GrantedTTL)
		require.Positive(t, e.TTL)
		require.LessOrEqual(t, e.TTL, e.GrantedTTL)
		require.WithinRange(t, e.Queued, before.Add(-time.Millisecond), after) // the time is stored in milliseconds
	}
	require.Equal(t, "a \"quoted\" owner", q.Entries[1].Owner)
	require.Equal(t, settle.DefaultOwner(), q.Entries[2].Owner)
	require.Equal(t, h.Key(), q.Entries[0].Key)
	require.Equal(t, h.parts()[0].Keys()[1], q.Entries[0].SharedKey)
	require.False(t, q.Entries[0].Read)
	for i, tk := range []*Ticket{r1, r2, m} {
		require.Equal(t, tk.h.Key(), q.Entries[i+1].Key)
		require.Empty(t, q.Entries[i+1].SharedKey)
		require.Equal(t, i < 2, q.Entries[i+1].Read)
	}
	require.Equal(t, Entry{Name: name, Key: name + "/abc-1", Token: orphan.Header.Revision, Data: true, Value: "a value of another program",
		ModRevision: orphan.Header.Revision, Version: 1}, q.Entries[4])

	// After a downgrade the entry has only its shared key, and the readers are granted.
	sharedKey := q.Entries[0].SharedKey
	require.NoError(t, h.Downgrade(ctx))
	q = inspected(t, c, name)
	require.Equal(t, []int64{h.Token(), r1.h.Token(), r2.h.Token()}, tokens(q.Holders()))
	require.Equal(t, []int64{m.h.Token(), orphan.Header.Revision}, tokens(q.Waiters()))
	require.Equal(t, sharedKey, q.Entries[0].Key)
	require.Empty(t, q.Entries[0].SharedKey)
	require.True(t, q.Entries[0].Read)
}

// Entries of etcd's own locks are ordinary entries of the queue.
func TestInspectOthers(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(9))
	require.NoError(t, err)
	defer s.Close()
	m := concurrency.NewMutex(s, name)
	require.NoError(t, m.Lock(testCtx(t)))
	got := inspected(t, c, name).Entries
	require.Len(t, got, 1)
	require.Equal(t, Entry{Name: name, Key: m.Key(), Token: m.Header().Revision, Holds: true, ModRevision: m.Header().Revision, Version: 1, Lease: s.Lease(),
		TTL: got[0].TTL, GrantedTTL: 9 * time.Second}, got[0])
	require.NoError(t, m.Unlock(testCtx(t)))
	require.Empty(t, inspected(t, c, name).Entries)
}

// requireCalls requires that this many calls were made since then. On a machine that stalls a call that has no answer after
// 300 ms is made twice more.
func requireCalls(t testing.TB, since time.Time, want, calls int) {
	t.Helper()
	if time.Since(since) < 300*time.Millisecond {
		require.Equal(t, want, calls)
	}
	require.LessOrEqual(t, calls, 3*want)
}

// Inspect costs one read, and one request for each lease.
func TestInspectCost(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	s1, s2 := newTestSession(t, cluster.Client(t)), newTestSession(t, cluster.Client(t))
	for range 3 {
		for _, s := range []*Session{s1, s2} {
			_, err := NewRWMutex(s, name).RLock(testCtx(t))
			require.NoError(t, err)
		}
	}
	looks := time.Now()
	require.Len(t, inspected(t, cluster.Client(t, tap), name).Holders(), 6)
	requireCalls(t, looks, 1, tap.Calls("Txn"))
	requireCalls(t, looks, 2, tap.Calls("LeaseTimeToLive"))
	requireCalls(t, looks, 3, tap.Calls())
}

// The lease is revoked after the queue was read: the entry has no TTL.
func TestInspectLeaseGone(t *testing.T) {
	t.Parallel()
	tap, name, direct := etcdtest.NewTap(), lockName(t), cluster.Client(t)
	gone, there := newTestSession(t, direct), newTestSession(t, direct)
	for _, s := range []*Session{gone, there} {
		_, err := NewMutex(s, name).Enqueue(testCtx(t))
		require.NoError(t, err)
	}
	revoke := sync.OnceFunc(func() { // before the first of the requests for leases
		_, err := direct.Revoke(testCtx(t), gone.Lease())
		assert.NoError(t, err)
	})
	tap.Every("LeaseTimeToLive", etcdtest.Before(revoke))
	q := inspected(t, cluster.Client(t, tap), name)
	require.Equal(t, []clientv3.LeaseID{gone.Lease(), there.Lease()}, []clientv3.LeaseID{q.Entries[0].Lease, q.Entries[1].Lease})
	require.Zero(t, q.Entries[0].TTL)
	require.Zero(t, q.Entries[0].GrantedTTL)
	require.Equal(t, there.TTL(), q.Entries[1].GrantedTTL)
}

// Inspect repeats requests whose replies are lost, or that fail for another passing reason.
func TestInspectThroughFaults(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	h, err := NewMutex(newTestSession(t, cluster.Client(t)), name).Lock(testCtx(t))
	require.NoError(t, err)
	for _, method := range []string{"Txn", "LeaseTimeToLive"} {
		tap.Nth(method, 1, etcdtest.DropReply)
		tap.Nth(method, 2, etcdtest.FailBefore)
	}
	c := cluster.Client(t, tap)
	q := inspected(t, c, name)
	require.Equal(t, []int64{h.Token()}, tokens(q.Holders()))
	require.Positive(t, q.Entries[0].GrantedTTL)

	// A refusal by etcd is an error.
	for _, method := range []string{"Txn", "LeaseTimeToLive"} {
		tap.Next(method, func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCPermissionDenied })
		_, err = New(c).Inspect(testCtx(t), name)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	}
}

func TestInspectionErrors(t *testing.T) {
	t.Parallel()
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(testCtx(t))
	cancel(why)
	closed, err := cluster.NewClient()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, as := authCluster(t)
	_, err = as("root").Put(testCtx(t), "a/b/1f", "") // for ListNames
	require.NoError(t, err)
	reader := as("reader")
	for what, call := range map[string]func(ctx context.Context, c *clientv3.Client, name string) error{
		"inspect": func(ctx context.Context, c *clientv3.Client, name string) error {
			_, err := New(c).Inspect(ctx, name)
			return err
		},
		"watch": func(ctx context.Context, c *clientv3.Client, name string) (err error) {
			for _, err = range New(c).Watch(ctx, name) {
				if err == nil {
					break
				}
			}
			return err
		},
		"list the names below": func(ctx context.Context, c *clientv3.Client, name string) (err error) {
			for _, err = range New(c).ListNames(ctx, strings.TrimSuffix(name, "\x01")) {
				if err == nil {
					break
				}
			}
			return err
		},
		"break an entry of": func(ctx context.Context, c *clientv3.Client, name string) error {
			return New(c).Break(ctx, Entry{Name: name, Key: name + "/1f", Token: 1 << 50})
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := cluster.Client(t)
			err := call(ended, c, "a/b")
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, why)
			require.ErrorContains(t, err, "etcdlock: "+what+" \"a/b\": ")
			require.ErrorContains(t, call(testCtx(t), nil, "a/b"), "client is nil")
			require.ErrorContains(t, call(testCtx(t), closed, "a/b"), "client is closed")
			if !strings.Contains(what, "names") {
				require.ErrorIs(t, call(testCtx(t), c, "a/b\x01"), ErrInvalidName)
			}
			if what != "break an entry of" {
				require.NoError(t, call(testCtx(t), reader, "a/b"))
			}
			err = call(testCtx(t), reader, "b/c")
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, err, "on the prefix \"b/c")
		})
	}
}

func TestEntryJSON(t *testing.T) {
	t.Parallel()
	when := time.Date(2026, 5, 4, 3, 2, 1, 5e6, time.UTC)
	q := Queue{Name: "a", Revision: 9, Entries: []Entry{
		{Name: "a", Key: "a/1f", SharedKey: "a/r1f", Token: 7, Holds: true, Owner: "me", Queued: when, Lease: 0x7fffffffffffffff, TTL: 3 * time.Second, GrantedTTL: 10 * time.Second},
		{Name: "a", Key: "a/r2", Token: 8, Read: true},
	}}
	b, err := json.Marshal(q)
	require.NoError(t, err)
	require.JSONEq(t, `{"name": "a", "revision": 9, "entries": [
		{"name": "a", "key": "a/1f", "sharedKey": "a/r1f", "token": 7, "holds": true, "read": false, "owner": "me", "queued": "2026-05-04T03:02:01.005Z",
			"lease": "7fffffffffffffff", "ttl": 3, "grantedTTL": 10},
		{"name": "a", "key": "a/r2", "token": 8, "holds": false, "read": true, "ttl": 0, "grantedTTL": 0}
	]}`, string(b))
	var back Queue
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, q, back)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"lease": "xyz"}`), &Entry{}), `"xyz"`)
	require.Error(t, json.Unmarshal([]byte(`{"token": "7"}`), &Entry{}))
	b, err = json.Marshal(newQueue(&queue.Snapshot{Name: "a"}))
	require.NoError(t, err)
	require.JSONEq(t, `{"name": "a", "revision": 0, "entries": []}`, string(b))
}

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
func toldLost(t *testing.T, h *Held) {
	t.Helper()
	harness.RequireTold(t, h.Done())
	require.ErrorIs(t, h.Err(), ErrLost)
	require.NotErrorIs(t, h.Err(), ErrSessionExpired)
	require.NoError(t, h.s.Err())
}

// requireBroken requires that Break finds no such entry. If a machine stalls, a copy of its request that has no answer may be
// what has removed one.
func requireBroken(t testing.TB, c *clientv3.Client, e Entry) {
	t.Helper()
	breaks := time.Now()
	if err := New(c).Break(testCtx(t), e); err != nil || harness.Quick(breaks) {
		require.ErrorIs(t, err, ErrNotFound)
	}
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

			require.NoError(t, New(c).Break(testCtx(t), e))
			toldLost(t, h)
			<-done
			require.ErrorIs(t, h.Unlock(testCtx(t)), ErrLost)
			requireBroken(t, c, e)

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
		require.NoError(t, New(c).Break(testCtx(t), e), when)
		toldLost(t, h)
		queueIs(t, c, name, 0)
		requireBroken(t, c, e)
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

// A later acquisition with the same key is another entry. (A key that a request may yet write is not used
// again.)
func TestBreakIsOfOneAcquisition(t *testing.T) {
	t.Parallel()
	c, name := cluster.Client(t), lockName(t)
	m := NewRWMutex(unhedged(t, c), name)
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	first := entryOf(t, c, name, h.Token())
	require.NoError(t, h.Unlock(testCtx(t)))
	h, err = m.Lock(testCtx(t))
	require.NoError(t, err)
	second := entryOf(t, c, name, h.Token())
	require.Equal(t, first.Key, second.Key)
	require.Equal(t, first.SharedKey, second.SharedKey)
	requireBroken(t, c, first)
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
		before, e := tap.Calls(), entryOf(t, direct, name, h.Token())
		breaks := time.Now()
		require.NoError(t, New(c).Break(testCtx(t), e))
		requireCalls(t, breaks, i+1, tap.Calls()-before)
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
	requireBroken(t, c, Entry{Name: name, Key: name + "/2f", Token: rev})
	requireBroken(t, c, Entry{Name: name, Key: name + "/1f", Token: rev})
	require.Len(t, entries(t, c, name), 2)
}

// ListNames yields each name once, and reads nothing when the loop has ended.
func TestListNames(t *testing.T) {
	t.Parallel()
	tap, name := etcdtest.NewTap(), lockName(t)
	c := cluster.Client(t, tap)
	for _, key := range []string{"/a/1f", "/a/2f", "/b/1f", "/stray"} {
		_, err := cluster.Client(t).Put(testCtx(t), name+key, "")
		require.NoError(t, err)
	}
	var got []string
	lists := time.Now()
	for name, err := range New(c).ListNames(testCtx(t), name) {
		require.NoError(t, err)
		got = append(got, name)
	}
	require.Equal(t, []string{name + "/a", name + "/b"}, got)
	requireCalls(t, lists, 1, tap.Calls())
	for _, err := range New(c).ListNames(testCtx(t), name) {
		require.NoError(t, err)
		break
	}
	requireCalls(t, lists, 2, tap.Calls())
}
