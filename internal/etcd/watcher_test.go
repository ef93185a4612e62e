package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
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

// A client's own watcher that is replaced is closed, and not before the last of
// its watches is.
func TestWatcherReplaced(t *testing.T) {
	t.Parallel()
	c, name := etcdtest.Start(t).Client(t), "a"
	s := NewClient(c)
	newClosing := func() closing { return closing{clientv3.NewWatcher(c), make(chan struct{})} }
	first, second, third := newClosing(), newClosing(), newClosing()
	use := func(w clientv3.Watcher) {
		own := newWatcher(c, w)
		own.own = true
		s.swapWatcher(own)
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
	require.False(t, Deleted(&wr, name, 0))
	wr = <-w.C
	require.True(t, Deleted(&wr, name, 0))
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
