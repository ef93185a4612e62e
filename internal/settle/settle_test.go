package settle

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
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

// A world is the keys of lease 5 on a fake etcd.
type world struct {
	*fakeetcd.Server
	*Keys
	calls  atomic.Int32
	refuse atomic.Bool // every call
}

func newWorld(t *testing.T) *world {
	f := fakeetcd.New()
	client := etcd.NewClient(f.Client(func(context.Context) (int64, error) { return 10, nil }))
	life, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	w := &world{Server: f, Keys: New(life, client, 5, "o", func(f func(context.Context)) bool { go f(life); return true })}
	f.Step = func(_ context.Context, what string) error {
		if what == "Range" || what == "Txn" {
			w.calls.Add(1)
		}
		if w.refuse.Load() {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return nil
	}
	return w
}

// take reserves the keys of a write lock, and makes their value.
func (w *world) take(name string) (keys []string, value string) {
	return []string{w.Take(name, keyspace.Exclusive), w.Take(name, keyspace.Shared)}, w.Value(time.Now(), nil, "")
}

func elapse(d time.Duration) { <-time.After(d) }

// A key is not used anew while a late write of it is possible, and such a late write is removed.
func TestInvariant_I6_UnsettledKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		keys, value := w.take("a")
		require.Equal(t, []string{"a/5", "a/r5"}, keys)
		began := time.Now()
		w.Settle(keys...)
		other := w.Take("b", keyspace.Exclusive)
		w.Settle(other)
		w.WriteOn(5, "a value of another user of the lease", other)
		for elapse(settleFor / 10); time.Since(began) < settleFor; elapse(settleMax) {
			w.WriteOn(5, value, keys...)
			elapse(settleMax)
			require.Empty(t, w.There("a/"), "%v after the request was given up", time.Since(began))
			require.Equal(t, []string{"b/5"}, w.There("b/"))
			if time.Since(began) < settleFor {
				other = w.Take("a", keyspace.Exclusive)
				require.Equal(t, "a/5-1", other)
				w.Free(other)
			}
		}
		elapse(2 * settleMax)
		require.False(t, w.InUse(), "the keys must be free when the search has ended")
		calls := w.calls.Load()
		elapse(time.Hour)
		require.Equal(t, calls, w.calls.Load(), "the search must end")

		// The next search is quick at first again, and goes on for as long as etcd does not answer.
		keys, value = w.take("a")
		w.Settle(keys...)
		synctest.Wait()
		w.WriteOn(5, value, keys...)
		elapse(settleFirst)
		synctest.Wait()
		require.Empty(t, w.There("a/"))
		w.refuse.Store(true)
		elapse(2 * settleFor)
		require.True(t, w.InUse())
		w.WriteOn(5, value, keys...)
		w.refuse.Store(false)
		elapse(settleRefused)
		require.Empty(t, w.There("a/"))
		require.False(t, w.InUse())
	})
}

// A restore brings back one key of an entry, the second one of a write lock, while the keys are being settled.
func TestFault_J2_SecondKeyComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, older := w.take("b")
		keys, _ := w.take("a")
		w.Settle(keys...)
		synctest.Wait()
		w.WriteOn(5, older, keys[1])
		elapse(settleMax)
		require.Empty(t, w.There("a/"))
	})
}

// A raw value has no nonce. Settling removes what the session itself may have written, and neither the same value of the
// process that had the lease before nor that of its successor.
func TestSettle_RawValuesOfOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.WriteOn(5, "v", "a/5")
		_, err := w.etcd.Get(t.Context(), "a/5") // as Adopt may have seen it
		require.NoError(t, err)
		key := w.Take("a", keyspace.Exclusive)
		require.Equal(t, "a/5", key)
		w.WriteRaw("v", key)
		w.Settle(key)
		elapse(2 * settleMax)
		require.Equal(t, []string{key}, w.There("a/"), "the process before has written it")
		w.Do(fakeetcd.RemoveOp(key))
		w.WriteOn(5, "v", key)
		elapse(2 * settleMax)
		require.Empty(t, w.There("a/"), "a late write")
		w.Orphan()
		w.WriteOn(5, "v", key)
		elapse(2 * settleMax)
		require.Equal(t, []string{key}, w.There("a/"), "the successor may have written it")
	})
}

