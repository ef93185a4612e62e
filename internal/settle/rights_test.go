package settle

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// The client loses its rights on one of many keys, and a thousand locks ask which one. Those who ask while a search goes on have
// the answer of the next one, and who gives up does not wait for it.
func TestInTheWay_NoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		count := w.Step
		w.Step = func(ctx context.Context, what string) error {
			if err := etcd.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
			return count(ctx, what)
		}
		w.forbid()
		w.Entered([]string{w.Take("secret", keyspace.Exclusive)})
		for i := range 10 * etcd.Batch {
			w.Entered([]string{w.Take(fmt.Sprint("a", i), keyspace.Exclusive)})
		}
		var all sync.WaitGroup
		ask := func(ctx context.Context, want string) {
			all.Go(func() { assert.Equal(t, want, w.InTheWay(ctx)) })
		}
		ask(t.Context(), "secret/5")
		synctest.Wait()
		elapse(time.Microsecond)
		for range 1000 {
			ask(t.Context(), "secret/5")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ask(ctx, "")
		cancel()
		all.Wait()
		require.LessOrEqual(t, int(w.calls.Load()), 2*(11+etcd.Batch))
	})
}

// Etcd allows fewer operations in a request than a search asks about keys: the key without rights is found all the same.
func TestInTheWay_FewOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.forbid().most = 8
		for i := range 10 {
			w.Entered([]string{w.Take(fmt.Sprint("a", i), keyspace.Exclusive)})
		}
		require.Empty(t, w.InTheWay(t.Context()))
		elapse(time.Microsecond)
		w.Entered([]string{w.Take("secret", keyspace.Exclusive)})
		require.Equal(t, "secret/5", w.InTheWay(t.Context()))
	})
}

// The key that is named is one that an entry of the session has: not the first one of its name, if that is free, nor one that is only
// being settled or has yet to be written, which the client may never have had rights on.
func TestInTheWay_OfAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.forbid()
		for i := range 100 {
			w.Settle(w.Take(fmt.Sprint("secretly settled ", i), keyspace.Exclusive))
			w.Take(fmt.Sprint("secretly written ", i), keyspace.Exclusive)
		}
		require.Empty(t, w.InTheWay(t.Context()))
		elapse(time.Microsecond)
		first := w.Take("secret", keyspace.Exclusive)
		w.Entered([]string{w.Take("secret", keyspace.Exclusive)})
		w.Free(first)
		require.NotContains(t, w.entering, first)
		require.Equal(t, "secret/5-1", w.InTheWay(t.Context()))
	})
}
