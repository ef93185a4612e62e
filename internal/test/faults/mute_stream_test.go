package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// Row J16: a watch stream that delivers and never answers a progress request, as that of `etcd grpc-proxy`.

// At rest behind a proxy the streams and the watches stay, and the log is silent.
func TestFault_J16_GRPCProxyAtRest(t *testing.T) {
	t.Parallel()
	tap, log := etcdtest.NewTap(), &logtest.Log{}
	var open atomic.Int32
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		if m.Created {
			open.Add(1)
		}
		return nil
	})
	behind := etcdtest.Attach(harness.GRPCProxy(t, cluster.Client(t)))
	s := newSession(t, behind.Client(t, tap), etcdlock.WithTTL(15*time.Second), etcdlock.WithLogger(log.Logger()))
	name := harness.LockName(t)
	holder := mustLock(t, newSession(t, cluster.Client(t)), name)
	tk, err := etcdlock.NewMutex(s, name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	h := mustLock(t, s, harness.LockName(t))
	_ = h.Context()
	require.Eventually(t, func() bool { return open.Load() >= 2 }, harness.Hang, harness.Tick)
	streams, watches, lines := tap.Calls("Watch"), len(tap.WatchCreates()), len(log.Lines())
	slowest := opening(t, behind.Client(t), name)
	harness.Elapse(8 * time.Second)
	// If a watch takes longer to open, the session may take another stream for it, and the log may have an outage.
	if slowest() < etcd.AttemptMin/2 {
		require.Equal(t, streams, tap.Calls("Watch"), "streams")
		require.LessOrEqual(t, len(tap.WatchCreates()), watches+streams+1, "one that shows that the stream lives, and perhaps one for the wait")
		require.NotContains(t, strings.Join(log.Lines()[lines:], "\n"), "WARN")
	}
	require.NoError(t, h.Err())
	require.NoError(t, holder.Unlock(harness.Ctx(t)))
	<-tk.Done()
	next, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, next.Unlock(harness.Ctx(t)))
}

// opening opens a watch again and again, with a client of its own. slowest ends that, and returns how long the slowest watch took
// to open: on a machine that stalls, a session's watches take as long.
func opening(t *testing.T, c *clientv3.Client, name string) (slowest func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	most := make(chan time.Duration, 1)
	go func() {
		var slow time.Duration
		for ctx.Err() == nil {
			watching, closes := context.WithCancel(ctx)
			began := time.Now()
			<-c.Watch(watching, name, clientv3.WithCreatedNotify())
			slow = max(slow, time.Since(began))
			closes()
			_ = etcd.Sleep(ctx, 4*harness.Tick)
		}
		most <- slow
	}()
	return func() time.Duration { cancel(); return <-most }
}

// hang has the watch streams of a client deliver nothing anymore.
func hang(tap *etcdtest.Tap) {
	tap.OnWatchResponse(func(context.Context, *pb.WatchResponse) error { return etcdtest.ErrDrop })
}

// A hold behind a proxy whose watch stream hangs learns of its loss all the same.
func TestFault_J16_HangingStream(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	tap := etcdtest.NewTap()
	proxied := etcdtest.Attach(harness.GRPCProxy(t, cluster.Client(t))).Client(t, tap)
	s := newSession(t, proxied, etcdlock.WithTTL(ttl))
	h := mustLock(t, s, harness.LockName(t))
	_ = h.Context()
	require.Eventually(t, func() bool { return len(tap.WatchCreates()) >= 2 }, harness.Hang, harness.Tick, "the stream was asked")
	hang(tap)
	remove(t, h.Key())
	<-h.Done()
	require.ErrorIs(t, h.Err(), etcdlock.ErrLost)
	require.NoError(t, s.Err())
}
