package etcd

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
	"github.com/etcdlock/etcdlock/internal/test/leaks"
)

// closing is a Watcher that says when it is closed.
type closing struct {
	clientv3.Watcher
	closed chan struct{}
}

func (c closing) Close() error {
	close(c.closed)
	return c.Watcher.Close()
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// use gives the next watches w.
func (c *Client) use(w *Watcher) {
	c.mu.Lock()
	old := c.watcher
	c.swapLocked(w)
	c.mu.Unlock()
	c.closeUnused(old)
}

// A client's own watcher that is replaced is closed, and not before the last of
// its watches is.
func TestWatcherReplaced(t *testing.T) {
	t.Parallel()
	c, name := etcdtest.Start(t).Client(t), "a"
	s := NewClient(c)
	s.NeverHedge() // nor give up a watch that takes a second to open
	newClosing := func() closing { return closing{clientv3.NewWatcher(c), make(chan struct{})} }
	first, second, third := newClosing(), newClosing(), newClosing()
	use := func(w clientv3.Watcher) {
		own := newWatcher(c, w)
		own.own = true
		s.use(own)
	}
	use(first)
	w, err := s.OpenWatch(t.Context(), t.Context(), name, "")
	require.NoError(t, err)
	w2, err := s.OpenWatch(t.Context(), t.Context(), name, "")
	require.NoError(t, err)
	w2.Close()
	use(second)
	_, err = c.Put(t.Context(), name, "")
	require.NoError(t, err)
	_, err = c.Delete(t.Context(), name)
	require.NoError(t, err)
	wr := <-w.C // of the put
	require.Equal(t, clientv3.EventTypePut, wr.Events[0].Type)
	wr = <-w.C
	require.Equal(t, clientv3.EventTypeDelete, wr.Events[0].Type)
	require.Equal(t, name, string(wr.Events[0].Kv.Key))
	require.False(t, isClosed(first.closed))
	w.Close()
	require.True(t, isClosed(first.closed))

	w, err = s.OpenWatch(t.Context(), t.Context(), name, "") // it works, and has no watches then
	require.NoError(t, err)
	w.Close()
	require.False(t, isClosed(second.closed))
	use(third)
	require.True(t, isClosed(second.closed))
	s.CloseWatcher()
	require.True(t, isClosed(third.closed))
}

// The next watches get another watcher only if one could not be opened although
// etcd answers, and only from the one that is replaced.
func TestWatcherFailed(t *testing.T) {
	t.Parallel()
	s := NewClient(etcdtest.Start(t).Client(t))
	first := s.EnterWatcher()
	s.LeaveWatcher(first, false)
	s.etcdAnswers()
	require.Same(t, first, s.EnterWatcher())
	s.LeaveWatcher(first, true)
	s.etcdAnswers()
	second := s.EnterWatcher()
	require.NotSame(t, first, second)
	s.LeaveWatcher(first, true)
	s.etcdAnswers()
	require.Same(t, second, s.EnterWatcher())
}

// The clientv3.Client keeps nothing of a Client that has no watch: each look at a queue makes one, and nobody closes that.
func TestWatcher_NothingIsKept(t *testing.T) {
	plain, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer plain.Close()
	users := fakeetcd.New().Client(nil)
	for what, client := range map[string]*clientv3.Client{"etcd's own": plain, "the user's": users} {
		before := heap()
		for range 20_000 {
			NewClient(client)
		}
		require.Less(t, heap()-before, int64(1<<20), what)
	}
	c := NewClient(users)
	for range 2 {
		w, err := c.OpenWatch(t.Context(), t.Context(), "a", "")
		require.NoError(t, err)
		life := c.watcher.life
		require.NoError(t, life.Err())
		w.Close()
		require.Error(t, life.Err())
	}
	c = NewClient(users)
	c.CloseWatcher()
	_, err = c.OpenWatch(t.Context(), t.Context(), "a", "")
	require.ErrorIs(t, err, ErrWatch)
}

// heap is how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client that is closed makes no Watcher, which nobody would close: not for a watch that could not be opened, nor
// for one that is silent.
func TestWatcherNotAfterClose(t *testing.T) {
	playProbed(t, func(c probed) {
		_, w, ended := c.watch(true)
		w.quit = nil // as of etcd's own
		c.LeaveWatcher(c.EnterWatcher(), true)
		c.CloseWatcher()
		c.etcdAnswers()
		require.Same(t, w, c.watcher)
		c.LeaveWatcher(c.EnterWatcher(), true)
		c.etcdAnswers()
		require.Same(t, w, c.watcher)
		c.ReplaceWatcher()
		require.Same(t, w, c.watcher)
		require.False(t, isClosed(ended))
	})
}

// A member opens watches on a stream of its own.
type member struct {
	*fakeetcd.Server
	asked int  // how often it was asked whether it lives
	hangs bool // it says nothing more, and takes nothing
}

func (m *member) RequestProgress(ctx context.Context) error {
	m.asked++
	if m.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return m.Server.RequestProgress(ctx)
}

// A probed is a Client in a bubble, each of whose Watchers is on a member of its own.
type probed struct {
	*testing.T
	*Client
	life context.Context // of the watches
	end  context.CancelFunc
}

// watch gives the next watches another Watcher and opens a watch by it. The watch is closed when it ends.
func (c probed) watch(hangs bool) (m *member, w *Watcher, ended <-chan struct{}) {
	m = &member{Server: fakeetcd.New(), hangs: hangs}
	w = newWatcher(c.Client.Client, m)
	c.use(w)
	watch, err := c.OpenWatch(c.life, c.life, "a", "")
	require.NoError(c, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range watch.C {
			watch.Heard(&clientv3.WatchResponse{})
		}
		watch.Close()
	}()
	return m, w, done
}

// probe probes as a session does that has watches.
func (c probed) probe(d time.Duration) {
	for start := time.Now(); time.Since(start) < d && c.Watches(); <-time.After(AttemptMin / 2) {
		require.False(c, c.Probe(c.life))
		synctest.Wait()
	}
}

func playProbed(t *testing.T, act func(c probed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := probed{T: t, Client: NewClient(fakeetcd.New().Client(nil))}
		c.life, c.end = context.WithCancel(context.Background())
		defer c.end()
		act(c)
		c.end()
		synctest.Wait()
		require.False(t, c.Watches())
	})
}

