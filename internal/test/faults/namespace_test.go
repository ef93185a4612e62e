package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Rows D4 and C6: names that begin with each other, and clients in a namespace.

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
	s := newSession(t, inNamespace(own.Client(t), "ns/"))
	proxy := own.Proxy(t)
	other := newSession(t, inNamespace(own.Client(t, proxy), "ns/"))
	outside := newSession(t, inNamespace(own.Client(t), "ns2/"))
	for kind, lock := range lockFuncs(s, "a") {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err, kind)
		h2, err := etcdlock.NewMutex(outside, "a").TryLock(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h2.Unlock(harness.Ctx(t)))
		_, err = etcdlock.NewMutex(other, "a").TryLock(harness.Ctx(t))
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		var tickets []*etcdlock.Ticket
		for _, enqueue := range []func(context.Context) (*etcdlock.Ticket, error){etcdlock.NewMutex(other, "a").Enqueue, etcdlock.NewRWMutex(other, "a").Enqueue, etcdlock.NewRWMutex(s, "a").REnqueue, etcdlock.NewRWMutex(other, "a").REnqueue} {
			tk, err := enqueue(harness.Ctx(t))
			require.NoError(t, err)
			tickets = append(tickets, tk)
		}
		harness.NotGranted(t, tickets[0], 1)
		_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("x", kind)).Commit()
		require.NoError(t, err)
		require.NoError(t, h.Check(harness.Ctx(t)))
		proxy.Reset()
		require.NoError(t, h.Unlock(harness.Ctx(t)))
		for i, tk := range tickets {
			h, err := tk.Wait(harness.Ctx(t))
			require.NoError(t, err)
			if i == 1 { // the write lock
				require.NoError(t, h.Downgrade(harness.Ctx(t)))
			}
			require.NoError(t, h.Unlock(harness.Ctx(t)))
		}
		// The lock is lost because a client outside the namespace deletes the entry.
		h, err = lock(harness.Ctx(t))
		require.NoError(t, err)
		done := h.Done()
		require.NoError(t, h.Check(harness.Ctx(t)))
		_, err = raw.Delete(harness.Ctx(t), "ns/"+h.Key())
		require.NoError(t, err)
		harness.RequireTold(t, done, kind)
		require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
		require.NoError(t, s.Err())
		harness.RequireGone(t, raw, "ns/a")
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
			client, w := harness.WiredClient(t, cluster)
			s := newSession(t, inNamespace(client, "ns/"))
			w.OnStream(func(ctx context.Context, method string) error {
				if method == "Watch" { // like a member that hangs
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			name := harness.LockName(t)
			first, err := etcdlock.NewMutex(newSession(t, cluster.Client(t)), "ns/"+name).Lock(harness.Ctx(t))
			require.NoError(t, err)
			granted := harness.InBackground(t, lockFuncs(s, name)[kind])
			require.Eventually(t, func() bool { return len(harness.Entries(t, raw, "ns/"+name)) > 1 }, harness.Hang, harness.Tick)
			require.NoError(t, first.Unlock(harness.Ctx(t)))
			h := <-granted
			require.NotNil(t, h)
			done := h.Done()
			require.NoError(t, h.Check(harness.Ctx(t)))
			_, err = raw.Delete(harness.Ctx(t), "ns/"+h.Key())
			require.NoError(t, err)
			select {
			case <-done:
			case <-time.After(harness.Hang):
				t.Fatal("the holder is not told of the loss")
			}
			require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
			require.NoError(t, s.Err())
			harness.RequireGone(t, raw, "ns/"+name)
		})
	}
}

func TestFault_D4_NestedNamesDontMeet(t *testing.T) {
	s := newSession(t, cluster.Client(t))
	base := harness.LockName(t)
	var holds []*etcdlock.Held
	for _, name := range []string{base, base + "/b", base + "/b/c", base + "//", base + "/r1", base + "/..", base + "/ü"} {
		lock := etcdlock.NewMutex(s, name).TryLock
		h, err := lock(harness.Ctx(t))
		if name == base+"//" {
			require.ErrorIs(t, err, etcdlock.ErrInvalidName)
			continue
		}
		require.NoError(t, err, name)
		holds = append(holds, h)
	}
	// The other order: the locks with longer names are already held.
	h, err := etcdlock.NewMutex(s, base+"/b").TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.Nil(t, h)
	require.NoError(t, holds[0].Unlock(harness.Ctx(t)))
	for _, lock := range lockFuncs(s, base) {
		h, err := lock(harness.Ctx(t))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
	for _, h := range holds[1:] {
		require.NoError(t, h.Unlock(harness.Ctx(t)))
	}
}
