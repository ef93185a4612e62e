package concurrency_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcds "go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// What docs/coming-from.md says of Key, of both packages.
func TestMutex_KeyAfterAFailure(t *testing.T) {
	type mutex interface {
		Lock(context.Context) error
		TryLock(context.Context) error
		Unlock(context.Context) error
		Key() string
	}
	c, name := cluster.Client(t), harness.LockName(t)
	holder := concurrency.NewMutex(session(t, c), name)
	ours, theirs := concurrency.NewMutex(session(t, c), name), etcds.NewMutex(etcdsSession(t, c), name)
	for _, m := range []mutex{ours, theirs} {
		after := func(key string) string {
			if m == theirs {
				return "\x00"
			}
			return key
		}
		require.NoError(t, m.Lock(harness.Ctx(t)))
		key := m.Key()
		_, err := c.Delete(harness.Ctx(t), key)
		require.NoError(t, err)
		err = m.Unlock(harness.Ctx(t))
		require.Equal(t, after(key), m.Key(), "Unlock of a lock that was lost")
		require.Equal(t, m == ours, err != nil)

		require.NoError(t, m.Lock(harness.Ctx(t)))
		key = m.Key() // another one, if the first request was sent twice
		_, err = c.Delete(harness.Ctx(t), key)
		require.NoError(t, err)
		require.NoError(t, holder.Lock(harness.Ctx(t)))
		require.Error(t, m.TryLock(harness.Ctx(t)))
		require.Equal(t, after(key), m.Key(), "TryLock")
		waitsFor(t, m.Lock, 50*time.Millisecond)
		require.Equal(t, after(key), m.Key(), "Lock")
		require.NoError(t, holder.Unlock(harness.Ctx(t)))
	}
}

// What docs/coming-from.md says of an etcd that answers, as a ctx of WithRequireLeader asks for, that it has no leader.
func TestWithRequireLeader(t *testing.T) {
	tap := etcdtest.NewTap()
	c, name := cluster.Client(t, tap), harness.LockName(t)
	s, other := session(t, c), etcdsSession(t, c)
	refuse := func(context.Context, *etcdtest.Call) error { return rpctypes.ErrGRPCNoLeader }
	defer tap.Every("Txn", refuse)()
	defer tap.Every("Range", refuse)()
	ours, theirs := concurrency.NewElection(s, name), etcds.NewElection(other, name)
	for _, calls := range [][2]func(context.Context) error{
		{concurrency.NewMutex(s, name).Lock, etcds.NewMutex(other, name).Lock},
		{concurrency.NewMutex(s, name).TryLock, etcds.NewMutex(other, name).TryLock},
		{
			func(ctx context.Context) error { return ours.Campaign(ctx, "") },
			func(ctx context.Context) error { return theirs.Campaign(ctx, "") },
		},
	} {
		waitsFor(t, func(ctx context.Context) error { return calls[0](clientv3.WithRequireLeader(ctx)) }, 100*time.Millisecond)
		require.Equal(t, rpctypes.ErrNoLeader, calls[1](clientv3.WithRequireLeader(harness.Ctx(t))))
	}
}

