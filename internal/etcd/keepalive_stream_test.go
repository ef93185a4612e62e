package etcd

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// streams gets the ctx of each stream that is opened from now on.
func streams(tap *etcdtest.Tap) <-chan context.Context {
	opened := make(chan context.Context, 10)
	tap.OnStream(func(ctx context.Context, _ string) error {
		opened <- ctx
		return nil
	})
	return opened
}

// ended reports whether a stream has ended.
func ended(stream context.Context) func() bool {
	return func() bool { return stream.Err() != nil }
}

// holdReply holds the next reply to a renewal until release is called. asked is closed when the reply is there.
func holdReply(tap *etcdtest.Tap) (asked <-chan struct{}, release func()) {
	there, free := make(chan struct{}), make(chan struct{})
	tap.OnKeepAliveResponse(func(ctx context.Context, _ *pb.LeaseKeepAliveResponse) error {
		tap.OnKeepAliveResponse(nil)
		close(there)
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return there, func() { close(free) }
}

// Of two streams that answer one stays, and the other is closed.
func TestKeepAlive_SecondStreamIsClosed(t *testing.T) {
	k, tap, id := keepAlive(t)
	opened := streams(tap)
	settled(t, k, id)
	first := <-opened
	asked, release := holdReply(tap)
	late := make(chan error)
	go func() {
		_, err := k.Renew(t.Context(), id)
		late <- err
	}()
	<-asked
	_, err := k.Renew(t.Context(), id)
	require.NoError(t, err)
	second := <-opened
	release()
	require.NoError(t, <-late)
	require.Eventually(t, ended(first), 10*time.Second, time.Millisecond)
	require.NoError(t, second.Err())
}

// A stream that turns out to lead to a proxy is closed at once: the proxy renews the lease by itself while it is open.
func TestKeepAlive_StreamToAProxyIsClosed(t *testing.T) {
	k, tap, id := keepAlive(t)
	opened := streams(tap)
	kept := make(chan struct{})
	tap.OnKeepAliveResponse(func(_ context.Context, r *pb.LeaseKeepAliveResponse) error {
		if r.ID == int64(clientv3.NoLease) {
			<-kept
			r.TTL = -1 // as the proxy answers
		}
		return nil
	})
	_, err := k.Renew(t.Context(), id)
	close(kept)
	require.NoError(t, err)
	require.Eventually(t, ended(<-opened), 10*time.Second, time.Millisecond)
	require.True(t, k.Relayed())
}

// A stream outlives the ctx of the renewal that has opened it.
func TestKeepAlive_StreamOutlivesItsRenewal(t *testing.T) {
	k, tap, id := keepAlive(t)
	opened := streams(tap)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := k.Renew(ctx, id)
	require.NoError(t, err)
	cancel()
	settled(t, k, id)
	require.NoError(t, (<-opened).Err())
}

// That a stream ends while nobody uses it is noticed: no renewal meets the error of an earlier time.
func TestKeepAlive_StreamEndsAtRest(t *testing.T) {
	k, _, id := keepAlive(t)
	settled(t, k, id)
	k.mu.Lock()
	k.kept.cancel()
	k.mu.Unlock()
	require.Eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.kept == nil
	}, 10*time.Second, time.Millisecond)
	<-k.Broken
	require.Zero(t, k.Stream())
}

// A refusal for want of rights is etcd's answer, and is not asked for once more on another stream.
func TestKeepAlive_RefusedOnce(t *testing.T) {
	k, tap, id := keepAlive(t)
	settled(t, k, id)
	tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error {
		return rpctypes.ErrGRPCPermissionDenied
	})
	_, err := k.Renew(t.Context(), id)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.Equal(t, 1, tap.Calls("LeaseKeepAlive"))
}

// The reply to a renewal shows etcd's revision, and so whether a snapshot was restored.
func TestKeepAlive_ShowsTheRevision(t *testing.T) {
	k, _, id := keepAlive(t)
	settled(t, k, id)
	require.NotZero(t, k.client.shown.cluster.Load())
	require.NotZero(t, k.client.shown.revision.Load())
}

// After Close no stream is opened, which nobody would wait for.
func TestKeepAlive_ClosedForGood(t *testing.T) {
	k, tap, id := keepAlive(t)
	over := errors.New("over")
	life, end := context.WithCancelCause(t.Context())
	k = NewKeepAlive(life, k.client)
	end(over)
	k.Close()
	_, err := k.Renew(t.Context(), id)
	require.Equal(t, over, err)
	require.Zero(t, tap.Calls("LeaseKeepAlive"))
}

