package etcd

import (
	"context"
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

// Renewals have one stream, one after the other. One that is sent while another has no answer has a second stream; of
// the two, one stays.
func TestKeepAlive_OneStream(t *testing.T) {
	k, tap, id := keepAlive(t)
	renew := func() {
		ttl, err := k.Renew(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, int64(60), ttl)
	}
	renew()
	renew()
	require.Equal(t, 1, tap.Calls("LeaseKeepAlive"))
	require.Eventually(t, func() bool { return !k.Shared() }, 10*time.Second, time.Millisecond, "it leads to etcd itself")

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
	_, err := k.client.Revoke(t.Context(), id)
	require.NoError(t, err)
	ttl, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, ttl)
}

// A stream that broke while nobody used it fails no renewal.
func TestKeepAlive_StreamBreaks(t *testing.T) {
	k, tap, id := keepAlive(t)
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	tap.OnKeepAliveRequest(func(context.Context, *pb.LeaseKeepAliveRequest) error {
		tap.OnKeepAliveRequest(nil)
		return etcdtest.ErrTransport
	})
	_, err = k.Renew(t.Context(), id)
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
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err, "they are over")
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
