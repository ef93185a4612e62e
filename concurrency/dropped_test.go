package concurrency

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A dropped hold wakes one of those who wait. If the ctx of that one ends at the same moment, the next one has the hold.
func TestSession_HandsADroppedHoldToOne(t *testing.T) {
	c, name := etcdtest.Start(t).Client(t), harness.LockName(t)
	s, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	hold, err := etcdlock.NewMutex(s.inner, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	gaveUp, giveUp := context.WithCancel(harness.Ctx(t))
	waits := make(chan int, 3)
	calls := make([]int, 3)
	way := func(i int, woken func()) func(context.Context) (*etcdlock.Held, error) {
		return func(ctx context.Context) (*etcdlock.Held, error) {
			calls[i]++
			waits <- i
			<-ctx.Done()
			woken()
			return nil, ctx.Err()
		}
	}
	first := harness.Async(func() error {
		_, err := s.acquire(gaveUp, name, way(0, giveUp))
		return err
	})
	<-waits
	granted := make(chan *etcdlock.Held, 1)
	second := harness.Async(func() error {
		h, err := s.acquire(harness.Ctx(t), name, way(1, func() {}))
		granted <- h
		return err
	})
	<-waits
	last, end := context.WithCancel(harness.Ctx(t))
	third := harness.Async(func() error {
		_, err := s.acquire(last, name, way(2, func() {}))
		return err
	})
	<-waits
	s.drop(name, &mutexState{hold: hold})
	require.Equal(t, context.Canceled, harness.Result(t, first))
	require.NoError(t, harness.Result(t, second))
	require.Same(t, hold, <-granted)
	require.Empty(t, waits)
	end()
	require.Equal(t, context.Canceled, harness.Result(t, third))
	require.Equal(t, []int{1, 1, 1}, calls)
	require.Empty(t, s.dropped.waiters)
	require.Empty(t, s.dropped.holds)
}

// A dropped hold whose entry somebody has removed is none. If etcd does not say whether it was, the hold stays for the next
// who asks.
func TestSession_TakesNoLostHold(t *testing.T) {
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := etcdtest.Start(t).Client(t, tap)
	s, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	hold, err := etcdlock.NewMutex(s.inner, name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	s.drop(name, &mutexState{hold: hold})
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	stop := tap.Every("Txn", func(ctx context.Context, _ *etcdtest.Call) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	_, err = s.acquire(ctx, name, nil)
	require.ErrorIs(t, err, context.Canceled)
	stop()
	h, err := s.acquire(harness.Ctx(t), name, nil)
	require.NoError(t, err)
	require.Same(t, hold, h)

	s.drop(name, &mutexState{hold: hold})
	_, err = c.Delete(harness.Ctx(t), hold.Key())
	require.NoError(t, err)
	h, err = s.acquire(harness.Ctx(t), name, etcdlock.NewMutex(s.inner, name).Lock)
	require.NoError(t, err)
	require.NotSame(t, hold, h)
	require.NoError(t, h.Check(harness.Ctx(t)))
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	require.Empty(t, s.dropped.holds)
	require.Empty(t, s.dropped.waiters)
}