// What is known of raw values does not grow with the names that were locked once. It stays while a key is in use, and for as
// long as a late write is expected there.
func TestKeys_RawValuesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		sweep := func() {
			_, err := w.Sweep(t.Context())
			require.NoError(t, err)
		}
		used := w.Take("used", keyspace.Exclusive)
		w.WriteRaw("", used)
		w.Free(used)
		require.Equal(t, used, w.Take("used", keyspace.Exclusive))
		w.WriteRaw("", used)
		var keys []string
		for i := range 1000 {
			key := w.Take(fmt.Sprint("name", i), keyspace.Exclusive)
			w.WriteRaw("", key)
			w.Free(key)
			keys = append(keys, key)
		}
		elapse(settleFor - time.Second)
		w.WriteOn(5, "", keys[0])
		sweep()
		require.Empty(t, w.There("name"), "a late write")
		elapse(time.Second)
		w.WriteOn(5, "", keys[0])
		sweep()
		require.Len(t, w.There("name"), 1, "another's")
		require.Len(t, w.raw, 1)
		require.Contains(t, w.raw, used)
	})
}

// A raw value that the session wrote late under a key is still its own when it writes the same there again, however much
// etcd has shown meanwhile.
func TestSettle_RawValueWrittenBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		key := w.Take("a", keyspace.Exclusive)
		w.WriteRaw("v", key)
		late := w.WriteOn(5, "v", key)
		_, err := w.etcd.Get(t.Context(), key)
		require.NoError(t, err)
		w.WriteRaw("v", key)
		require.True(t, w.WroteRaw(late, false, key))
		w.WriteRaw("another", key)
		require.False(t, w.WroteRaw(late, true, key))
	})
}

// One request looks after many unsettled entries, and there is one at a time. An entry that comes later has its own search.
func TestSettle_ManyInOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var reads atomic.Int32
		w.Step = func(_ context.Context, what string) error {
			if what == "Range" {
				if w.calls.Add(1); reads.Add(1) > 1 {
					t.Error("two searches at the same time")
				}
				elapse(time.Millisecond)
				reads.Add(-1)
			}
			return nil
		}
		for i := range 10 * etcd.Batch {
			keys, value := w.take(fmt.Sprintf("a/%d", i))
			w.WriteOn(5, value, keys...)
			w.Settle(keys...)
		}
		elapse(2 * settleFirst) // up to the second search: some came during the first one
		require.Zero(t, len(w.There("a/")))
		elapse(settleMax)
		w.calls.Store(0)
		elapse(settleMax)
		require.EqualValues(t, 10, w.calls.Load(), "a read for each batch")
		w.Settle(w.Take("b", keyspace.Exclusive))
		elapse(settleFirst)
		require.EqualValues(t, 10+1, w.calls.Load(), "only for what is due")
	})
}

// While etcd is slow, each release leaves an unsettled entry. The searches for their late writes are few, and each late write is
// found soon.
func TestSettle_NoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const n = 5000
		for i := range n {
			key := w.Take(fmt.Sprint("a/", i), keyspace.Exclusive)
			w.WriteOn(5, w.Value(time.Now(), nil, ""), key)
			w.Settle(key)
			elapse(time.Millisecond)
		}
		elapse(2 * settleFirst)
		require.Empty(t, w.There("a/"))
		elapse(2 * settleFor)
		require.False(t, w.InUse())
		const looks = 20 * n // that many for each, at most
		require.Less(t, int(w.calls.Load()), looks/etcd.Batch+2*n/int(settleFirst/time.Millisecond), "not a search of all for each")
	})
}

// forbids is an etcd that refuses each request about a key that begins with "secret".
type forbids struct {
	pb.KVClient
	over  atomic.Bool
	calls atomic.Int32 // that were refused for that
	most  int          // operations in a request, 0 for any number
	reads bool         // it lets reads through
}

// forbid puts such an etcd in the place of the world's.
func (w *world) forbid() (f *forbids) {
	f = &forbids{KVClient: w.Server}
	w.etcd.KV = clientv3.NewKVFromKVClient(f, w.etcd.Client)
	return f
}

