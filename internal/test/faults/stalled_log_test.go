package faults

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Row J12: a log or a hook that blocks.

// blocking is a writer, and a set of hooks, that block from the start until they are let go.
type blocking chan struct{}

func (b blocking) Write(p []byte) (int, error) { <-b; return len(p), nil }

func (b blocking) hooks() *etcdlock.Hooks {
	return &etcdlock.Hooks{
		SessionUp:    func(etcdlock.SessionUpInfo) { <-b },
		Renewed:      func(etcdlock.RenewedInfo) { <-b },
		SessionEnded: func(etcdlock.SessionEndedInfo) { <-b },
		Enqueued:     func(context.Context, etcdlock.EnqueuedInfo) { <-b },
		Granted:      func(context.Context, etcdlock.GrantedInfo) { <-b },
		Abandoned:    func(context.Context, etcdlock.AbandonedInfo) { <-b },
		Released:     func(context.Context, etcdlock.ReleasedInfo) { <-b },
		Lost:         func(context.Context, etcdlock.LostInfo) { <-b },
	}
}

// The log's reader stalls from the first session on.
func TestFault_J12_LogBlocks(t *testing.T) {
	t.Parallel()
	blocks(t, func(b blocking) etcdlock.Option { return etcdlock.WithLogger(slog.New(slog.NewTextHandler(b, nil))) })
}

// So do the hooks.
func TestFault_J12_HooksBlock(t *testing.T) {
	t.Parallel()
	blocks(t, func(b blocking) etcdlock.Option { return etcdlock.WithHooks(b.hooks()) })
}

// blocks requires that what stalls holds up no call and no renewal, also through an outage, and costs no session. Close
// returns in its time.
func blocks(t *testing.T, option func(blocking) etcdlock.Option) {
	t.Helper()
	b := make(blocking)
	defer close(b)
	p := cluster.Proxy(t)
	c := cluster.Client(t, p)
	locks := etcdlock.New(c, option(b), etcdlock.WithTTL(10*time.Second))
	name := harness.LockName(t)
	h, err := locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	h.Done()
	ctx, cancel := context.WithTimeout(harness.Ctx(t), 100*time.Millisecond)
	defer cancel()
	waits := harness.Async(func() error { _, err := locks.Mutex(name).Lock(ctx); return err })
	require.ErrorIs(t, harness.Result(t, waits), context.DeadlineExceeded)

	// An outage, which is logged, and then renewals for a TTL and more. The last renewal before it is fresh.
	require.NoError(t, h.Session().Refresh(harness.Ctx(t)))
	p.Refuse()
	p.Reset()
	was := h.Deadline()
	harness.Elapse(3 * time.Second)
	p.Accept()
	require.Eventually(t, func() bool { return h.Deadline().After(was.Add(12 * time.Second)) }, harness.Hang, harness.Tick)
	require.NoError(t, h.Err(), "the session must live")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	// A session that is lost, and the next one.
	h, err = locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	_, err = cluster.Client(t).Revoke(harness.Ctx(t), h.Session().Lease())
	require.NoError(t, err)
	<-h.Done()
	h, err = locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.True(t, h.Valid())
	closes := harness.Async(locks.Close)
	require.ErrorContains(t, harness.Result(t, closes), "a hook or the log blocks")
	require.Empty(t, harness.Entries(t, cluster.Client(t), name), "Close must have revoked the lease")
}

// A SessionUp hook takes a lock of its Client, which has a session by then, and does not wait for itself. What it does
// for longer than a TTL ends no session.
func TestFault_J12_SessionUpUsesItsClient(t *testing.T) {
	t.Parallel()
	var locks *etcdlock.Client
	name := harness.LockName(t)
	in := make(chan error, 1)
	goOn := make(chan struct{})
	up := &etcdlock.Hooks{SessionUp: func(etcdlock.SessionUpInfo) {
		in <- locks.Mutex(name+"/hook").Do(harness.Ctx(t), func(context.Context, *etcdlock.Held) error { return nil })
		<-goOn
	}}
	locks = newClient(t, cluster.Client(t), etcdlock.WithTTL(9*time.Second), etcdlock.WithHooks(up))
	h, err := locks.Mutex(name).Lock(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, harness.Result(t, in))
	granted := h.Deadline()
	require.Eventually(t, func() bool { return h.Deadline().After(granted.Add(10 * time.Second)) }, harness.Hang, harness.Tick)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	close(goOn)
	require.NoError(t, locks.Close())
}

// While a hook blocks, its calls are neither made beside each other nor lost: afterwards each acquisition is reported
// from its beginning to its end.
func TestFault_J12_HookGoesOn(t *testing.T) {
	t.Parallel()
	b := make(blocking)
	var enqueued, over atomic.Int64
	counts := &etcdlock.Hooks{
		Enqueued: func(context.Context, etcdlock.EnqueuedInfo) { enqueued.Add(1) },
		Released: func(context.Context, etcdlock.ReleasedInfo) { over.Add(1) },
	}
	locks := etcdlock.New(cluster.Client(t, etcdtest.NewTap()), etcdlock.WithHooks(b.hooks(), counts), etcdlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	name := harness.LockName(t)
	for range 20 {
		require.NoError(t, harness.Take(t, locks.Mutex(name).Lock).Unlock(harness.Ctx(t)))
	}
	require.Zero(t, enqueued.Load())
	close(b)
	require.NoError(t, locks.Close())
	require.EqualValues(t, 20, enqueued.Load())
	require.EqualValues(t, 20, over.Load())
}
