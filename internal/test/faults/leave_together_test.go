package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// While a connection is being made, as to a machine that is switched off, the ctx of hundreds of calls ends at the same moment. None
// of them waits for the others.
func TestFault_B1_CallersLeaveTogether(t *testing.T) {
	t.Parallel()
	proxy := cluster.Proxy(t)
	c := cluster.Client(t, proxy)
	s, name := newSession(t, c, etcdlock.WithTTL(time.Minute)), harness.LockName(t)
	var held []*etcdlock.Held
	for i := range 300 {
		held = append(held, harness.Take(t, etcdlock.NewMutex(s, fmt.Sprintf("%s.%d", name, i)).Lock))
	}
	proxy.Blackhole(etcdtest.Both)
	proxy.Reset()
	require.Eventually(t, func() bool { return c.ActiveConnection().GetState().String() == "CONNECTING" }, harness.Hang, harness.Tick)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	defer cancel()
	errs := make(chan error, len(held))
	for _, h := range held {
		go func() { errs <- h.Unlock(ctx) }()
	}
	harness.Elapse(500 * time.Millisecond)
	require.Empty(t, errs)
	stop := harness.Stopwatch()
	cancel()
	for range held {
		require.ErrorIs(t, <-errs, context.Canceled)
	}
	require.Less(t, stop(), soon, "the calls do not return with their ctx")
	proxy.Heal()
	proxy.Reset()
	other := cluster.Client(t)
	for i := range held {
		harness.RequireGone(t, other, fmt.Sprintf("%s.%d", name, i))
	}
}
