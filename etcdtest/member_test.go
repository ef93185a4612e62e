package etcdtest_test

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

func endpoint(m *etcdtest.Member) etcdtest.ClientOption {
	return etcdtest.WithClientConfig(func(c *clientv3.Config) { c.Endpoints = []string{m.Endpoint()} })
}

func TestRestartKeepsDataAndAddress(t *testing.T) {
	t.Parallel()
	stops := map[string]func(*etcdtest.Member){
		"stop":    (*etcdtest.Member).Stop,
		"kill":    (*etcdtest.Member).Kill,
		"running": func(*etcdtest.Member) {},
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			cluster := etcdtest.Start(t)
			client := cluster.Client(t)
			m := cluster.Member(0)
			_, err := client.Put(t.Context(), "a", "1")
			require.NoError(t, err)
			watch := client.Watch(t.Context(), "a", clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
			require.True(t, (<-watch).Created)

			took := harness.Stopwatch()
			stop(m)
			stopped := took()
			if name != "running" {
				assert.Nil(t, m.Etcd())
				assert.Less(t, stopped, 4*time.Second, "an open watch must not hold it up")
			}
			ep := m.Endpoint()
			require.NoError(t, m.Restart(short(t, patience)))
			assert.Equal(t, ep, m.Endpoint())

			resp, err := client.Get(short(t, patience), "a")
			require.NoError(t, err)
			require.Len(t, resp.Kvs, 1)
			_, err = client.Delete(short(t, patience), "a")
			require.NoError(t, err)
			select {
			case w := <-watch:
				require.NoError(t, w.Err())
				require.Len(t, w.Events, 1)
			case <-time.After(patience):
				require.Fail(t, "the client's watch must resume")
			}
		})
	}
}

func TestStoppedMinorityAndMajority(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	leader, err := cluster.Leader(short(t, patience))
	require.NoError(t, err)

	leader.Kill()
	leader.Kill()
	next, err := cluster.Leader(short(t, patience))
	require.NoError(t, err)
	require.NotEqual(t, leader.Index(), next.Index())
	eventually(t, func() bool {
		_, err := client.Put(short(t, patience), "a", "1")
		return err == nil
	}, "two of three members must serve")

	next.Stop()
	_, err = cluster.Leader(short(t, 100*time.Millisecond))
	require.Error(t, err, "one member of three must have no leader")

	a := result(func() error { return leader.Restart(short(t, patience)) })
	b := result(func() error { return next.Restart(short(t, patience)) })
	require.NoError(t, await(t, a))
	require.NoError(t, await(t, b))
	resp, err := client.Get(short(t, patience), "a")
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
}

// Without a majority a member does not become ready, but Stop stops it.
func TestStopOfAMemberThatIsNotReady(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	for i := range 3 {
		cluster.Member(i).Kill()
	}
	m := cluster.Member(0)
	require.ErrorIs(t, m.Restart(short(t, 100*time.Millisecond)), context.DeadlineExceeded)
	etcd := m.Etcd()
	require.NotNil(t, etcd, "the member must stay started")
	defer etcd.Server.HardStop() // ends a Stop that hangs
	require.NoError(t, await(t, result(func() error { m.Stop(); return nil })))
	require.Nil(t, m.Etcd())

	// The member can be started again, and serves with a majority.
	a := result(func() error { return m.Restart(short(t, patience)) })
	b := result(func() error { return cluster.Member(1).Restart(short(t, patience)) })
	require.NoError(t, await(t, a))
	require.NoError(t, await(t, b))
}

func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	// Long enough for a hand-over on a slow machine, and clearly longer than one.
	const election = 3 * time.Second
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3), etcdtest.WithConfig(func(c *embed.Config) {
		c.ElectionMs = uint(election.Milliseconds())
	}))
	leader, err := cluster.Leader(short(t, patience))
	require.NoError(t, err)
	leader.Stop()
	took := harness.Stopwatch()
	_, err = cluster.Leader(short(t, patience))
	handedOver := took()
	require.NoError(t, err)
	assert.Less(t, handedOver, election*2/3, "the leader has not handed over: the others held an election")
}

func TestIsolate(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	leader, err := cluster.Leader(short(t, patience))
	require.NoError(t, err)
	client := cluster.Client(t, endpoint(leader))
	_, err = client.Put(t.Context(), "a", "old")
	require.NoError(t, err)

	leader.Isolate()
	_, err = client.Put(short(t, 300*time.Millisecond), "a", "lost")
	require.Error(t, err, "an isolated leader commits nothing")
	next, err := cluster.Leader(short(t, patience))
	require.NoError(t, err)
	require.NotEqual(t, leader.Index(), next.Index())
	other := cluster.Client(t, endpoint(next))
	eventually(t, func() bool { // a machine that stalls may bring about another leader
		_, err := other.Put(short(t, patience), "a", "new")
		return err == nil
	}, "the majority must serve")

	stale, err := client.Get(short(t, patience), "a", clientv3.WithSerializable())
	require.NoError(t, err)
	assert.Equal(t, "old", string(stale.Kvs[0].Value), "nothing new may reach it")
	eventually(t, func() bool { return leader.Etcd().Server.Leader() == 0 }, "the member must notice that it is isolated")

	// The restart of another member must not reconnect the isolated one.
	require.NoError(t, next.Restart(short(t, patience)))
	_, err = cluster.Leader(short(t, patience))
	require.NoError(t, err)
	assert.Zero(t, leader.Etcd().Server.Leader())

	leader.Heal()
	fresh, err := client.Get(short(t, patience), "a")
	require.NoError(t, err)
	assert.Equal(t, "new", string(fresh.Kvs[0].Value))
}

