package concurrency

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// A session that campaigns for ever new names keeps nothing of those that it no longer leads and that no call is about.
func TestSession_ForgetsCandidacies(t *testing.T) {
	t.Parallel()
	c, name := etcdtest.Start(t).Client(t), harness.LockName(t)
	s, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	other, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = other.Close() }()

	leads := NewElection(s, name)
	require.NoError(t, leads.Campaign(harness.Ctx(t), "a"))
	again := NewElection(s, name)
	require.NoError(t, again.Campaign(harness.Ctx(t), "b"))
	require.Equal(t, leads.Key(), again.Key(), "the term is there for the next Election")
	require.NoError(t, again.Proclaim(harness.Ctx(t), "c"))
	require.NoError(t, ResumeElection(s, name, leads.Key(), leads.Rev()).Proclaim(harness.Ctx(t), "d"))
	require.Len(t, s.candidacies, 1)

	waits := NewElection(other, name)
	gaveUp, giveUp := context.WithCancel(harness.Ctx(t))
	campaign := harness.Async(func() error { return waits.Campaign(gaveUp, "e") })
	harness.QueueIs(t, c, name, 2)
	giveUp()
	require.Equal(t, context.Canceled, harness.Result(t, campaign))
	require.Empty(t, other.candidacies, "of a campaign that was given up")
	require.Equal(t, context.Canceled, waits.Campaign(gaveUp, "f"))
	require.Empty(t, other.candidacies)

	require.NoError(t, ResumeElection(s, name, leads.Key(), leads.Rev()).Resign(harness.Ctx(t)))
	require.Empty(t, s.candidacies, "of a term that was resigned")
	require.Equal(t, ErrElectionNotLeader, leads.Proclaim(harness.Ctx(t), "g"))
	require.NoError(t, leads.Resign(harness.Ctx(t)))
	require.Empty(t, s.candidacies)

	for i := range 100 {
		lost := NewElection(s, fmt.Sprint(name, i))
		require.NoError(t, lost.Campaign(harness.Ctx(t), "a"))
		_, err := c.Delete(harness.Ctx(t), lost.Key())
		require.NoError(t, err)
		require.Equal(t, ErrElectionNotLeader, lost.Proclaim(harness.Ctx(t), "b"))
	}
	require.Less(t, len(s.candidacies), 20, "of terms that were lost")
}

// A call that ends takes the candidacy from no other call: two that campaign, before and after it, are one candidate.
func TestSession_KeepsTheCandidacyOfOtherCalls(t *testing.T) {
	t.Parallel()
	c, name := etcdtest.Start(t).Client(t), harness.LockName(t)
	other, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	s, err := NewSession(c)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	leader := NewElection(other, name)
	require.NoError(t, leader.Campaign(harness.Ctx(t), "leader"))
	a, b := NewElection(s, name), NewElection(s, name)
	first := harness.Async(func() error { return a.Campaign(harness.Ctx(t), "a") })
	harness.QueueIs(t, c, name, 2)
	ended, end := context.WithCancel(harness.Ctx(t))
	end()
	require.Equal(t, context.Canceled, NewElection(s, name).Campaign(ended, "x"))
	second := harness.Async(func() error { return b.Campaign(harness.Ctx(t), "b") })
	require.NoError(t, leader.Resign(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, first))
	require.NoError(t, harness.Result(t, second))
	require.Equal(t, a.Key(), b.Key())
	require.Equal(t, a.Rev(), b.Rev())
	require.NoError(t, b.Resign(harness.Ctx(t)))
	require.Empty(t, s.candidacies)
	harness.RequireGone(t, c, name)
}
