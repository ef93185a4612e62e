package faults

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

// Row J8: a limit of gRPC, and an endpoint that is not etcd.

// limited is a client that sends and receives no more than that many bytes at once; 0 stands for gRPC's own limits.
func limited(t *testing.T, send, receive int, opts ...etcdtest.ClientOption) *clientv3.Client {
	return cluster.Client(t, append(opts, etcdtest.WithClientConfig(func(c *clientv3.Config) {
		c.MaxCallSendMsgSize, c.MaxCallRecvMsgSize = send, receive
	}))...)
}

// A request over the send limit is refused at once. What its session releases meanwhile in the same queue is removed.
func TestFault_J8_RequestOverTheSendLimit(t *testing.T) {
	s := newSession(t, limited(t, 4<<10, 0))
	name := harness.LockName(t)
	began := time.Now()
	h := mustLock(t, s, name)
	free := harness.Quick(began) // else a request was perhaps sent once more, beside itself: its key is free much later
	parts := []etcdlock.Part{etcdlock.Write(name)}
	for range 31 {
		parts = append(parts, etcdlock.Write(harness.LockName(t)))
	}
	many := etcdlock.NewMulti(s, parts...)
	for what, lock := range map[string]func(context.Context) (*etcdlock.Held, error){"Lock": many.Lock, "TryLock": many.TryLock} {
		_, err := lock(harness.Ctx(t))
		require.ErrorContains(t, err, "MaxCallSendMsgSize", what)
		require.NotErrorIs(t, err, context.DeadlineExceeded, what)
	}
	began = time.Now()
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	free = free && harness.Quick(began)
	requireFree(t, name)
	for range 3 { // its keys are free again at once: nothing was sent
		began = time.Now()
		key := mustLockAndUnlock(t, s, name)
		require.True(t, !free || key == harness.ExclusiveKey(name, s.Lease()), key)
		free = free && harness.Quick(began)
	}
}

func mustLockAndUnlock(t *testing.T, s *etcdlock.Session, name string) (key string) {
	h := mustLock(t, s, name)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
	return h.Key()
}

// What a Lock takes along, the removals of its session, may make it too large. Then they go apart.
func TestFault_J8_RemovalsGoApart(t *testing.T) {
	s := newSession(t, limited(t, 1500, 0))
	name := harness.LockName(t) + strings.Repeat("x", 100)
	var held []*etcdlock.Held
	for range 40 {
		h, err := etcdlock.NewRWMutex(s, name).RLock(harness.Ctx(t))
		require.NoError(t, err)
		held = append(held, h)
	}
	for _, h := range held {
		h.Release()
	}
	mustLockAndUnlock(t, s, name)
	harness.RequireGone(t, cluster.Client(t), name)
}

// A transaction that was not sent has a known outcome. That of one whose reply can't be received is unknown.
func TestFault_J8_Txn(t *testing.T) {
	ctx, big := harness.Ctx(t), strings.Repeat("x", 8<<10)
	own := harness.LockName(t)
	h := mustLock(t, newSession(t, limited(t, 4<<10, 0)), own)
	_, err := h.Txn(ctx).Then(clientv3.OpPut(own+"-value", big)).Commit()
	require.ErrorContains(t, err, "MaxCallSendMsgSize")
	require.NotErrorIs(t, err, etcdlock.ErrOutcomeUnknown)
	require.NoError(t, h.Check(ctx))

	own = harness.LockName(t)
	c := limited(t, 2<<10, 4<<10)
	_, err = cluster.Client(t).Put(ctx, own+"-value", big)
	require.NoError(t, err)
	h = mustLock(t, newSession(t, c), own)
	_, err = h.Txn(ctx).Then(clientv3.OpGet(own+"-value"), clientv3.OpPut(own+"-done", "1")).Commit()
	require.ErrorIs(t, err, etcdlock.ErrOutcomeUnknown)
	require.ErrorContains(t, err, "MaxCallRecvMsgSize")
	got, err := c.Get(ctx, own+"-done")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
}

