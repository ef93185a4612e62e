package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Rows C2, D7, D8 and F14: long queues, and holders that are stuck.

// queueLog is the history of the keys below a prefix, as etcd reports it.
type queueLog struct {
	put, deleted map[string][]int64 // revisions, by key
}

// record records the history of a prefix from now on. stop returns the history up to the
// moment of its call.
func record(t *testing.T, c *clientv3.Client, prefix string) (stop func() queueLog) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	h := queueLog{put: map[string][]int64{}, deleted: map[string][]int64{}}
	done := make(chan struct{})
	last := prefix + "\x00the end"
	go func() {
		defer close(done)
		for wr := range events {
			if err := wr.Err(); err != nil {
				t.Error(err)
			}
			for _, ev := range wr.Events {
				key := string(ev.Kv.Key)
				switch {
				case key == last:
					return
				case ev.Type == clientv3.EventTypePut:
					h.put[key] = append(h.put[key], ev.Kv.ModRevision)
				default:
					h.deleted[key] = append(h.deleted[key], ev.Kv.ModRevision)
				}
			}
		}
	}()
	return func() queueLog {
		_, err := c.Put(harness.Ctx(t), last, "")
		require.NoError(t, err)
		<-done
		cancel()
		return h
	}
}

// Fifty waiters wait while all connections are reset once a second and the history is
// compacted ten times a second. Each waiter keeps its place, and all are granted in the order
// of their arrival.
func TestFault_C2_QueueThroughCompactionsAndResets(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	observer := own.Client(t)
	stop := record(t, observer, "a/")
	first, err := etcdlock.NewMutex(newSession(t, observer), "a").Lock(harness.Ctx(t))
	require.NoError(t, err)

	proxy := own.Proxy(t)
	ctx, cancel := context.WithCancel(context.Background())
	var chaos, waiters sync.WaitGroup
	defer chaos.Wait()
	defer cancel()
	compactions, resets, lasts := 0, 0, seconds(t)
	chaos.Go(func() { // one after the other: while etcd is slow, sessions need longer between two faults
		for ; etcd.Sleep(ctx, 100*time.Millisecond) == nil; compactions++ {
			if compactions%10 == 9 {
				proxy.Reset()
				resets++
			}
			if _, err := observer.Put(ctx, "elsewhere", ""); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if _, err := own.Compact(harness.Ctx(t)); err != nil {
				t.Error(err)
			}
		}
	})
	defer waiters.Wait()
	holds := make([]*etcdlock.Held, 50)
	var mu sync.Mutex
	var granted []int64
	var clients []*clientv3.Client
	for range 5 {
		clients = append(clients, own.Client(t, proxy))
	}
	reads := func(i int) bool { return i%3 == 2 }
	for i := range holds {
		s := newSession(t, clients[i%len(clients)], etcdlock.WithTTL(time.Minute))
		lock := []func(context.Context) (*etcdlock.Held, error){etcdlock.NewMutex(s, "a").Lock, etcdlock.NewRWMutex(s, "a").Lock, etcdlock.NewRWMutex(s, "a").RLock}[i%3]
		waiters.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), lasts+4*harness.Hang) // for all fifty, one after the other
			defer cancel()
			h, err := lock(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			holds[i] = h
			if !reads(i) { // readers are granted together, in no order
				mu.Lock()
				granted = append(granted, h.Token())
				mu.Unlock()
			}
			harness.Elapse(20 * time.Millisecond) // so that faults happen while the holders unlock
			if err := h.Unlock(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool {
		return len(harness.Entries(t, observer, "a")) == 1+50+17 // a write lock has two keys
	}, harness.Hang, harness.Tick)
	harness.Elapse(lasts / 2)
	require.NoError(t, first.Unlock(harness.Ctx(t)))
	waiters.Wait()
	cancel()
	chaos.Wait()
	h := stop()
	require.False(t, t.Failed())
	require.True(t, slices.IsSorted(granted), granted)
	require.Len(t, h.put, 1+50+17, "no entry may be written again")
	left := map[int64]int64{first.Token(): h.deleted[first.Key()][0]}
	for _, hold := range holds {
		require.Equal(t, []int64{hold.Token()}, h.put[hold.Key()])
		require.Len(t, h.deleted[hold.Key()], 1)
		left[hold.Token()] = h.deleted[hold.Key()][0]
	}
	for i, hold := range holds {
		for j, before := range holds {
			if before.Token() < hold.Token() && (!reads(i) || !reads(j)) {
				require.Less(t, left[before.Token()], left[hold.Token()])
			}
		}
	}
	t.Logf("shown: 50 waiters through %d compactions and %d resets: all kept their places", compactions, resets)
}

// listed is how many keys of a queue an enqueue lists.
const listed = 16

