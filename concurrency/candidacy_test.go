package concurrency_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// newLeader is an Election that leads, in a session of its own.
func newLeader(t *testing.T, c *clientv3.Client, name string) *concurrency.Election {
	t.Helper()
	e := concurrency.NewElection(session(t, c), name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "leader"))
	return e
}

// While one goroutine campaigns, a Proclaim of another one says at once that the session does not lead.
func TestElection_ProclaimWhileCampaignWaits(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	leader := newLeader(t, c, name)
	e := concurrency.NewElection(session(t, c), name)
	campaign := harness.Async(func() error { return e.Campaign(harness.Ctx(t), "waits") })
	harness.QueueIs(t, c, name, 2)
	proclaim := harness.Async(func() error { return e.Proclaim(harness.Ctx(t), "x") })
	require.Equal(t, concurrency.ErrElectionNotLeader, harness.Result(t, proclaim))
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
}

// Resign while Campaign waits changes nothing: this Election does not lead. The end of the ctx of Campaign withdraws it.
func TestElection_ResignWhileCampaignWaits(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	newLeader(t, c, name)
	e := concurrency.NewElection(session(t, c), name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	campaign := harness.Async(func() error { return e.Campaign(ctx, "waits") })
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, e.Resign(harness.Ctx(t)))
	harness.QueueIs(t, c, name, 2)
	cancel()
	require.Equal(t, context.Canceled, harness.Result(t, campaign))
	harness.QueueIs(t, c, name, 1)
}

// A session that waits behind a leader may resign for that leader, whose key it knows.
func TestElection_ResignForTheLeaderThatItWaitsFor(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	leader := newLeader(t, c, name)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	campaign := harness.Async(func() error { return e.Campaign(harness.Ctx(t), "waits") })
	harness.QueueIs(t, c, name, 2)
	r := concurrency.ResumeElection(s, name, leader.Key(), leader.Rev())
	resign := harness.Async(func() error { return r.Resign(harness.Ctx(t)) })
	require.NoError(t, harness.Result(t, resign))
	require.NoError(t, harness.Result(t, campaign))
}