func (f *forbids) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if f.most > 0 && len(r.Success) > f.most {
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	if !f.over.Load() && strings.Contains(r.String(), "secret") && (!f.reads || strings.Contains(r.String(), "request_delete_range")) {
		f.calls.Add(1)
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return f.KVClient.Txn(ctx, r, opts...)
}

// A request looks for many late writes. If etcd refuses it, because the client has lost its rights on one
// of the locks, the late writes of the other locks are still found, and their keys are free in the end.
func TestFault_A1_LateWritesBesideAForbiddenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		secret := w.forbid()
		for _, name := range []string{"a", "b", "secret", "c", "d"} {
			keys, value := w.take(name)
			w.WriteOn(5, value, keys...)
			w.Settle(keys...)
		}
		// Another user of the same lease has the key of the next entry.
		keys, _ := w.take("e")
		w.WriteOn(5, "", keys[0])
		w.Settle(keys...)
		elapse(2 * settleFirst)
		require.Equal(t, []string{"e/5", "secret/5", "secret/r5"}, w.There(""))
		_, err := w.Sweep(t.Context())
		require.NoError(t, err)
		require.False(t, w.Swept())
		elapse(2 * settleFor)
		require.Equal(t, "e/5", w.Take("e", keyspace.Exclusive))
		require.Equal(t, "a/5", w.Take("a", keyspace.Exclusive))
		require.Equal(t, "secret/5-1", w.Take("secret", keyspace.Exclusive), "a late write is there")
		secret.over.Store(true)
		elapse(settleRefused)
		require.Empty(t, w.There("secret/"))
	})
}

// The client has lost its rights on many keys that are being settled. Their searches get rare, and go on: when the client has the
// rights again, the keys become free.
func TestSettle_ForbiddenNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		secret := w.forbid()
		const n = 10 * etcd.Batch
		for i := range n {
			key := w.Take(fmt.Sprint("secret", i), keyspace.Exclusive)
			w.WriteOn(5, w.Value(time.Now(), nil, ""), key)
			w.Settle(key)
		}
		elapse(10 * time.Minute)
		secret.calls.Store(0)
		elapse(10 * time.Minute)
		require.Less(t, int(secret.calls.Load()), 10*2*n, "one search a minute, which takes the requests apart")
		require.Positive(t, int(secret.calls.Load()))
		secret.over.Store(true)
		elapse(settleRefused + settleFirst)
		require.Empty(t, w.There("secret"))
		require.False(t, w.InUse())
	})
}

// Etcd shows a late write, and refuses to remove it. The key is not free before the late write is removed.
func TestSettle_RemovalForbidden_I6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		secret := w.forbid()
		secret.reads = true
		keys, value := w.take("secret")
		w.WriteOn(5, value, keys...)
		w.Settle(keys...)
		elapse(2 * settleFor)
		require.Equal(t, keys, w.There("secret/"))
		require.Positive(t, int(secret.calls.Load()))
		require.True(t, w.InUse())
		secret.over.Store(true)
		elapse(settleRefused)
		require.Empty(t, w.There("secret/"))
		require.False(t, w.InUse())
	})
}

// The client has never had rights on a name that it tries to lock again and again, and some requests have no answer. The lease lists
// no key of that name, so nothing was written: the keys become free, and nobody asks for them any more.
func TestSettle_ForbiddenAndUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		secret := w.forbid()
		sweep := func() {
			_, err := w.Sweep(t.Context())
			require.NoError(t, err)
		}
		for range 10 {
			w.Settle(w.Take("secret", keyspace.Exclusive), w.Take("secret", keyspace.Shared))
		}
		written, value := w.take("secret written")
		w.WriteOn(5, value, written[1])
		w.Settle(written...)
		w.Settle(w.Take("a", keyspace.Exclusive))
		elapse(settleFor - time.Second)
		sweep()
		require.Equal(t, "secret/5-a", w.Take("secret", keyspace.Exclusive), "it is too soon")
		w.Free("secret/5-a")
		elapse(time.Second + settleFirst)
		sweep()
		require.Equal(t, "a/5-1", w.Take("a", keyspace.Exclusive), "a search will tell")
		w.Free("a/5-1")
		require.Equal(t, "secret/5", w.Take("secret", keyspace.Exclusive))
		require.Equal(t, "secret written/5-1", w.Take("secret written", keyspace.Exclusive), "the other key is listed")
		w.Free("secret/5", "secret written/5-1")
		secret.over.Store(true)
		elapse(settleRefused)
		require.Empty(t, w.There("secret"))
		require.False(t, w.InUse())
		calls := w.calls.Load()
		elapse(time.Hour)
		require.Equal(t, calls, w.calls.Load())
	})
}

