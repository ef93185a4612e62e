package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Row J5: what a session at rest asks of etcd.

// hold has the session hold n locks, in a few requests.
func hold(t *testing.T, s *etcdlock.Session, n int) (holds []*etcdlock.Held) {
	t.Helper()
	for n > 0 {
		parts := make([]etcdlock.Part, min(n, 32))
		for i := range parts {
			parts[i] = etcdlock.Read(fmt.Sprint("a/", n-i))
		}
		n -= len(parts)
		h, err := etcdlock.NewMulti(s, parts...).Lock(harness.Ctx(t))
		require.NoError(t, err)
		holds = append(holds, h)
	}
	return holds
}

func TestFault_J5_AtRestIdle(t *testing.T) {
	t.Parallel()
	rests(t, 0)
}

func TestFault_J5_AtRestWithALock(t *testing.T) {
	t.Parallel()
	rests(t, 1)
}

func TestFault_J5_AtRestWithManyLocks(t *testing.T) {
	t.Parallel()
	rests(t, 1000)
}

// rests requires that a session at rest with n locks sends three renewals in a TTL, on one stream, and nothing else: etcd
// has not changed since the session looked at its keys. So it needs no password check either. Its log and its holds tell
// nothing.
func rests(t *testing.T, n int) {
	t.Helper()
	// Nobody else writes there. Tokens last as long as they do by default.
	_, as := harness.StartWithAuth(t, etcdtest.WithConfig(func(c *embed.Config) { c.AuthTokenTTL = 300 }))
	tap := etcdtest.NewTap()
	messages := make(chan struct{}, 1000)
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error { messages <- struct{}{}; return nil })
	renewed, hooks := renewals()
	late, counts := lateRenewals()
	s := newSession(t, as("worker", tap), etcdlock.WithTTL(9*time.Second), hooks, counts)
	holds := hold(t, s, n)
	awaitAlive(t, s, renewed) // its stream leads to etcd
	look := tap.Calls("LeaseTimeToLive")
	require.Eventually(t, func() bool { return tap.Calls("LeaseTimeToLive") > look }, harness.Hang, harness.Tick)
	looked := time.Now()
	for range 1 + len(renewed) {
		awaitAlive(t, s, renewed)
	}
	calls, sent := tap.Calls(), len(messages)
	late.Store(0)
	ttls := sample.Rounds(t, 1, 2) // less than those after which it looks again
	for range 3 * ttls {
		awaitAlive(t, s, renewed)
	}
	again := int(late.Load())
	if time.Since(looked) > 3*s.TTL() { // on a machine that stalls
		again++
	}
	require.LessOrEqual(t, tap.Calls(), calls+again, "requests and streams")
	require.GreaterOrEqual(t, len(messages)-sent, 3*ttls)
	require.LessOrEqual(t, len(messages)-sent, 3*ttls+again)
	for _, h := range holds {
		require.NoError(t, h.Check(harness.Ctx(t)))
	}
}

// An entry that is removed where nobody watches, and nobody writes anything else, is found with the next renewal.
func TestFault_J5_RemovedAtRest(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	tap := etcdtest.NewTap()
	const ttl = 6
	s := newSession(t, own.Client(t, tap), etcdlock.WithTTL(ttl*time.Second))
	h := hold(t, s, 1)[0]
	// It rests when it has looked at its keys, and renews a TTL long without another look, as a late answer may bring about.
	renewed := make(chan struct{}, 100)
	tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error { renewed <- struct{}{}; return nil })
	looks, began := 0, time.Now()
	for n := 0; looks == 0 || n < 3; n++ {
		require.Less(t, time.Since(began), 4*harness.Hang, "it does not rest")
		awaitAlive(t, s, renewed)
		if now := tap.Calls("LeaseTimeToLive"); now != looks {
			looks, n = now, -1
		}
	}
	_, err := own.Client(t).Delete(harness.Ctx(t), h.Key())
	require.NoError(t, err)
	removed := time.Now()
	require.Eventually(t, func() bool { return h.Err() != nil }, harness.Hang, harness.Tick)
	t.Logf("shown: found after %.2f of the TTL", time.Since(removed).Seconds()/ttl)
	require.NoError(t, s.Err())
}

// A session that holds nothing removes what a snapshot has brought back of it, although nothing else would have it look
// at its keys.
func TestFault_J2_ReleasedEntryComesBackToAnIdleSession(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	renewed, hooks := renewals()
	s := newSession(t, own.Client(t), etcdlock.WithTTL(12*time.Second), hooks)
	h := harness.Take(t, etcdlock.NewMutex(s, "a").Lock)
	restore := harness.Snapshot(t, own)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	for range 3 { // it has looked at its keys
		<-renewed
	}
	restore(1_000_000)
	restored := time.Now()
	require.NoError(t, harness.Take(t, etcdlock.NewMutex(newSession(t, own.Client(t)), "a").Lock).Unlock(harness.Ctx(t)))
	require.Less(t, time.Since(restored), 2*s.TTL(), "without the restore it would not look for three TTLs or more")
	require.NoError(t, s.Err())
}