// A watch on a member that hangs ends soon, also if the next watches have got another Watcher before the member was
// found to be silent.
func TestProbe_ReplacedWatcher(t *testing.T) {
	playProbed(t, func(c probed) {
		_, _, first := c.watch(true)
		require.False(t, c.Probe(c.life))
		_, _, second := c.watch(false)
		c.probe(3 * AttemptMin)
		require.True(t, isClosed(first), "the watch stays silent")
		require.False(t, isClosed(second))
	})
}

// That a watch was opened is a sign that its stream lives: watches that are closed soon may hear nothing else.
func TestProbe_Opened(t *testing.T) {
	playProbed(t, func(c probed) {
		m, _, ended := c.watch(true)
		for range 10 {
			require.False(t, c.Probe(c.life))
			<-time.After(2 * AttemptMin)
			w, err := c.OpenWatch(c.life, c.life, "a", "")
			require.NoError(t, err)
			w.Close()
		}
		require.Zero(t, m.asked)
		require.False(t, isClosed(ended))
	})
}

// A mute opens watches and answers no question, as a proxy.
type mute struct {
	*fakeetcd.Server
	opened int
}

func (m *mute) RequestProgress(context.Context) error { return nil }

func (m *mute) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	m.opened++
	return m.Server.Watch(ctx, key, opts...)
}

// A stream that has never answered is asked by one more watch whether it lives, but not before an answer is late.
func TestProbe_OpensNothingEarly(t *testing.T) {
	for _, c := range []struct{ answer, late time.Duration }{
		{HedgeMin / 30, HedgeMin},
		{AttemptMin / 2, hedgeTimes * AttemptMin / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &mute{Server: fakeetcd.New()}
			client := NewClient(fakeetcd.New().Client(nil))
			w := newWatcher(client.Client, m)
			w.quit = nil // as of etcd's own
			client.use(w)
			for range 100 {
				client.pace.took(c.answer)
			}
			watch, err := client.OpenWatch(t.Context(), t.Context(), "a", "")
			require.NoError(t, err)
			defer watch.Close()
			require.False(t, client.Probe(t.Context())) // takes note of what was heard until now
			require.False(t, client.Probe(t.Context()))
			<-time.After(c.late - time.Millisecond)
			require.False(t, client.Probe(t.Context()))
			require.Equal(t, 1, m.opened)
			<-time.After(2 * time.Millisecond)
			require.False(t, client.Probe(t.Context()))
			require.Equal(t, 2, m.opened)
		})
	}
}