// A request is executed minutes after it was given up, for example by a member that hung meanwhile. Its
// keys are still found and removed, and nothing else is.
func TestFault_A1_LateWriteAfterTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		kept, value := w.take("b")
		w.WriteOn(5, value, kept...)
		w.WriteOn(5, value, "a/5", "a/r5", "a/5-1", "a/5-7ffffffffffffff", "a/b/5/x", "b/5-1")
		w.WriteOn(5, "a value of another process with the same lease", "a/r5-2")
		there, err := w.Sweep(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1+1, w.calls.Load(), "a read of the keys that no entry uses, and a removal of the late writes")
		require.Len(t, there, 9)
		require.Contains(t, there, "b/5")
		require.Equal(t, []string{"a/5-7ffffffffffffff", "a/b/5/x", "a/r5-2", "b/5", "b/r5"}, w.There(""))

		// Another client removes a late write, and its key is in use again when it is read.
		w.Remove("a/r5-2")
		w.WriteOn(5, value, "c/5")
		w.Step = func(_ context.Context, what string) error {
			if what == "Range" && len(w.There("c/")) == 1 {
				w.Remove("c/5")
				keys, value := w.take("c")
				w.WriteOn(5, value, keys...)
			}
			return nil
		}
		_, err = w.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"c/5", "c/r5"}, w.There("c/"), "the new entry must not be taken for a late write")

		w.Step = func(context.Context, string) error { return rpctypes.ErrGRPCPermissionDenied }
		w.WriteOn(5, value, "d/5")
		_, err = w.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"d/5"}, w.There("d/"), "it is not known what was written")
		require.False(t, w.Swept())
		w.Step = func(context.Context, string) error { return nil }
		_, err = w.Sweep(t.Context())
		require.NoError(t, err)
		require.True(t, w.Swept())
	})
}

// There is nothing to look for on the lease until a key was taken, nor after its removal. But where a request may have
// been carried out unseen, another copy of it may write the key in minutes.
func TestNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		require.True(t, w.None())
		keys, _ := w.take("a")
		require.False(t, w.None())
		w.Free(keys...)
		require.True(t, w.None())
		keys, _ = w.take("a")
		w.Settle(keys...)
		<-time.After(2 * settleFor)
		synctest.Wait()
		require.False(t, w.InUse())
		require.False(t, w.None())
	})
}

// Keys that somebody else has are left to them, and are asked for again after a while.
func TestSettle_OthersKeys_I6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		keys, value := w.take("a")
		w.WriteOn(5, "a value of another user of the lease", keys[0])
		w.WriteOn(5, value, keys[1]) // of an entry before it
		given := slices.Clone(keys)
		w.Settle(given...)
		clear(given) // whoever had them takes others
		synctest.Wait()
		require.Equal(t, []string{"a/5"}, w.There("a/"))
		require.Equal(t, "a/5-1", w.Take("a", keyspace.Exclusive))
		require.Equal(t, "a/r5-1", w.Take("a", keyspace.Shared))
		w.WriteOn(5, value, keys[1]) // another late write
		_, err := w.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"a/5"}, w.There("a/"))
		elapse(settleFor + settleMax)
		require.Equal(t, []string{"a/5"}, w.There("a/"))
		require.Equal(t, "a/5", w.Take("a", keyspace.Exclusive), "the other user may have left")
	})
}

