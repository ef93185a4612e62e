package etcdlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// inNamespace wraps a client as the documentation of clientv3/namespace describes it.
func inNamespace(c *clientv3.Client, prefix string) *clientv3.Client {
	c.KV = namespace.NewKV(c.KV, prefix)
	c.Watcher = namespace.NewWatcher(c.Watcher, prefix)
	c.Lease = namespace.NewLease(c.Lease, prefix)
	return c
}

// Locks in a namespace write no key outside it, do not conflict with locks outside it, and
// are handed over and lost like any other lock.
func TestFault_D4_Namespace(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	raw := own.Client(t)
	history := record(t, raw, "")
	s := newTestSession(t, inNamespace(own.Client(t), "ns/"))
	proxy := own.Proxy(t)
	other := newTestSession(t, inNamespace(own.Client(t, proxy), "ns/"))
	outside := newTestSession(t, inNamespace(own.Client(t), "ns2/"))
	for kind, lock := range lockFuncs(s, "a") {
		h, err := lock(testCtx(t))
		require.NoError(t, err, kind)
		h2, err := NewMutex(outside, "a").TryLock(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, h2.Unlock(testCtx(t)))
		_, err = NewMutex(other, "a").TryLock(testCtx(t))
		require.ErrorIs(t, err, ErrLocked)
		var tickets []*Ticket
		for _, enqueue := range []func(context.Context) (*Ticket, error){NewMutex(other, "a").Enqueue, NewRWMutex(other, "a").Enqueue, NewRWMutex(s, "a").REnqueue, NewRWMutex(other, "a").REnqueue} {
			tk, err := enqueue(testCtx(t))
			require.NoError(t, err)
			tickets = append(tickets, tk)
		}
		notGranted(t, tickets[0], 1)
		_, err = h.Txn(testCtx(t)).Then(clientv3.OpPut("x", kind)).Commit()
		require.NoError(t, err)
		require.NoError(t, h.Check(testCtx(t)))
		proxy.Reset()
		require.NoError(t, h.Unlock(testCtx(t)))
		for _, tk := range tickets {
			h, err := tk.Wait(testCtx(t))
			require.NoError(t, err)
			if h.mode == writeMode {
				require.NoError(t, h.Downgrade(testCtx(t)))
			}
			require.NoError(t, h.Unlock(testCtx(t)))
		}
		// The lock is lost because a client outside the namespace deletes the entry.
		h, err = lock(testCtx(t))
		require.NoError(t, err)
		done := h.Done()
		require.NoError(t, h.Check(testCtx(t)))
		began := time.Now()
		_, err = raw.Delete(testCtx(t), "ns/"+h.Key())
		require.NoError(t, err)
		<-done
		require.ErrorIs(t, h.Err(), ErrLost)
		require.NoError(t, s.Err())
		require.Less(t, time.Since(began), told, kind)
		requireGone(t, raw, "ns/a")
	}
	all := history()
	require.NotEmpty(t, all.put)
	for key := range all.put {
		require.True(t, strings.HasPrefix(key, "ns/") || strings.HasPrefix(key, "ns2/a/"), key)
	}
}

// No watch opens, and the Watcher of this client can't be replaced as etcd's own can: waits
// and holds ask etcd instead.
func TestFault_C6_NoWatchInANamespace(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Mutex", "RWMutex", "RWMutex read"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			raw := cluster.Client(t)
			client, w := wiredClient(t, cluster)
			s := newTestSession(t, inNamespace(client, "ns/"))
			w.OnStream(func(ctx context.Context, method string) error {
				if method == "Watch" { // like a member that hangs
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			name := lockName(t)
			first, err := NewMutex(newTestSession(t, cluster.Client(t)), "ns/"+name).Lock(testCtx(t))
			require.NoError(t, err)
			granted := inBackground(t, lockFuncs(s, name)[kind])
			require.Eventually(t, func() bool { return len(entries(t, raw, "ns/"+name)) > 1 }, hang, tick)
			require.NoError(t, first.Unlock(testCtx(t)))
			h := <-granted
			require.NotNil(t, h)
			done := h.Done()
			require.NoError(t, h.Check(testCtx(t)))
			_, err = raw.Delete(testCtx(t), "ns/"+h.Key())
			require.NoError(t, err)
			select {
			case <-done:
			case <-time.After(hang):
				t.Fatal("the holder is not told of the loss")
			}
			require.ErrorIs(t, h.Err(), ErrLost)
			require.NoError(t, s.Err())
			requireGone(t, raw, "ns/"+name)
		})
	}
}
