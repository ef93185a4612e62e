package etcdtest_test

import (
	"context"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

func next(t *testing.T, w clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case r, ok := <-w:
		require.True(t, ok, "the watch was closed")
		require.NoError(t, r.Err())
		return r
	case <-time.After(patience):
		require.Fail(t, "no event")
		return clientv3.WatchResponse{}
	}
}

func watching(t *testing.T, c *clientv3.Client) clientv3.WatchChan {
	t.Helper()
	w := c.Watch(t.Context(), "a", clientv3.WithCreatedNotify())
	require.True(t, next(t, w).Created)
	return w
}

// isDelete reports whether m has an event for a deletion.
func isDelete(m *pb.WatchResponse) bool {
	return slices.ContainsFunc(m.Events, func(e *mvccpb.Event) bool { return e.Type == clientv3.EventTypeDelete })
}

func TestTapDropsWatchMessage(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		if isDelete(m) {
			return etcdtest.ErrDrop
		}
		return nil
	})
	w := watching(t, client)
	_, err := direct.Delete(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, set(t.Context(), direct, "1"))
	r := next(t, w)
	require.Len(t, r.Events, 1)
	assert.True(t, r.Events[0].IsCreate(), "only the deletion must be lost")
}

func TestTapRewritesWatchMessages(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	tap.OnWatchRequest(func(_ context.Context, m *pb.WatchRequest) error {
		if c := m.GetCreateRequest(); c != nil {
			c.Key = []byte("b")
		}
		return nil
	})
	tap.OnWatchResponse(func(_ context.Context, m *pb.WatchResponse) error {
		for _, e := range m.Events {
			e.Kv.Value = []byte("forged")
		}
		return nil
	})
	w := watching(t, client)
	_, err := direct.Put(t.Context(), "b", "1")
	require.NoError(t, err)
	r := next(t, w)
	require.Len(t, r.Events, 1)
	assert.Equal(t, "b", string(r.Events[0].Kv.Key))
	assert.Equal(t, "forged", string(r.Events[0].Kv.Value))
	assert.Equal(t, "a", string(tap.WatchCreates()[0].Key), "the request must be recorded as the client sent it")
}

func TestTapBlocksWatchMessage(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	w := watching(t, client)
	arrived, release := make(chan struct{}), make(chan struct{})
	tap.OnWatchResponse(func(ctx context.Context, _ *pb.WatchResponse) error {
		close(arrived)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	require.NoError(t, set(t.Context(), direct, "1"))
	awaitClosed(t, arrived)
	assert.Empty(t, w)
	tap.OnWatchResponse(nil)
	close(release)
	assert.Len(t, next(t, w).Events, 1)
}

// After ErrTransport the client opens a new stream and resumes on it.
func TestTapBreaksWatchStream(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	var broken atomic.Bool
	w := watching(t, client)
	tap.OnWatchResponse(func(context.Context, *pb.WatchResponse) error {
		if broken.CompareAndSwap(false, true) {
			return etcdtest.ErrTransport
		}
		return nil
	})
	require.NoError(t, set(t.Context(), direct, "1"))
	r := next(t, w)
	require.NotEmpty(t, r.Events)
	assert.Equal(t, "1", string(r.Events[len(r.Events)-1].Kv.Value))
	assert.Equal(t, 2, tap.Calls("Watch"))
	require.Len(t, tap.WatchCreates(), 2)
	assert.NotZero(t, tap.WatchCreates()[1].StartRevision)
}

// After io.EOF the client gives up its watchers.
func TestTapEndsWatchStream(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	w := watching(t, client)
	tap.OnWatchResponse(func(context.Context, *pb.WatchResponse) error { return io.EOF })
	require.NoError(t, set(t.Context(), direct, "1"))
	eventually(t, func() bool {
		select {
		case _, ok := <-w:
			return !ok
		default:
			return false
		}
	}, "the watch must be closed")
	assert.Equal(t, 1, tap.Calls("Watch"))
}

func TestTapStreamDoesNotOpen(t *testing.T) {
	t.Parallel()
	tap, client, _ := tapped(t)
	opening := make(chan string, 1)
	tap.OnStream(func(ctx context.Context, method string) error {
		opening <- method
		<-ctx.Done()
		return ctx.Err()
	})
	grant, err := client.Grant(t.Context(), 60)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	call := result(func() error { _, err := client.KeepAliveOnce(ctx, grant.ID); return err })
	assert.Equal(t, "LeaseKeepAlive", <-opening)
	cancel()
	require.ErrorIs(t, await(t, call), context.Canceled)
	tap.Clear()
	_, err = client.KeepAliveOnce(t.Context(), grant.ID)
	require.NoError(t, err)
}

func TestTapKeepAliveMessages(t *testing.T) {
	t.Parallel()
	tap, client, direct := tapped(t)
	grant, err := client.Grant(t.Context(), 60)
	require.NoError(t, err)
	_, err = direct.Revoke(t.Context(), grant.ID)
	require.NoError(t, err)

	// Make the renewal of a revoked lease look like a success.
	tap.OnKeepAliveResponse(func(_ context.Context, m *pb.LeaseKeepAliveResponse) error {
		m.TTL = 5
		return nil
	})
	ka, err := client.KeepAliveOnce(t.Context(), grant.ID)
	require.NoError(t, err)
	assert.EqualValues(t, 5, ka.TTL)

	// Drop a renewal.
	tap.OnKeepAliveRequest(func(_ context.Context, m *pb.LeaseKeepAliveRequest) error {
		assert.EqualValues(t, grant.ID, m.ID)
		return etcdtest.ErrDrop
	})
	_, err = client.KeepAliveOnce(short(t, 200*time.Millisecond), grant.ID)
	require.Error(t, err)
}