// The leader publishes more than a client may receive. A TryLock of that client is refused, and is granted once the lock is free.
// Locks of other names are granted meanwhile, whatever is nested in them.
func TestFault_J8_TryBehindALargeValue(t *testing.T) {
	outer := harness.LockName(t)
	name := outer + "/0"
	e := newClient(t, cluster.Client(t)).Elector(name, etcdlock.WithValue(strings.Repeat("x", 8<<10)))
	leads, resign := make(chan struct{}), make(chan struct{})
	led := harness.Async(func() error {
		return e.Run(harness.Ctx(t), func(context.Context, *etcdlock.Held) error {
			close(leads)
			<-resign
			return nil
		})
	})
	<-leads
	s := newSession(t, limited(t, 4<<10, 4<<10))
	try := func(name string) error {
		h, err := etcdlock.NewMutex(s, name).TryLock(harness.Ctx(t))
		if err != nil {
			return err
		}
		return h.Unlock(harness.Ctx(t))
	}
	for range 3 {
		err := try(name)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.NotContains(t, err.Error(), "data")
	}
	require.NoError(t, try(outer))
	for i := range 9 {
		mustLock(t, s, outer+"/1/"+strconv.Itoa(i))
	}
	require.NoError(t, try(outer))
	close(resign)
	require.NoError(t, harness.Result(t, led))
	require.NoError(t, try(name))
}

// A queue and a list of names over the receive limit are read in smaller pages, a hold's removal is noticed, and a
// lock is taken, by a client whose receive limit is small.
func TestFault_J8_ReplyOverTheReceiveLimit(t *testing.T) {
	t.Parallel()
	const ttl, many = 12 * time.Second, 300
	receive := 10 << 10
	s := newSession(t, limited(t, 4<<10, receive), etcdlock.WithTTL(ttl))
	name := harness.LockName(t)
	var last *etcdlock.Held
	for range many {
		h, err := etcdlock.NewRWMutex(s, name).RLock(harness.Ctx(t))
		require.NoError(t, err)
		last = h
	}
	looker := etcdlock.New(limited(t, 4<<10, receive))
	q, err := looker.Inspect(harness.Ctx(t), name)
	require.NoError(t, err)
	require.Len(t, q.Holders(), many)
	for q, err := range looker.Watch(harness.Ctx(t), name) {
		require.NoError(t, err)
		require.Len(t, q.Entries, many)
		break
	}
	for got, err := range looker.ListNames(harness.Ctx(t), name) {
		require.NoError(t, err)
		require.Equal(t, name, got)
	}

	_, err = cluster.Client(t).Delete(harness.Ctx(t), last.Key())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return last.Err() != nil }, harness.Hang, harness.Tick)
	require.ErrorIs(t, last.Err(), etcdlock.ErrLost)
	require.NoError(t, s.Err())

	// A writer behind them all, of a client that can't be told of all of them at once.
	tk, err := etcdlock.NewRWMutex(newSession(t, limited(t, 4<<10, receive/2)), name).Enqueue(harness.Ctx(t))
	require.NoError(t, err)
	ahead, err := tk.Ahead(harness.Ctx(t))
	require.NoError(t, err)
	require.Equal(t, many-1, ahead)
	require.NoError(t, s.Close())
	h, err := tk.Wait(harness.Ctx(t))
	require.NoError(t, err)
	require.NoError(t, h.Unlock(harness.Ctx(t)))
}

// A Lock whose reply was too large has entered the queue all the same, and finds its entry.
func TestFault_J8_AcquireReplyOverTheReceiveLimit(t *testing.T) {
	ctx := harness.Ctx(t)
	name := harness.LockName(t) + strings.Repeat("x", 200)
	s := newSession(t, cluster.Client(t))
	for range 16 {
		_, err := etcdlock.NewRWMutex(s, name).RLock(ctx)
		require.NoError(t, err)
	}
	tk, err := etcdlock.NewRWMutex(newSession(t, limited(t, 2<<10, 2<<10)), name).Enqueue(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	h, err := tk.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, h.Check(ctx))
	require.NoError(t, h.Unlock(ctx))
	harness.RequireGone(t, cluster.Client(t), name)
}

// serve has that server listen until the test ends, and returns its endpoint.
func serve(t *testing.T, serve func(net.Listener) error, stop func()) (endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := harness.Async(func() error { return serve(l) })
	t.Cleanup(func() { stop(); _ = harness.Result(t, served) })
	return "http://" + l.Addr().String()
}

