package etcd

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// tapped is a client that has reached etcd.
func tapped(t *testing.T) (*clientv3.Client, *etcdtest.Tap) {
	t.Helper()
	tap := etcdtest.NewTap()
	client := etcdtest.Start(t).Client(t, tap)
	_, err := client.Get(t.Context(), "a")
	require.NoError(t, err)
	return client, tap
}

// open opens a watch on a. A machine that stalls may need several attempts.
func open(t *testing.T, c *Client, opts ...clientv3.OpOption) (w *Watch) {
	t.Helper()
	require.Eventually(t, func() (opened bool) {
		var err error
		w, err = c.OpenWatch(t.Context(), t.Context(), "a", "", opts...)
		return err == nil
	}, time.Minute, time.Millisecond)
	return w
}

// A Client leaves no stream behind on the clientv3.Client, though a watch was given up while it was being opened, however late
// etcd opens it: nobody would end that stream before the clientv3.Client is closed.
func TestWatcher_GivenUpWhileOpening(t *testing.T) {
	held := map[string]func(tap *etcdtest.Tap, until func(context.Context) error){
		"before there is a stream": func(tap *etcdtest.Tap, until func(context.Context) error) {
			tap.OnStream(func(ctx context.Context, _ string) error { return until(ctx) })
		},
		"before etcd has answered": func(tap *etcdtest.Tap, until func(context.Context) error) {
			tap.OnWatchResponse(func(ctx context.Context, _ *pb.WatchResponse) error { return until(ctx) })
		},
	}
	giveUp := map[string]func(c *Client, cancel func()){
		"by the caller":         func(_ *Client, cancel func()) { cancel() },
		"after the time for it": func(*Client, func()) {},
		"with the Watcher":      func(c *Client, _ func()) { c.watcher.end() },
		"by the caller, and it is late": func(c *Client, cancel func()) {
			cancel()
			_, err := c.OpenWatch(context.Background(), context.Background(), "b", "") // for AttemptMin
			assert.ErrorIs(t, err, ErrWatch)
		},
	}
	// The cases wait beside each other: what one leaves is found among the goroutines of all.
	var cases []func()
	for when, hold := range held {
		for how, act := range giveUp {
			client, tap := tapped(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel() // when all have left nothing
			cases = append(cases, func() {
				c := NewClient(client)
				opens, goesOn := make(chan struct{}, 100), make(chan struct{})
				hold(tap, func(ctx context.Context) error {
					opens <- struct{}{}
					select {
					case <-goesOn:
					case <-ctx.Done():
					}
					return ctx.Err()
				})
				done := make(chan error)
				go func() {
					_, err := c.OpenWatch(ctx, t.Context(), "a", "")
					done <- err
				}()
				<-opens
				act(c, cancel)
				assert.ErrorIs(t, <-done, ErrWatch, "%s, %s", when, how)
				c.CloseWatcher()
				close(goesOn)
			})
		}
	}
	before := goleak.IgnoreCurrent()
	var all sync.WaitGroup
	for _, play := range cases {
		all.Go(play)
	}
	all.Wait()
	require.NoError(t, leaks.Find(time.Minute, before))
}

// watchStreams are the watch streams of all clients in this process.
func watchStreams() int {
	stacks := make([]byte, 1<<22)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("(*watchGRPCStream).run("))
}

// A watch that is closed while its stream is being opened anew leaves none either.
func TestWatcher_ClosedInAnOutage(t *testing.T) {
	cluster := etcdtest.Start(t)
	proxy := cluster.Proxy(t)
	client := cluster.Client(t, proxy)
	none := func() bool { return watchStreams() == 0 }
	require.Eventually(t, none, time.Minute, time.Millisecond, "those of earlier tests end")
	c := NewClient(client)
	w, other := open(t, c), open(t, c)
	require.False(t, none())
	proxy.Refuse()
	proxy.Reset()
	require.Eventually(t, func() bool { return !c.Connected() }, time.Minute, time.Millisecond)
	w.Close()
	other.Close()
	c.CloseWatcher()
	proxy.Accept()
	c.waker.reset()
	require.Eventually(t, none, time.Minute, time.Millisecond)
}

// For a ctx that has ended already no stream is opened.
func TestWatcher_CtxHasEnded(t *testing.T) {
	client, tap := tapped(t)
	before := goleak.IgnoreCurrent()
	c := NewClient(client)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.OpenWatch(ctx, t.Context(), "a", "")
	require.ErrorIs(t, err, ErrWatch)
	c.CloseWatcher()
	require.NoError(t, leaks.Find(time.Minute, before))
	require.Zero(t, tap.Calls("Watch"))
}

// countedStreams is a pb.WatchClient of the user's.
type countedStreams struct {
	pb.WatchClient
	n *atomic.Int32
}

func (c countedStreams) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	c.n.Add(1)
	return c.WatchClient.Watch(ctx, opts...)
}

// A Watcher that the user has put in the place of etcd's own is used, though it has the same type, and also when it
// could not open a watch: nothing can be made that is like it.
func TestWatcher_OfTheUser(t *testing.T) {
	client, _ := tapped(t)
	var n atomic.Int32 // a watch that was given up may yet have a stream opened
	of := clientv3.NewWatchFromWatchClient(countedStreams{pb.NewWatchClient(client.ActiveConnection()), &n}, client)
	alone := clientv3.NewCtxClient(t.Context()) // as v3client.New makes it
	for _, user := range []*clientv3.Client{client, alone} {
		user.Watcher = of
		c := NewClient(user)
		c.LeaveWatcher(c.EnterWatcher(), true)
		c.etcdAnswers()
		before := n.Load()
		w := open(t, c)
		require.Greater(t, n.Load(), before)
		w.Close()
		c.CloseWatcher()
		for range w.C {
		}
	}
	require.NoError(t, of.Close())
}

// A stream that answers no question is asked by another watch like those that it has: where the watches hear of deletions
// only, that watch does too.
func TestProbe_OpensWhatIsWatched(t *testing.T) {
	client, tap := tapped(t)
	c := NewClient(client)
	defer c.CloseWatcher()
	defer open(t, c, clientv3.WithFilterPut()).Close()
	before := len(tap.WatchCreates())
	c.ask(t.Context(), c.watcher, true)
	created := tap.WatchCreates()
	require.Greater(t, len(created), before)
	for _, r := range created {
		require.Equal(t, "a", string(r.Key))
		require.Equal(t, []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}, r.Filters)
	}
}
