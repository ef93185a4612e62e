package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

func TestDemonstrate(t *testing.T) { require.NoError(t, demonstrate(t.Context())) }

// A thousand items are done under one hold. Somebody else who comes is in when the item is done that was under
// way, and no other item is begun before.
func TestProcess(t *testing.T) {
	cluster := etcdtest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	locks, others := etcdlock.New(cluster.Client(t)), etcdlock.New(cluster.Client(t))
	defer locks.Close()
	defer others.Close()
	const items, comesAt = 1000, 300
	tokens, done := map[int64]int{}, 0
	count := func(h *etcdlock.Held) { tokens[h.Token()]++; done++ }

	turns, err := process(ctx, locks.Mutex("a"), items, func(_ context.Context, h *etcdlock.Held, _ int) error { count(h); return nil })
	require.NoError(t, err)
	require.Equal(t, 1, turns)
	require.Len(t, tokens, 1)
	require.Equal(t, items, done)

	done = 0
	other := make(chan error, 1)
	turns, err = process(ctx, locks.Mutex("a"), items, func(ctx context.Context, h *etcdlock.Held, item int) error {
		count(h)
		if item != comesAt {
			return nil
		}
		tk, err := others.Mutex("a").Enqueue(ctx)
		if err != nil {
			return err
		}
		go func() { // ends with the lock
			h, err := tk.Wait(context.WithoutCancel(ctx))
			if err == nil {
				if done != comesAt+1 { // it reads this under the lock
					t.Errorf("it is in after %d items", done)
				}
				err = h.Unlock(context.WithoutCancel(ctx))
			}
			other <- err
		}()
		select { // the item takes longer than the news
		case <-h.Contended():
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	require.NoError(t, err)
	require.NoError(t, <-other)
	require.Equal(t, 2, turns)
	require.Equal(t, items, done)
	require.Len(t, tokens, 3)
}