// What docs/coming-from.md says of Header while programs with either package are left: the next holder may have the lower revision.
func TestMutex_HeadersOfBoth(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	first := concurrency.NewMutex(session(t, c), name)
	require.NoError(t, first.Lock(harness.Ctx(t)))
	theirs, ours := etcds.NewMutex(etcdsSession(t, c), name), concurrency.NewMutex(session(t, c), name)
	second := harness.Async(func() error { return theirs.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	third := harness.Async(func() error { return ours.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 3)
	created := func(key string) int64 {
		got, err := c.Get(harness.Ctx(t), key)
		require.NoError(t, err)
		return got.Kvs[0].CreateRevision
	}
	require.NoError(t, first.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, second))
	before := created(theirs.Key())
	require.NoError(t, theirs.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, third))
	require.Greater(t, theirs.Header().Revision, ours.Header().Revision)
	require.Less(t, before, created(ours.Key()))
	require.NoError(t, ours.Unlock(harness.Ctx(t)))
}

// What docs/coming-from.md says of etcd's RWMutex: it has other keys.
func TestRecipes_RWMutexIsAnotherLock(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	theirs := recipe.NewRWMutex(etcdsSession(t, c), name)
	require.NoError(t, theirs.Lock())
	locks := etcdlock.New(c)
	defer func() { _ = locks.Close() }()
	h, err := locks.RWMutex(name).TryLock(harness.Ctx(t))
	require.NoError(t, err, "both have the lock")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	require.NoError(t, theirs.Unlock())
}

// What docs/coming-from.md says of a lease that a program with etcd's package takes over: of two entries it takes one for
// its own, and waits for the other one, which its session keeps alive.
func TestMutex_LeaseGoesBackToEtcds(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	s := session(t, c)
	first, second := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	require.NoError(t, first.Lock(harness.Ctx(t)))
	locking := harness.Async(func() error { return second.Lock(harness.Ctx(t)) })
	harness.QueueIs(t, c, name, 2)
	require.NoError(t, first.Unlock(harness.Ctx(t)))
	require.NoError(t, harness.Result(t, locking))
	require.Equal(t, harness.ExclusiveKey(name, s.Lease())+"-1", second.Key())
	s.Orphan()
	back, err := etcds.NewSession(c, etcds.WithLease(s.Lease()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = back.Close() })
	waitsFor(t, etcds.NewMutex(back, name).Lock, 100*time.Millisecond)
	require.Equal(t, []string{second.Key()}, harness.Entries(t, c, name))
}

// What docs/coming-from.md says of a name that ends in "/": without that it is the name of another lock. The error says so.
func TestMutex_NameWithoutItsSlash(t *testing.T) {
	c, name := cluster.Client(t), harness.LockName(t)
	theirs := etcds.NewMutex(etcdsSession(t, c), name+"/")
	require.NoError(t, theirs.Lock(harness.Ctx(t)))
	locks := etcdlock.New(c)
	defer func() { _ = locks.Close() }()
	_, err := locks.Mutex(name + "/").TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrInvalidName)
	require.ErrorContains(t, err, "another lock")
	h, err := locks.Mutex(name).TryLock(harness.Ctx(t))
	require.NoError(t, err, "both are in")
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	same := etcdlock.New(c, etcdlock.WithTrailingSlash())
	defer func() { _ = same.Close() }()
	_, err = same.Mutex(name + "/").TryLock(harness.Ctx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.NoError(t, theirs.Unlock(harness.Ctx(t)))
}

// What docs/coming-from.md says of Header, of Rev, and of calls after the loss of a term, of both packages.
func TestElection_AfterATerm(t *testing.T) {
	type election interface {
		Campaign(context.Context, string) error
		Proclaim(context.Context, string) error
		Resign(context.Context) error
	}
	c, name := cluster.Client(t), harness.LockName(t)
	ours, theirs := concurrency.NewElection(session(t, c), name), etcds.NewElection(etcdsSession(t, c), name)
	leader := concurrency.NewElection(session(t, c), name)
	campaignInVain := func(e election) {
		require.NoError(t, leader.Campaign(harness.Ctx(t), "leader"))
		ctx, cancel := context.WithTimeout(harness.Ctx(t), 50*time.Millisecond)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, e.Campaign(ctx, "in vain"))
		require.NoError(t, leader.Resign(harness.Ctx(t)))
	}
	require.NoError(t, ours.Campaign(harness.Ctx(t), "a"))
	require.NoError(t, ours.Proclaim(harness.Ctx(t), "b"))
	header, rev := ours.Header(), ours.Rev()
	require.NoError(t, ours.Resign(harness.Ctx(t)))
	campaignInVain(ours)
	require.Equal(t, header, ours.Header())
	require.Equal(t, rev, ours.Rev())

	require.NoError(t, theirs.Campaign(harness.Ctx(t), "a"))
	header, rev = theirs.Header(), theirs.Rev()
	require.NoError(t, theirs.Resign(harness.Ctx(t)))
	require.NotEqual(t, header, theirs.Header())
	campaignInVain(theirs)
	require.NotEqual(t, rev, theirs.Rev())

	for _, e := range []interface {
		election
		Key() string
	}{ours, theirs} {
		require.NoError(t, e.Campaign(harness.Ctx(t), "a"))
		_, err := c.Delete(harness.Ctx(t), e.Key())
		require.NoError(t, err)
		require.EqualError(t, e.Proclaim(harness.Ctx(t), "b"), etcds.ErrElectionNotLeader.Error())
		again, resigned := e.Proclaim(harness.Ctx(t), "b"), e.Resign(harness.Ctx(t))
		if e == ours {
			require.Equal(t, concurrency.ErrElectionNotLeader, again)
			require.NoError(t, resigned)
		} else {
			require.Equal(t, rpctypes.ErrEmptyKey, again)
			require.Equal(t, rpctypes.ErrEmptyKey, resigned)
		}
	}
}
