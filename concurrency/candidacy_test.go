package concurrency_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// While one goroutine campaigns, a Proclaim of another one says at once that the session does not lead.
func TestElection_ProclaimWhileCampaignWaits(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	leader := concurrency.NewElection(session(t, c), name)
	require.NoError(t, leader.Campaign(harness.Ctx(t), "leader"))
	e := concurrency.NewElection(session(t, c), name)
	campaign := harness.Async(func() error { return e.Campaign(harness.Ctx(t), "waits") })
	harness.QueueIs(t, c, name, 2)
	proclaim := harness.Async(func() error { return e.Proclaim(harness.Ctx(t), "x") })
	require.Equal(t, concurrency.ErrElectionNotLeader, harness.Result(t, proclaim))
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, campaign))
}

// A session that waits behind a leader may resign for that leader, whose key it knows.
func TestElection_ResignForTheLeaderThatItWaitsFor(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	leader := concurrency.NewElection(session(t, c), name)
	require.NoError(t, leader.Campaign(harness.Ctx(t), "leader"))
	s := session(t, c)
	e := concurrency.NewElection(s, name)
	campaign := harness.Async(func() error { return e.Campaign(harness.Ctx(t), "waits") })
	harness.QueueIs(t, c, name, 2)
	r := concurrency.ResumeElection(s, name, leader.Key(), leader.Rev())
	resign := harness.Async(func() error { return r.Resign(harness.Ctx(t)) })
	require.NoError(t, harness.Result(t, resign))
	require.NoError(t, harness.Result(t, campaign))
}