func TestValue(t *testing.T) {
	w := newWorld(t)
	w.owner, w.nonce = inJSON(`me "too"`), "1f."
	queued := time.Date(2026, 5, 4, 5, 2, 1, 5_999_999, time.FixedZone("", 2*3600))
	value := w.Value(queued, nil, "")
	require.Equal(t, `{"owner":"me \"too\"","queued":"2026-05-04T03:02:01.005Z","nonce":"1f.1"}`, value)
	multi := w.Value(queued, []string{"a/b", `"c"`}, "")
	require.Equal(t, `{"owner":"me \"too\"","queued":"2026-05-04T03:02:01.005Z","nonce":"1f.2","names":["a/b","\"c\""]}`, multi)

	parse := func(value string, limit int) []any {
		v := ParseValue(value, limit)
		return []any{v.Owner, v.Queued, v.Names}
	}
	when := queued.UTC().Truncate(time.Millisecond)
	require.Equal(t, []any{`me "too"`, when, []string(nil)}, parse(value, 2))
	require.Equal(t, []any{`me "too"`, when, []string{"a/b", `"c"`}}, parse(multi, 2))
	require.Equal(t, []any{`me "too"`, when, []string(nil)}, parse(multi, 1))
	require.Equal(t, []any{"", time.Time{}, []string(nil)}, parse(`{"names": ["a", "b\n"]}`, 2))
	for _, others := range []string{
		"", "x", `{"owner": 7}`, `{"queued": "now"}`, `{"addr":"h:1","nonce":"abc"}`, `{"Nonce":"1.2","value":"v"}`, `{"names":["svc","x"]}`,
	} {
		require.Equal(t, []any{"", time.Time{}, []string(nil)}, parse(others, 2), others)
		require.Equal(t, others, ParseValue(others, 2).Published, "what others wrote is what they publish")
		require.Equal(t, "new", withPublished(others, "new"))
	}
	// The last field of the object, which is replaced, whatever the others have in them.
	w.owner = inJSON(`,"value":"x"}`)
	value = w.Value(queued, []string{`a,"value":"b"`}, `"v"`)
	require.Equal(t, `{"owner":",\"value\":\"x\"}","queued":"2026-05-04T03:02:01.005Z","nonce":"1f.3","names":["a,\"value\":\"b\""],"value":"\"v\""}`, value)
	for _, published := range []string{"w", "", `"},`, "x"} {
		value = withPublished(value, published)
		got := ParseValue(value, 2)
		require.Equal(t, Parsed{Owner: `,"value":"x"}`, Queued: when, Nonce: "1f.3", Names: []string{`a,"value":"b"`}, Published: published}, got)
	}
}

// An entry is adopted under a key that is being settled. The search for late writes leaves the entry alone, also one that
// has read it before.
func TestKeys_AdoptedWhileSettled_I6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		keys, _ := w.take("a")
		w.WriteOn(5, "of the process before", keys...)
		a := &Adopted{Rev: 2, Value: "of the process before", Parts: []Part{{"a", queue.Acquisition{Key: keys[0], SharedKey: keys[1]}}}}
		inUse := w.claim(a)
		require.NotNil(t, inUse, "it has a user")
		claimed := false
		w.Step = func(_ context.Context, what string) error {
			if !claimed {
				claimed = w.claim(a) == nil
			}
			return nil
		}
		w.Settle(keys...)
		<-inUse
		require.Empty(t, w.changed)
		elapse(2 * settleFor)
		require.True(t, claimed)
		require.Equal(t, keys, w.There("a/"))
		require.True(t, w.InUse(), "its new user frees it")
		w.Free(keys...)
		require.False(t, w.InUse())
	})
}

// An entry that is adopted and then left to the next Adopt is none of the session's: what the session itself may have written
// under its key before is a late write as ever.
func TestUnclaim_RawValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, before := range []bool{false, true} {
			if before {
				w.WriteRaw("own", w.Take("a", keyspace.Exclusive))
				w.Free("a/5")
			}
			w.WriteOn(5, "another's", "a/5")
			a, err := w.Adopt(t.Context(), "a", 32, func(string, int64) bool { return false })
			require.NoError(t, err)
			w.Unclaim(a)
			for value, late := range map[string]bool{"another's": false, "own": before} {
				w.Do(fakeetcd.RemoveOp("a/5"))
				w.WriteOn(5, value, "a/5")
				_, err := w.Sweep(t.Context())
				require.NoError(t, err)
				require.Equal(t, late, len(w.There("a/")) == 0, value)
			}
		}
	})
}

