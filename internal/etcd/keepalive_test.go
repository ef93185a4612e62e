package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// keepAlive is a KeepAlive of a client with a tap, and a lease for it.
func keepAlive(t *testing.T, opts ...etcdtest.ClientOption) (*KeepAlive, *etcdtest.Tap, clientv3.LeaseID) {
	t.Helper()
	tap := etcdtest.NewTap()
	c := etcdtest.Start(t).Client(t, append(opts, tap)...)
	grant, err := c.Grant(t.Context(), 60)
	require.NoError(t, err)
	k := NewKeepAlive(t.Context(), NewClient(c))
	t.Cleanup(k.Close)
	return k, tap, grant.ID
}

// settled renews the lease once, on a stream that is known to lead to etcd itself.
func settled(t *testing.T, k *KeepAlive, id clientv3.LeaseID) {
	t.Helper()
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !k.Shared() }, 10*time.Second, time.Millisecond)
}

// Renewals have one stream, one after the other. One that is sent while another has no answer has a second stream; of
// the two, one stays.
func TestKeepAlive_OneStream(t *testing.T) {
	k, tap, id := keepAlive(t)
	renew := func() {
		ttl, err := k.Renew(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, int64(60), ttl)
	}
	require.Zero(t, k.Stream())
	settled(t, k, id)
	renew()
	require.Equal(t, 1, tap.Calls("LeaseKeepAlive"))
	require.Equal(t, 1, k.Stream())

	held := make(chan struct{})
	tap.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
		tap.OnKeepAliveResponse(nil)
		close(held)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	late := make(chan error)
	go func() {
		_, err := k.Renew(ctx, id)
		late <- err
	}()
	<-held
	renew()
	renew()
	require.Equal(t, 2, tap.Calls("LeaseKeepAlive"))
	cancel()
	require.ErrorIs(t, <-late, context.Canceled)
	renew()
	require.Equal(t, 2, tap.Calls("LeaseKeepAlive"))
	require.Equal(t, 2, k.Stream(), "another member may answer")
	_, err := k.client.Revoke(t.Context(), id)
	require.NoError(t, err)
	ttl, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, ttl)
}

// A stream that broke while nobody used it fails no renewal.
func TestKeepAlive_StreamBreaks(t *testing.T) {
	k, tap, id := keepAlive(t)
	settled(t, k, id)
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error {
		tap.OnKeepAliveRequest(nil)
		return etcdtest.ErrTransport
	})
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 2, tap.Calls("LeaseKeepAlive"))
}

// While a stream waits for a password check, no other stream is opened beside it: more checks would only make etcd
// slower. Where there are other members one follows after half of the time that is left, since the first member may hang.
func TestKeepAlive_FewPasswordChecks(t *testing.T) {
	k, tap, id := keepAlive(t)
	k.client.Username = "somebody" // without a password, so that there is no check
	ctx, cancel := context.WithCancel(t.Context())
	opening := make(chan struct{}, 10)
	tap.OnStream(func(ctx context.Context, _ string) error {
		opening <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	renew := func() error {
		_, err := k.Renew(ctx, id)
		return err
	}
	failed := make(chan error, 2)
	deadline := time.Now().Add(time.Hour)
	k.client.Deadline = func() time.Time { return deadline }
	go func() { failed <- renew() }()
	<-opening
	k.mu.Lock()
	require.InDelta(t, float64(30*time.Minute), float64(time.Until(k.again)), float64(time.Minute))
	k.again = time.Now()
	k.mu.Unlock()
	require.ErrorIs(t, renew(), ErrOpening, "there is no other member")
	k.client.SetEndpoints(append(k.client.Endpoints(), k.client.Endpoints()...)...)
	go func() { failed <- renew() }()
	<-opening
	require.ErrorIs(t, renew(), ErrOpening)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.ErrorIs(t, <-failed, context.Canceled)

	tap.OnStream(nil)
	settled(t, k, id) // they are over
	k.mu.Lock()
	k.again = time.Time{} // of the stream
	k.mu.Unlock()
	asked := make(chan struct{})
	ctx, cancel = context.WithCancel(t.Context())
	tap.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
		tap.OnKeepAliveResponse(nil)
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	})
	go func() { failed <- renew() }()
	<-asked
	require.ErrorIs(t, renew(), ErrOpening, "a renewal has no answer")
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
}

// A stream that is opened ahead is that of the first renewal.
func TestKeepAlive_Prepare(t *testing.T) {
	k, tap, id := keepAlive(t)
	k.Prepare(t.Context())
	require.Zero(t, tap.Calls("LeaseKeepAlive"), "nothing is gained without a password")
	k.client.Username = "somebody"
	k.Prepare(t.Context())
	require.Equal(t, 1, tap.Calls("LeaseKeepAlive"))
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 1, tap.Calls("LeaseKeepAlive"))
}

// Until a stream is known to lead to etcd itself it serves one renewal: the reply to the next one might be that of a
// renewal that a proxy has sent by itself.
func TestKeepAlive_StreamOfUnknownEnd(t *testing.T) {
	k, tap, id := keepAlive(t)
	tap.OnKeepAliveResponse(func(_ context.Context, r *pb.LeaseKeepAliveResponse) error {
		if r.ID == int64(clientv3.NoLease) {
			return etcdtest.ErrDrop
		}
		return nil
	})
	for n := range 3 {
		_, err := k.Renew(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, n+1, tap.Calls("LeaseKeepAlive"))
		require.True(t, k.Shared())
	}
}

// Where a stream is known to lead to a proxy, each renewal has a stream of its own, and none asks where it leads.
func TestKeepAlive_BehindAProxy(t *testing.T) {
	k, tap, id := keepAlive(t)
	var questions atomic.Int32
	tap.OnKeepAliveRequest(func(_ context.Context, r *pb.LeaseKeepAliveRequest) error {
		if r.ID == int64(clientv3.NoLease) {
			questions.Add(1)
		}
		return nil
	})
	tap.OnKeepAliveResponse(func(_ context.Context, r *pb.LeaseKeepAliveResponse) error {
		if r.ID == int64(clientv3.NoLease) {
			r.TTL = -1 // as the proxy answers
		}
		return nil
	})
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Eventually(t, k.Relayed, 10*time.Second, time.Millisecond)
	require.Zero(t, k.Stream())
	for n := range 3 {
		_, err := k.Renew(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, n+2, tap.Calls("LeaseKeepAlive"))
	}
	require.Equal(t, int32(1), questions.Load())
}