// If there is no watch but one whose Watcher was replaced, that is probed all the same.
func TestProbe_OnlyReplaced(t *testing.T) {
	playProbed(t, func(c probed) {
		_, _, ended := c.watch(true)
		c.use(newWatcher(c.Client.Client, fakeetcd.New()))
		require.True(t, c.Watches())
		c.probe(3 * AttemptMin)
		require.True(t, isClosed(ended), "the watch stays silent")
	})
}

// A Watcher that lives keeps its watches when it is replaced, and is asked once a second like any other. A member that
// hangs is not asked any more once its watches are to end: the client would open another stream for that.
func TestProbe_EachWatcher(t *testing.T) {
	playProbed(t, func(c probed) {
		const seconds = 20
		var members [3]*member
		var ended [3]<-chan struct{}
		for i := range members {
			members[i], _, ended[i] = c.watch(false)
		}
		c.probe(seconds * time.Second)
		for i, m := range members {
			require.False(t, isClosed(ended[i]))
			require.InDelta(t, seconds, m.asked, 1)
		}
		members[1].hangs = true
		c.probe(3 * AttemptMin)
		for i := range members {
			require.Equal(t, i == 1, isClosed(ended[i]))
		}
	})
}

// Members that hang together are found together.
func TestProbe_SeveralHang(t *testing.T) {
	playProbed(t, func(c probed) {
		_, _, first := c.watch(true)
		_, _, second := c.watch(true)
		_, _, third := c.watch(false)
		c.probe(5 * AttemptMin / 2) // one after the other would take longer
		require.True(t, isClosed(first))
		require.True(t, isClosed(second))
		require.False(t, isClosed(third))
	})
}

// A watch of a Watcher that has ended may take its time to be closed. Nobody is asked for it: the client would open
// another stream for that, and keep it.
func TestProbe_EndedWatcher(t *testing.T) {
	playProbed(t, func(c probed) {
		m, w, _ := c.watch(true)
		c.use(newWatcher(c.Client.Client, fakeetcd.New()))
		require.Same(t, w, c.watcher.former[0])
		w.watches++ // that is closed late
		w.open++
		c.probe(3 * AttemptMin)
		w.heard.Store(true) // of what came before it ended
		asked := m.asked
		c.probe(3 * AttemptMin)
		require.Equal(t, asked, m.asked)
		c.LeaveWatcher(w, false)
		require.Empty(t, c.watcher.former)
	})
}

// A closed Client leaves no stream behind on the clientv3.Client, which its user may go on using, though it was probed
// while its only watch was being opened, and that failed: the stream would be opened to ask, and nobody would end it.
func TestProbe_OnlyBeingOpened(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	_, err := client.Get(t.Context(), "a") // it is connected
	require.NoError(t, err)
	before := goleak.IgnoreCurrent()
	c := NewClient(client)
	c.NeverHedge() // nor give up a watch that takes a second to open
	fails := failing{client.Watcher, make(chan struct{}), make(chan clientv3.WatchResponse)}
	c.UseWatcher(fails)
	former, err := c.OpenWatch(t.Context(), t.Context(), "a", "")
	require.NoError(t, err)
	former.Close()
	c.watcher.heard.Store(false)
	opened := make(chan error)
	go func() {
		_, err := c.OpenWatch(t.Context(), t.Context(), "b", "")
		opened <- err
	}()
	<-fails.begun
	require.True(t, c.Watches())
	c.Probe(t.Context())
	close(fails.ch)
	require.ErrorIs(t, <-opened, ErrWatch)
	c.CloseWatcher()
	require.NoError(t, leaks.Find(time.Minute, before))
}

// failing is a Watcher that can't open a watch on b: that fails when ch is closed.
type failing struct {
	clientv3.Watcher
	begun chan struct{}
	ch    chan clientv3.WatchResponse
}

func (f failing) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if key != "b" {
		return f.Watcher.Watch(ctx, key, opts...)
	}
	close(f.begun)
	return f.ch
}

// A Watcher that is silent, and by which a watch could not be opened either, is replaced once: the new one may have
// watches already.
func TestProbe_SilentAndSuspect(t *testing.T) {
	playProbed(t, func(c probed) {
		_, w, ended := c.watch(true)
		w.quit = nil // as of etcd's own
		c.LeaveWatcher(c.EnterWatcher(), true)
		c.probe(3 * AttemptMin)
		require.True(t, isClosed(ended))
		next := c.watcher
		require.NotSame(t, w, next)
		c.etcdAnswers()
		require.Same(t, next, c.watcher)
	})
}
