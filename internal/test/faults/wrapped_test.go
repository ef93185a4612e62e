package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/ordering"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Row D4: clients whose requests pass through a wrapper that etcd's client comes with.

// countedKV is a user's own wrapper. It counts the transactions that pass through it.
type countedKV struct {
	clientv3.KV
	txns atomic.Int64
}

func (kv *countedKV) Txn(ctx context.Context) clientv3.Txn {
	kv.txns.Add(1)
	return kv.KV.Txn(ctx)
}

// A client whose KV is wrapped as the wrapper's documentation says takes locks, waits beside a client without a wrapper,
// is told of a loss, and leaves nothing behind when it closes.
func TestFault_D4_WrappedKV(t *testing.T) {
	t.Parallel()
	wrap := map[string]func(t *testing.T, c *clientv3.Client) clientv3.KV{
		"ordering": func(_ *testing.T, c *clientv3.Client) clientv3.KV {
			return ordering.NewKV(c.KV, ordering.NewOrderViolationSwitchEndpointClosure(c))
		},
		"leasing": func(t *testing.T, c *clientv3.Client) clientv3.KV {
			kv, closeKV, err := leasing.NewKV(c, "leases/")
			require.NoError(t, err)
			t.Cleanup(closeKV)
			return kv
		},
	}
	for kind, kv := range wrap {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			own := etcdtest.Start(t)
			outside := own.Client(t)
			client := own.Client(t)
			counted := &countedKV{KV: kv(t, client)}
			client.KV = counted
			locks, others := newClient(t, client, etcdlock.WithTTL(2*time.Second)), newClient(t, outside)

			h, err := locks.Mutex("a").Lock(harness.Ctx(t))
			require.NoError(t, err)
			_, err = others.Mutex("a").TryLock(harness.Ctx(t))
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			theirs := harness.InBackground(t, others.Mutex("a").Lock)
			require.Eventually(t, func() bool { return len(harness.Entries(t, outside, "a")) == 2 }, harness.Hang, harness.Tick)
			require.NoError(t, h.Unlock(harness.Ctx(t)))
			other := <-theirs
			require.NotNil(t, other)

			mine := harness.InBackground(t, locks.Mutex("a").Lock)
			require.Eventually(t, func() bool { return len(harness.Entries(t, outside, "a")) == 2 }, harness.Hang, harness.Tick)
			q, err := locks.Inspect(harness.Ctx(t), "a")
			require.NoError(t, err)
			require.Len(t, q.Entries, 2)
			require.NoError(t, other.Unlock(harness.Ctx(t)))
			h = <-mine
			require.NotNil(t, h)
			require.NoError(t, h.Check(harness.Ctx(t)))
			_, err = h.Txn(harness.Ctx(t)).Then(clientv3.OpPut("x", kind)).Commit()
			require.NoError(t, err)

			guard := h.IsOwner()
			_, err = outside.Delete(harness.Ctx(t), h.Key())
			require.NoError(t, err)
			<-h.Done()
			require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
			reply, err := client.Txn(harness.Ctx(t)).If(guard).Then(clientv3.OpPut("x", "late")).Commit()
			require.NoError(t, err)
			require.False(t, reply.Succeeded, "the guard of a lost hold")

			_, err = locks.Mutex("b").Lock(harness.Ctx(t))
			require.NoError(t, err)
			require.NoError(t, locks.Close())
			require.Empty(t, harness.Entries(t, outside, "b"))
			require.NotZero(t, counted.txns.Load(), "no request has passed through the wrapper")
		})
	}
}