// Within the process of etcd there is no stream to open ahead.
func TestKeepAlive_PrepareInProcess(t *testing.T) {
	c := newTestClient()
	c.Username = "somebody"
	k := NewKeepAlive(t.Context(), c)
	k.Prepare(t.Context())
	k.mu.Lock()
	defer k.mu.Unlock()
	require.False(t, k.opened)
}

// An answer may take half of the time that is left, and a moment at least; while there is no deadline, as long as the
// first attempt of a request.
func TestKeepAlive_Patience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeepAlive(t.Context(), newTestClient())
		require.Equal(t, AttemptMin, k.patience())
		var deadline time.Time
		k.client.Deadline = func() time.Time { return deadline }
		require.Equal(t, AttemptMin, k.patience())
		deadline = time.Now().Add(time.Hour)
		require.Equal(t, 30*time.Minute, k.patience())
		deadline = time.Now().Add(-time.Second)
		require.Equal(t, RetryMax/2, k.patience())
	})
}

// A wire is a stream of etcd's on which no renewal can be sent, and on which a test has replies come.
type wire struct {
	pb.Lease_LeaseKeepAliveClient
	broken  error // for those who send
	life    context.Context
	replies chan *pb.LeaseKeepAliveResponse
}

func (w *wire) Context() context.Context             { return w.life }
func (w *wire) Send(*pb.LeaseKeepAliveRequest) error { return w.broken }
func (w *wire) Recv() (*pb.LeaseKeepAliveResponse, error) {
	resp, ok := <-w.replies
	if !ok {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return resp, nil
}

// wired is a KeepAlive with a stream on a wire.
func wired(t *testing.T) (k *KeepAlive, s *keepAliveStream, w *wire) {
	life, cancel := context.WithCancel(t.Context())
	w = &wire{broken: io.EOF, life: life, replies: make(chan *pb.LeaseKeepAliveResponse)}
	s = &keepAliveStream{w, cancel, make(chan *pb.LeaseKeepAliveResponse), make(chan struct{}), nil, false, 1}
	return NewKeepAlive(t.Context(), newTestClient()), s, w
}

// A renewal on a stream that has ended tells why, and not only that it could not be sent.
func TestKeepAlive_WhyTheStreamEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s, w := wired(t)
		close(w.replies)
		go k.read(s)
		_, err := s.renew(1)
		require.ErrorIs(t, err, rpctypes.ErrGRPCPermissionDenied)
	})
}

// A stream on which a renewal could not be sent is closed, also where a foreign interceptor leaves it open.
func TestKeepAlive_BrokenStreamIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s, w := wired(t)
		w.broken = errors.New("broken")
		_, err := k.renewOn(t.Context(), s, 1)
		require.ErrorIs(t, err, w.broken)
		require.Error(t, w.life.Err())
	})
}

// A reply that nobody waits for holds up neither the end of its stream nor Close, which waits for that.
func TestKeepAlive_ReplyForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s, w := wired(t)
		k.readers.Go(func() { k.read(s) })
		w.replies <- &pb.LeaseKeepAliveResponse{ID: 1, TTL: 1}
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			k.Close()
			close(closed)
		}()
		s.cancel()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("Close returned before the goroutine that reads")
		default:
		}
		close(w.replies)
		<-closed
	})
}

// A renewal was sent on the stream that was kept, which broke before the answer, and is not sent again. That is not told as if it
// had never been sent (I4): its answer may come to the next renewal.
func TestKeepAlive_SentOnAStreamThatBreaks(t *testing.T) {
	k, tap, id := keepAlive(t)
	k.client.Username = "somebody" // without a password, so that there is no check
	k.Prepare(t.Context())
	tap.OnKeepAliveResponse(func(context.Context, *pb.LeaseKeepAliveResponse) error {
		return status.Error(codes.Unavailable, "transport is closing")
	})
	k.mu.Lock()
	k.opening++ // another stream, whose password check takes its time
	k.mu.Unlock()
	_, err := k.Renew(t.Context(), id)
	require.ErrorContains(t, err, "transport is closing")
	require.ErrorContains(t, err, ErrOpening.Error())
	require.NotErrorIs(t, err, ErrOpening)
	require.NotErrorIs(t, err, ErrNotSent)
	_, err = k.Renew(t.Context(), id)
	require.ErrorIs(t, err, ErrOpening, "this one was not sent")
}