// A Campaign that adopts the leadership of the process before, and can't publish its value, leaves nobody who leads and
// can't resign.
func TestElection_AdoptedAndNotProclaimed(t *testing.T) {
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	s := session(t, c)
	before := concurrency.NewElection(s, name)
	require.NoError(t, before.Campaign(harness.Ctx(t), "before"))
	s.Orphan()
	after := session(t, c, concurrency.WithLease(s.Lease()))
	e := concurrency.NewElection(after, name)
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	stop := tap.Every("Txn", func(ctx context.Context, call *etcdtest.Call) error {
		if !strings.Contains(call.Request.String(), `value:"after"`) { // a reading, perhaps a second one
			return call.Send(ctx)
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	require.Equal(t, context.Canceled, e.Campaign(ctx, "after"))
	stop()
	require.NoError(t, e.Resign(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// A session that leads, and whose next Campaign ends with its ctx, leads until somebody resigns.
func TestElection_CampaignAgainInVain(t *testing.T) {
	tap, name := etcdtest.NewTap(), harness.LockName(t)
	c := cluster.Client(t, tap)
	e := concurrency.NewElection(session(t, c), name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	key, rev := e.Key(), e.Rev()
	ctx, cancel := context.WithCancel(harness.Ctx(t))
	tap.NextKey("Txn", key, func(ctx context.Context, _ *etcdtest.Call) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	require.Equal(t, context.Canceled, e.Campaign(ctx, "b"))
	require.Equal(t, []any{key, rev}, []any{e.Key(), e.Rev()})
	require.NoError(t, e.Proclaim(harness.Ctx(t), "c"))
	require.Equal(t, []string{key}, harness.Entries(t, c, name))
	require.NoError(t, e.Resign(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// A leader whose entry somebody has removed campaigns again, and leads, though it has not heard of the removal.
func TestElection_CampaignAfterRemoval(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	e := concurrency.NewElection(session(t, c), name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	before := e.Rev()
	_, err := c.Delete(harness.Ctx(t), e.Key())
	require.NoError(t, err)
	require.NoError(t, e.Campaign(harness.Ctx(t), "b"))
	require.Greater(t, e.Rev(), before)
	require.NoError(t, e.Proclaim(harness.Ctx(t), "c"))
	require.NoError(t, e.Resign(harness.Ctx(t)))
	harness.RequireGone(t, c, name)
}

// An Election that has lost its term says so while another one of its session waits for the next term.
func TestElection_ProclaimWhileAnotherOneCampaigns(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	old := concurrency.ResumeElection(s, name, e.Key(), e.Rev())
	leader := concurrency.NewElection(session(t, c), name)
	leads := harness.Async(func() error { return leader.Campaign(harness.Ctx(t), "leader") })
	harness.QueueIs(t, c, name, 2)
	_, err := c.Delete(harness.Ctx(t), e.Key())
	require.NoError(t, err)
	require.NoError(t, harness.Result(t, leads))
	campaign := harness.Async(func() error { return concurrency.NewElection(s, name).Campaign(harness.Ctx(t), "waits") })
	harness.QueueIs(t, c, name, 2)
	for _, lost := range []*concurrency.Election{e, old} {
		proclaim := harness.Async(func() error { return lost.Proclaim(harness.Ctx(t), "x") })
		require.Equal(t, concurrency.ErrElectionNotLeader, harness.Result(t, proclaim))
		require.NoError(t, lost.Resign(harness.Ctx(t)))
	}
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
}

// A session is one candidate: what two of its Elections want at once is one entry, and both lead with it.
func TestElection_TwoCampaignsOfASession(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	leader := newLeader(t, c, name)
	s := session(t, c)
	a, b := concurrency.NewElection(s, name), concurrency.NewElection(s, name)
	campaigns := []<-chan error{
		harness.Async(func() error { return a.Campaign(harness.Ctx(t), "a") }),
		harness.Async(func() error { return b.Campaign(harness.Ctx(t), "b") }),
	}
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	for _, campaign := range campaigns {
		require.NoError(t, harness.Result(t, campaign))
	}
	require.Equal(t, []string{a.Key()}, harness.Entries(t, c, name))
	require.Equal(t, a.Key(), b.Key())
}

// An earlier term of the session, which somebody resumes, is not its present one, though that has the same key.
func TestElection_ResumeAnEarlierTerm(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	var earlier *concurrency.Election
	for same := false; !same; { // a key whose request was slow is not used again at once
		require.NoError(t, e.Resign(harness.Ctx(t)))
		require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
		earlier = concurrency.ResumeElection(s, name, e.Key(), e.Rev())
		require.NoError(t, e.Resign(harness.Ctx(t)))
		require.NoError(t, e.Campaign(harness.Ctx(t), "b"))
		same = earlier.Key() == e.Key()
	}
	require.NoError(t, earlier.Resign(harness.Ctx(t)))
	require.NoError(t, e.Proclaim(harness.Ctx(t), "c"))
	require.Equal(t, concurrency.ErrElectionNotLeader, concurrency.ResumeElection(s, name, earlier.Key(), earlier.Rev()).Proclaim(harness.Ctx(t), "x"))
}

// The key of an orphaned session leads as long as it is there. So it is with etcd's package.
func TestElection_ProclaimOfAnOrphan(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
	s.Orphan()
	require.NoError(t, e.Proclaim(harness.Ctx(t), "b"))
	got, err := e.Leader(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, "b", string(got.Kvs[0].Value))
	require.NoError(t, s.Close())
	require.Equal(t, concurrency.ErrElectionNotLeader, e.Proclaim(harness.Ctx(t), "c"))
}

// The KV of clientv3/leasing answers from a cache that there is no such key, though another client has used the key again.
func TestElection_LeaderBehindACache(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	kv, closeKV, err := leasing.NewKV(c, name+"/leases/")
	require.NoError(t, err)
	t.Cleanup(closeKV)
	c.KV = kv
	leader := newLeader(t, cluster.Client(t), name)
	key := leader.Key()
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	got, err := c.Get(harness.Ctx(t), key)
	require.NoError(t, err)
	require.Empty(t, got.Kvs)
	for leader.Key() != key { // after an answer that was late, another key is next
		require.NoError(t, leader.Campaign(harness.Ctx(t), "again"))
		if leader.Key() != key {
			require.NoError(t, leader.Resign(harness.Ctx(t)))
		}
	}
	got, err = concurrency.NewElection(session(t, c), name).Leader(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, "again", string(got.Kvs[0].Value))
}

// A Campaign of a leader writes nothing if the value is there already, as with etcd's package: those who observe see one change.
func TestElection_CampaignWithTheSameValue(t *testing.T) {
	c := cluster.Client(t)
	e := concurrency.NewElection(session(t, c), harness.LockName(t))
	for _, write := range []struct {
		val     string
		version int64
	}{{"v", 1}, {"v", 1}, {"w", 2}, {"w", 2}} {
		require.NoError(t, e.Campaign(harness.Ctx(t), write.val))
		now, err := e.Leader(harness.Ctx(t))
		require.NoError(t, err)
		require.Equal(t, write.val, string(now.Kvs[0].Value))
		require.Equal(t, write.version, now.Kvs[0].Version)
	}
	require.NoError(t, e.Proclaim(harness.Ctx(t), "w"))
	now, err := e.Leader(harness.Ctx(t))
	require.NoError(t, err)
	require.EqualValues(t, 3, now.Kvs[0].Version, "Proclaim writes always, as etcd's does")
	require.NoError(t, e.Resign(harness.Ctx(t)))
}

// The value is larger than etcd takes: Proclaim says so.
func TestElection_ProclaimTooMuch(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.WithConfig(func(c *embed.Config) { c.MaxRequestBytes = 100 << 10 })).Client(t)
	e := concurrency.NewElection(session(t, c), harness.LockName(t))
	require.NoError(t, e.Campaign(harness.Ctx(t), "v"))
	proclaims := harness.Async(func() error { return e.Proclaim(harness.Ctx(t), strings.Repeat("x", 700<<10)) })
	require.ErrorContains(t, harness.Result(t, proclaims), "larger than")
	require.NoError(t, e.Resign(harness.Ctx(t)))
}