// In a closed cluster no member starts and none keeps running: its data is gone.
// No other server gets the address of a member that does not run, until its cluster is closed. The test is not parallel,
// since other tests would take the address.
func TestKilledMemberKeepsItsAddress(t *testing.T) {
	c, err := etcdtest.New(t.TempDir())
	require.NoError(t, err)
	defer c.Close()
	addr := mustHost(t, c.Member(0).Endpoint())
	c.Member(0).Kill()
	given := func() bool {
		for range 250 { // goes through all ports of this process
			addrs, err := loopback.FreeAddrs(1)
			require.NoError(t, err)
			if addrs[0] == addr {
				return true
			}
		}
		return false
	}
	assert.False(t, given())
	c.Close()
	assert.True(t, given())
}

func TestRestartAfterClose(t *testing.T) {
	t.Parallel()
	cluster, err := etcdtest.New("")
	require.NoError(t, err)
	m := cluster.Member(0)
	cluster.Close()
	require.ErrorContains(t, m.Restart(short(t, patience)), "the cluster is closed")
	require.Nil(t, m.Etcd())
	_, err = cluster.Leader(short(t, patience))
	require.ErrorContains(t, err, "the cluster is closed", "nobody leads any more")
}

func TestRestartBesideClose(t *testing.T) {
	t.Parallel()
	cluster, err := etcdtest.New("")
	require.NoError(t, err)
	m := cluster.Member(0)
	m.Kill()
	// While its port is taken, the member waits in the middle of Restart.
	taken, err := net.Listen("tcp", mustHost(t, m.Endpoint()))
	require.NoError(t, err)
	defer taken.Close()
	restart := result(func() error { return m.Restart(short(t, patience)) })
	cluster.Close()
	require.NoError(t, taken.Close())
	require.ErrorContains(t, await(t, restart), "the cluster is closed")
	require.Nil(t, m.Etcd())

	// Close at any other moment of Restart.
	for range 10 {
		cluster, err := etcdtest.New("")
		require.NoError(t, err)
		m := cluster.Member(0)
		restart := result(func() error { return m.Restart(short(t, patience)) })
		cluster.Close()
		_ = await(t, restart) // Restart may have finished before Close
		require.Nil(t, m.Etcd())
	}
}

func TestMoveLeader(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3), etcdtest.WithConfig(func(c *embed.Config) {
		c.ElectionMs = 3000 // so that a machine that stalls brings about no other leader
	}))
	for _, i := range []int{1, 2, 0, 0} {
		require.NoError(t, cluster.MoveLeader(short(t, patience), i))
		leader, err := cluster.Leader(short(t, patience))
		require.NoError(t, err)
		assert.Same(t, cluster.Member(i), leader)
	}
	cluster.Member(1).Stop()
	require.Error(t, cluster.MoveLeader(short(t, patience), 1))
	cluster.Member(2).Isolate()
	require.Error(t, cluster.MoveLeader(short(t, 100*time.Millisecond), 2))
}

func TestCompact(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	_, err := client.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	put, err := client.Put(t.Context(), "a", "2")
	require.NoError(t, err)
	for range 2 {
		rev, err := cluster.Compact(short(t, patience))
		require.NoError(t, err)
		assert.Equal(t, put.Header.Revision, rev)
	}
	w := <-client.Watch(t.Context(), "a", clientv3.WithRev(2))
	assert.ErrorIs(t, w.Err(), rpctypes.ErrCompacted)
}

// A cluster of one member leaves no goroutines, as the package documentation says.
func TestNoLeakOfOneMember(t *testing.T) {
	before := goleak.IgnoreCurrent()
	defer func() { require.NoError(t, leaks.Find(patience, before)) }()
	cluster, err := etcdtest.New("")
	require.NoError(t, err)
	defer cluster.Close()
	client, err := cluster.NewClient()
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	require.NoError(t, cluster.Member(0).Restart(short(t, patience)))
}

// A program that is being started has, for a moment, the files of its parent, and the locks on them. A member that is
// started then finds that its data is locked, and etcd ends the process for that.
func TestMember_RestartBesideForks(t *testing.T) {
	cluster := etcdtest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for ctx.Err() == nil {
				if err := exec.CommandContext(ctx, "true").Run(); errors.Is(err, exec.ErrNotFound) {
					return // on Windows, where the lock is none of a file that a child has
				}
			}
		})
	}
	for range 20 {
		require.NoError(t, cluster.Member(0).Restart(t.Context()))
	}
	cancel()
	forks.Wait()
}