// How much a waiter reads does not depend on the number of waiters before it.
func TestFault_D7_NobodyReadsTheQueue(t *testing.T) {
	t.Parallel()
	many := sample.Rounds(t, 200, 500)
	c := cluster.Client(t)
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		for _, n := range []int{10, many} {
			name := harness.LockName(t)
			var before []string
			for i := range n {
				before = append(before, harness.ExclusiveKey(name, clientv3.LeaseID(0x1000+i)))
				_, err := c.Put(harness.Ctx(t), before[i], "")
				require.NoError(t, err)
			}
			tap := etcdtest.NewTap()
			var mu sync.Mutex
			keys := map[string]int{} // in the answers to each request: one that is slow is sent again beside itself
			count := func(call *etcdtest.Call, n int) {
				mu.Lock()
				defer mu.Unlock()
				request := fmt.Sprint(call.Request)
				keys[request] = max(keys[request], n)
			}
			tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
				err := call.Send(ctx)
				if r := harness.RangesOf(call.Request); len(r) > 0 && r[0].Serializable && r[0].Revision == 0 {
					return err // once, if it waits for long: see TestRequests_Whom
				}
				listed := 0
				for _, r := range call.Reply.(*pb.TxnResponse).Responses {
					listed += len(r.GetResponseRange().GetKvs())
				}
				count(call, listed)
				return err
			})
			s := newSession(t, cluster.Client(t, tap))
			granted := harness.InBackground(t, lockFuncs(s, name)[kind])
			require.Eventually(t, func() bool { return len(tap.WatchCreates()) > 0 }, harness.Hang, harness.Tick, "it waits for nothing")
			for _, key := range before {
				_, err := c.Delete(harness.Ctx(t), key)
				require.NoError(t, err)
			}
			h := <-granted
			require.NotNil(t, h)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			mu.Lock()
			sum := 0
			for _, n := range keys {
				sum += n
			}
			mu.Unlock()
			// It reads 9 keys three times, and again when the machine has stalled.
			require.LessOrEqual(t, sum, listed+10*9, "%s behind %d entries reads their keys", kind, n)
		}
	}
}

// The holder of a lock asks for it again: it gets an error at once, without a request.
func TestFault_D8_OwnHolder(t *testing.T) {
	t.Parallel()
	tap := etcdtest.NewTap()
	s := newSession(t, cluster.Client(t, tap))
	name := harness.LockName(t)
	rw := etcdlock.NewRWMutex(s, name)
	require.NoError(t, rw.RDo(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) error {
		requests := tap.Calls("Txn")
		for _, lock := range []func(context.Context) (*etcdlock.Held, error){rw.Lock, rw.RLock, etcdlock.NewMutex(s, name).Lock} {
			_, err := lock(ctx)
			require.ErrorIs(t, err, etcdlock.ErrWouldDeadlock)
		}
		require.ErrorIs(t, rw.Do(ctx, nil), etcdlock.ErrWouldDeadlock)
		require.NoError(t, rw.RDo(ctx, func(context.Context, *etcdlock.Held) error { return nil }))
		require.Equal(t, requests, tap.Calls("Txn"))
		// Without Do's ctx this can't be detected, and the wait ends with its ctx.
		require.ErrorIs(t, returnsWithCtx(t, 100*time.Millisecond, func(ctx context.Context) error {
			_, err := rw.Lock(ctx)
			return err
		}), context.DeadlineExceeded)
		return h.Check(ctx)
	}))
}

// A holder is stuck, but its session lives. It keeps the lock until an operator, who sees
// who has the lock and since when, deletes the entry.
func TestFault_F14_StuckHolder(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t)
	name := harness.LockName(t)
	s := newSession(t, cluster.Client(t), etcdlock.WithOwner("batch-7"), etcdlock.WithTTL(8*time.Second))
	var next *etcdlock.Ticket
	err := etcdlock.NewMutex(s, name).Do(harness.Ctx(t), func(ctx context.Context, h *etcdlock.Held) (err error) {
		next, err = etcdlock.NewMutex(newSession(t, c), name).Enqueue(harness.Ctx(t))
		require.NoError(t, err)
		harness.Elapse(2 * s.TTL())
		harness.NotGranted(t, next, 1)
		require.True(t, h.Valid())
		got, err := c.Get(harness.Ctx(t), name+"/", clientv3.WithFirstCreate()...)
		require.NoError(t, err)
		require.Equal(t, h.Key(), string(got.Kvs[0].Key))
		var says struct {
			Owner  string
			Queued time.Time
		}
		require.NoError(t, json.Unmarshal(got.Kvs[0].Value, &says))
		require.Equal(t, "batch-7", says.Owner)
		require.WithinDuration(t, time.Now(), says.Queued, harness.Hang)
		_, err = c.Delete(harness.Ctx(t), string(got.Kvs[0].Key))
		require.NoError(t, err)
		<-ctx.Done()
		after, err := next.Wait(harness.Ctx(t))
		require.NoError(t, err)
		require.Greater(t, after.Token(), h.Token())
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut(name+".x", "stale")).Commit()
		require.ErrorIs(t, err, etcdlock.ErrLost)
		return after.Unlock(harness.Ctx(t))
	})
	require.ErrorIs(t, err, etcdlock.ErrLost)
}
