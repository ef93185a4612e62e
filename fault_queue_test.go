package etcdlock

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// queueLog is what etcd did with the keys below a prefix, as it tells itself.
type queueLog struct {
	put, deleted map[string][]int64 // revisions, by key
}

// record records the history of a prefix from now on. stop returns what it was up
// to that moment.
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
		_, err := c.Put(testCtx(t), last, "")
		require.NoError(t, err)
		<-done
		cancel()
		return h
	}
}

// Fifty wait, while all connections are reset each second and the history is
// compacted ten times as often. Each keeps its place, and all are granted in the
// order of their coming.
func TestFault_C2_QueueThroughCompactionsAndResets(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	observer := own.Client(t)
	stop := record(t, observer, "a/")
	first, err := NewMutex(newTestSession(t, observer), "a").Lock(testCtx(t))
	require.NoError(t, err)

	proxy := own.Proxy(t)
	ctx, cancel := context.WithCancel(context.Background())
	var chaos, waiters sync.WaitGroup
	defer chaos.Wait()
	defer cancel()
	compactions, resets := 0, 0
	chaos.Go(func() {
		for ; pause(ctx, 100*time.Millisecond) == nil; compactions++ {
			if _, err := observer.Put(ctx, "elsewhere", ""); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if _, err := own.Compact(testCtx(t)); err != nil {
				t.Error(err)
			}
		}
	})
	chaos.Go(func() {
		for ; pause(ctx, time.Second) == nil; resets++ {
			proxy.Reset()
		}
	})
	defer waiters.Wait()
	holds := make([]*Held, 50)
	var mu sync.Mutex
	var granted []int64
	var clients []*clientv3.Client
	for range 5 {
		clients = append(clients, own.Client(t, proxy))
	}
	for i := range holds {
		s := newTestSession(t, clients[i%len(clients)])
		lock := []func(context.Context) (*Held, error){NewMutex(s, "a").Lock, NewRWMutex(s, "a").Lock, NewRWMutex(s, "a").RLock}[i%3]
		waiters.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), seconds(t)+hang)
			defer cancel()
			h, err := lock(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			holds[i] = h
			if h.wants != readHold { // readers are granted together
				mu.Lock()
				granted = append(granted, h.Token())
				mu.Unlock()
			}
			elapse(20 * time.Millisecond) // so that there is trouble while they leave
			if err := h.Unlock(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool {
		return len(entries(t, observer, "a")) == 1+50+17 // a write lock has two keys
	}, hang, tick)
	elapse(seconds(t) / 2)
	require.NoError(t, first.Unlock(testCtx(t)))
	waiters.Wait()
	cancel()
	chaos.Wait()
	h := stop()
	require.False(t, t.Failed())
	require.True(t, slices.IsSorted(granted), granted)
	require.Len(t, h.put, 1+50+17, "an entry came into the queue again")
	left := map[int64]int64{first.Token(): h.deleted[first.Key()][0]}
	for _, hold := range holds {
		require.Equal(t, []int64{hold.Token()}, h.put[hold.Key()])
		require.Len(t, h.deleted[hold.Key()], 1)
		left[hold.Token()] = h.deleted[hold.Key()][0]
	}
	for _, hold := range holds {
		for _, before := range holds {
			if before.Token() < hold.Token() && (before.wants != readHold || hold.wants != readHold) {
				require.Less(t, left[before.Token()], left[hold.Token()])
			}
		}
	}
	t.Logf("shown: 50 waiters through %d compactions and %d resets: all in their places", compactions, resets)
}