// notEtcd are servers that are no etcd, and what the error of a Lock says of each.
func notEtcd(t *testing.T) map[string]struct{ endpoint, says string } {
	web := func(code int) string {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(code)
			_, _ = w.Write([]byte("<html>\n\x1b[31mno route"))
		}), Protocols: &http.Protocols{}}
		server.Protocols.SetUnencryptedHTTP2(true)
		return serve(t, server.Serve, func() { _ = server.Close() })
	}
	other := func(opts ...grpc.ServerOption) string {
		server := grpc.NewServer(opts...)
		return serve(t, server.Serve, server.Stop)
	}
	answer := func(code codes.Code, text string) string {
		return other(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(code, text) }))
	}
	return map[string]struct{ endpoint, says string }{
		"a gateway without a route":  {web(http.StatusNotFound), "check the endpoints"},
		"a web page":                 {web(http.StatusOK), "check the endpoints"},
		"a gateway that wants login": {web(http.StatusUnauthorized), "check the endpoints"},
		"another gRPC server":        {other(), "check the endpoints"},
		"a mesh that forbids it":     {answer(codes.PermissionDenied, "RBAC: access denied"), "RBAC: access denied"},
		"a mesh without credentials": {answer(codes.Unauthenticated, "Jwt is missing"), "Jwt is missing"},
	}
}

// What answers in etcd's place is named in the error of the first call, and Close has nothing to wait for.
func TestFault_J8_NotEtcd(t *testing.T) {
	for what, is := range notEtcd(t) {
		t.Run(what, func(t *testing.T) {
			client := etcdtest.Attach(is.endpoint).Client(t)
			locks := etcdlock.New(client)
			_, err := locks.Mutex("x").Lock(harness.Ctx(t))
			require.ErrorContains(t, err, is.says)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.NotContains(t, err.Error(), "\n")
			require.ErrorContains(t, locks.Ready(harness.Ctx(t)), is.says)
			_, err = locks.Inspect(harness.Ctx(t), "x")
			require.ErrorContains(t, err, is.says)
			require.NoError(t, locks.Close())
		})
	}
}

// The same in the middle of a session's life: the call has an error, and nothing is left of it. A gateway that says
// that etcd is away is waited for.
func TestFault_J8_RefusedInBetween(t *testing.T) {
	t.Parallel()
	for text, refused := range map[error]bool{
		status.Error(codes.Unimplemented, `unexpected HTTP status code received from server: 404 (Not Found)`):         true,
		status.Error(codes.PermissionDenied, "RBAC: access denied"):                                                    true,
		status.Error(codes.Unavailable, `unexpected HTTP status code received from server: 503 (Service Unavailable)`): false,
		status.Error(codes.Unknown, `unexpected HTTP status code received from server: 500 (Internal Server Error)`):   false,
	} {
		tap := etcdtest.NewTap()
		s := newSession(t, cluster.Client(t, tap))
		name := harness.LockName(t)
		tap.Next("Txn", func(context.Context, *etcdtest.Call) error { return text })
		h, err := etcdlock.NewMutex(s, name).Lock(harness.Ctx(t))
		if refused {
			require.ErrorContains(t, err, "check the ")
			h = mustLock(t, s, name)
		} else {
			require.NoError(t, err)
		}
		tap.Next("Txn", func(context.Context, *etcdtest.Call) error { return text })
		err = h.Unlock(harness.Ctx(t))
		if refused {
			require.ErrorContains(t, err, "check the ")
		} else {
			require.NoError(t, err)
		}
		harness.RequireGone(t, cluster.Client(t), name)
	}
}

// Where no lease was ever granted, Close has nothing to revoke.
func TestFault_J8_CloseWithoutALease(t *testing.T) {
	t.Parallel()
	for what, endpoint := range map[string]string{
		"nobody listens":  "http://127.0.0.1:1",
		"nobody answers":  silent(t),
		"no such address": "http://nowhere.invalid:2379",
	} {
		t.Run(what, func(t *testing.T) {
			locks := etcdlock.New(etcdtest.Attach(endpoint).Client(t))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := locks.Mutex("x").Lock(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, locks.Close())
		})
	}
}

// silent is the endpoint of a server that accepts connections and never answers.
func silent(t *testing.T) (endpoint string) {
	ends, end := context.WithCancel(context.Background())
	return serve(t, func(l net.Listener) error {
		context.AfterFunc(ends, func() { _ = l.Close() })
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			context.AfterFunc(ends, func() { _ = c.Close() })
		}
	}, end)
}