// An entry is claimed under keys that are being settled, and left to the next Adopt. The keys are settled again from the start.
func TestUnclaim_KeysToSettle_I6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		keys, _ := w.take("a")
		w.WriteOn(5, "of the process before", keys...)
		w.Settle(keys...)
		elapse(settleFor / 2)
		a := &Adopted{Rev: 2, Value: "of the process before", Parts: []Part{{"a", queue.Acquisition{Key: keys[0], SharedKey: keys[1]}}}}
		require.Nil(t, w.claim(a))
		w.Unclaim(a)
		elapse(settleFor - settleMax)
		require.True(t, w.InUse())
		elapse(3 * settleMax)
		require.False(t, w.InUse())
		require.Equal(t, keys, w.There("a/"))
	})
}

// An Adopt waits while another one judges the entry. The other one ends without an answer, and leaves the entry to it.
func TestUnclaim_ForAnAdoptThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rev := w.WriteOn(5, "one", "a/5", "a/r5")
		adopt := func(ctx context.Context) (*Adopted, error) {
			return w.Adopt(ctx, "a", 32, func(string, int64) bool { return false })
		}
		ctx, cancel := context.WithCancel(t.Context())
		var second atomic.Bool
		w.Step = func(ctx context.Context, _ string) error {
			if w.InUse() && !second.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		first, next := make(chan error, 1), make(chan *Adopted, 1)
		go func() { _, err := adopt(ctx); first <- err }()
		synctest.Wait()
		second.Store(true)
		go func() { a, _ := adopt(t.Context()); next <- a }()
		synctest.Wait()
		require.Empty(t, next)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		a := <-next
		require.Equal(t, rev, a.Rev)
		require.Empty(t, w.changed)
	})
}

// Between the reading and the claim of an Adopt, another one takes the entry. That is told before the first one waits, which has
// nothing to wait for then.
func TestAdopt_TakenAfterItWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		value := w.Value(time.Now(), []string{"a", "b"}, "")
		w.nonce = "another.s"
		w.WriteOn(5, value, "a/5", "b/5")
		adopt := func() *Adopted {
			a, err := w.Adopt(t.Context(), "a", 32, func(string, int64) bool { return false })
			require.NoError(t, err)
			return a
		}
		var reads atomic.Int32
		w.Step = func(_ context.Context, what string) error {
			if what == "Range." && reads.Add(1) == 2 { // the keys of both names
				w.Entered(adopt().keys())
			}
			return nil
		}
		require.Nil(t, adopt())
		require.True(t, w.InUse())
	})
}

// A key of the entry is removed between the reading and the claim. Of a write lock the rest is adopted; the rest of a Multi is
// removed.
func TestAdopt_KeyRemovedAfterItWasRead(t *testing.T) {
	for _, c := range []struct {
		keys    []string
		removed string
		adopted []string
	}{
		{[]string{"a/5", "a/r5"}, "a/r5", []string{"a/5"}},
		{[]string{"a/5", "a/r5"}, "a/5", []string{"a/r5"}},
		{[]string{"a/5", "b/5"}, "b/5", nil},
		{[]string{"a/5"}, "a/5", nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			value := "one"
			if c.removed == "b/5" {
				value = w.Value(time.Now(), []string{"a", "b"}, "")
				w.nonce = "another.s"
			}
			rev := w.WriteOn(5, value, c.keys...)
			w.Step = func(context.Context, string) error {
				if w.InUse() { // it was read, and claimed
					w.Remove(c.removed)
				}
				return nil
			}
			a, err := w.Adopt(t.Context(), "a", 32, func(string, int64) bool { return false })
			require.NoError(t, err)
			if c.adopted == nil {
				require.Nil(t, a)
				require.Empty(t, w.There(""))
				require.False(t, w.InUse())
				return
			}
			require.Equal(t, rev, a.Rev)
			require.Equal(t, c.adopted, a.keys())
			require.Equal(t, c.adopted, w.There(""))
			require.True(t, a.Holds)
		})
	}
}

