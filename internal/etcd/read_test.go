package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A read at a revision shows that revision; where it was compacted, and without one, it shows the present.
func TestReadAt(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := NewClient(own.Client(t))
	ctx := t.Context()
	first, err := c.Put(ctx, "a", "1")
	require.NoError(t, err)
	second, err := c.Put(ctx, "b", "2")
	require.NoError(t, err)
	then, now := first.Header.Revision, second.Header.Revision

	got, at, err := c.ReadAt(ctx, ctx, then, ReadValue("a"), ReadKey("b"))
	require.NoError(t, err)
	require.Equal(t, then, at)
	require.Equal(t, "1", string(got[0].Kvs[0].Value))
	require.Empty(t, got[1].Kvs)

	got, at, err = c.ReadAt(ctx, ctx, 0, ReadRange("a", "z", clientv3.WithLimit(1)))
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.EqualValues(t, 2, got[0].Count)
	require.Len(t, got[0].Kvs, 1)
	require.Empty(t, got[0].Kvs[0].Value, "keys only")

	_, err = own.Compact(ctx)
	require.NoError(t, err)
	got, at, err = c.ReadAt(ctx, ctx, then, ReadKey("b"))
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.Len(t, got[0].Kvs, 1)

	got, at, err = c.ReadAt(ctx, ctx, now+1, ReadKey("b")) // of the future
	require.NoError(t, err)
	require.Equal(t, now, at)
	require.Len(t, got[0].Kvs, 1)
}

// Do ends when the client is closed, and says so.
func TestDo_ClientClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := NewClient(clientv3.NewCtxClient(ctx))
	calls := 0
	_, ambiguous, err := Do(context.Background(), c, Policy{}, func(context.Context) (int, error) {
		calls++
		cancel()
		return 0, errors.New("no leader")
	})
	require.ErrorIs(t, err, ErrClientClosed)
	require.True(t, ambiguous)
	require.Equal(t, 1, calls)
}

func TestRefused(t *testing.T) {
	for err, want := range map[error]bool{
		rpctypes.ErrPermissionDenied: true, rpctypes.ErrNoSpace: true, rpctypes.ErrCompacted: true, rpctypes.ErrLeaseNotFound: true,
		rpctypes.ErrNoLeader: false, rpctypes.ErrAuthOldRevision: false, rpctypes.ErrTooManyRequests: false,
		context.DeadlineExceeded: false, errors.New("transport is closing"): false,
	} {
		require.Equal(t, want, Refused(err), err)
	}
	require.True(t, notProposed(rpctypes.ErrNoLeader))
	require.True(t, notProposed(errors.New("raft proposal dropped")))
	require.False(t, notProposed(errors.New("transport is closing")))
}
