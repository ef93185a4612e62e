package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Control tests of rows F: the loss of the lease.

// late cuts off holders of the incumbent, and counts those that were told only after another
// session could have the lock.
func late(t *testing.T, n int, how cutting) (count int, worst time.Duration) {
	t.Helper()
	how.ttl = 2 * time.Second
	for _, c := range cut(t, n, how, func(ctx context.Context, c *clientv3.Client, name string) (holder, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(2))
		if err != nil {
			return holder{}, err
		}
		m := concurrency.NewMutex(s, name)
		err = m.Lock(ctx)
		return holder{s.Done(), m.Key(), nil}, err
	}) {
		if after := c.told.Sub(c.gone); after > 50*time.Millisecond { // more than the scheduler's delay
			count++
			worst = max(worst, after)
		}
	}
	return count, worst.Round(time.Millisecond)
}

func TestControl_F1_DeadlineCountedFromReply(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	n, worst := late(t, 24, cutting{delay: latency})
	require.Positive(t, n)
	seen(t, "TTL 2 s, blackholed: %d of 24 holders told too late, by up to %v", n, worst)
}

func TestControl_F1_RepliesDelayed(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	n, worst := late(t, 24, cutting{delay: 500 * time.Millisecond})
	require.Positive(t, n)
	seen(t, "replies delayed by 0.5 s: %d of 24 holders told too late, by up to %v", n, worst)
}

func TestControl_F2_FirstKeepAliveStuck(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	n, worst := late(t, 8, cutting{stuck: true})
	require.Positive(t, n) // all, but on a machine on which etcd is late itself
	seen(t, "TTL 2 s, DialTimeout 2 s: %d of 8 holders told too late, by up to %v", n, worst)
}

func TestControl_F3_RevokedByAnother(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	tap, renewed := etcdtest.NewTap(), make(chan struct{}, 100)
	tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error {
		renewed <- struct{}{}
		return nil
	})
	c := cluster.Client(t, tap)
	s := incumbent(t, c)
	require.NoError(t, concurrency.NewMutex(s, harness.LockName(t)).Lock(harness.Ctx(t)))
	<-renewed // the client renews at once, and then after 20 s
	_, err := c.Revoke(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	notTold(t, s)
	seen(t, "TTL 60 s: 2 s after the revocation the holder has not been told (the next renewal is after 20 s)")
}

func TestControl_F5_KeyDeleted(t *testing.T) {
	sample.OnlyInFull(t)
	t.Parallel()
	c, name := cluster.Client(t), harness.LockName(t)
	s := incumbent(t, c)
	m := concurrency.NewMutex(s, name)
	require.NoError(t, m.Lock(harness.Ctx(t)))
	_, err := c.Delete(harness.Ctx(t), m.Key())
	require.NoError(t, err)
	require.NoError(t, concurrency.NewMutex(incumbent(t, c), name).TryLock(harness.Ctx(t)))
	notTold(t, s)
	seen(t, "the holder is not told, and another session gets the lock")
}

// notTold requires that the session does not end for a while.
func notTold(t *testing.T, s *concurrency.Session) {
	t.Helper()
	select {
	case <-s.Done():
		t.Fatal("the holder was told of the loss")
	case <-time.After(4 * harness.Told):
	}
}

func TestControl_F10_GrantedTTLIgnored(t *testing.T) {
	sample.OnlyInFull(t)
	own := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }))
	c := own.Client(t)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(1))
	require.NoError(t, err)
	defer s.Orphan()
	lease, err := c.TimeToLive(harness.Ctx(t), s.Lease())
	require.NoError(t, err)
	require.EqualValues(t, 2, lease.GrantedTTL)
	seen(t, "asked for 1 s, granted %d s: the session does not report it", lease.GrantedTTL)
}