// A key of the entry was put on another lease by somebody: what is left is adopted. Adopt does not ask for the key for ever.
func TestAdopt_KeyOnAnotherLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.WriteOn(5, "one", "a/5", "a/r5")
		w.WriteOn(6, "one", "a/r5")
		a, err := w.Adopt(t.Context(), "a", 32, func(string, int64) bool { return false })
		require.NoError(t, err)
		require.Equal(t, []string{"a/5"}, a.keys())
	})
}

// Adopt reads only the keys of its name, however many names the lease has: two requests if there is an entry, one if there is none.
// The oldest entry comes first.
func TestAdopt_Requests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own := map[int64]bool{}
		adopt := func(name string, requests int32, keys ...string) {
			before := w.calls.Load()
			a, err := w.Adopt(t.Context(), name, 32, func(_ string, rev int64) bool { return own[rev] })
			require.NoError(t, err)
			require.Equal(t, requests, w.calls.Load()-before)
			if keys == nil {
				require.Nil(t, a)
				return
			}
			require.Equal(t, keys, a.keys())
			own[a.Rev] = true
		}
		w.WriteOn(5, "one", "a/5")
		w.WriteOn(5, "two", "a/5-2", "a/r5")
		w.WriteOn(5, "three", "a/5-1")
		for _, others := range []string{"a/50", "a/r50", "a/5/5", "a/5/r5", "ab/5", "a0/5"} {
			w.WriteOn(5, "another's", others)
		}
		adopt("a", 2, "a/5")
		adopt("a", 2, "a/5-2", "a/r5")
		adopt("a", 2, "a/5-1")
		adopt("a", 1)
		adopt("c", 1)
	})
}

// Etcd denies the rights on some entries. What is done for the others is done, and of thousands that are denied few are asked for.
func TestApart(t *testing.T) {
	all := make([]int, 3000)
	for i := range all {
		all[i] = i
	}
	for name, denied := range map[string]func(int) bool{
		"none": func(int) bool { return false },
		"one":  func(i int) bool { return i == 5 },
		"two":  func(i int) bool { return i == 1000 || i == 2999 },
		"all":  func(int) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			var done, want []int
			refusals := 0
			err := Apart(all, MaxDenials, func(some []int) error {
				require.LessOrEqual(t, len(some), 2*etcd.Batch)
				if slices.ContainsFunc(some, denied) {
					refusals++
					return rpctypes.ErrPermissionDenied
				}
				done = append(done, some...)
				return nil
			})
			for _, i := range all {
				if !denied(i) {
					want = append(want, i)
				}
			}
			require.Equal(t, want, done)
			require.LessOrEqual(t, refusals, MaxDenials)
			if refusals == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			}
		})
	}
	done := 0
	require.NoError(t, Apart(all, MaxDenials, func(some []int) error {
		if len(some) > etcd.Batch {
			return rpctypes.ErrTooManyOps
		}
		done += len(some)
		return nil
	}))
	require.Equal(t, len(all), done)
	for _, err := range []error{context.Canceled, rpctypes.ErrCorrupt} { // which would be so of each half
		asked := 0
		require.ErrorIs(t, Apart(all[:etcd.Batch], MaxDenials, func([]int) error { asked++; return err }), err)
		require.Equal(t, 1, asked)
	}
}

// A key is unsettled after the timer of a search has fired and before the search begins, so the timer fires again. One search is at
// work all the same, and the second one does not end it.
func TestSettle_OneSearchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		begun := make(chan func(context.Context), 4)
		w.background = func(f func(context.Context)) bool {
			begun <- f
			return true
		}
		w.Settle(w.Take("a", keyspace.Exclusive))
		first := <-begun
		w.Settle(w.Take("b", keyspace.Exclusive))
		second := <-begun
		answer := make(chan struct{})
		w.Step = func(_ context.Context, what string) error {
			if what == "Range" {
				<-answer
			}
			return nil
		}
		go first(t.Context())
		synctest.Wait()
		second(t.Context())
		w.Settle(w.Take("c", keyspace.Exclusive))
		elapse(2 * settleFirst)
		beside := len(begun)
		close(answer)
		require.Zero(t, beside, "a search beside the first one")
		elapse(2 * settleFirst)
		require.Len(t, begun, 1)
	})
}
