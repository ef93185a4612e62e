package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

// A slow Watcher opens a watch when the test says so.
type slow struct {
	clientv3.Watcher
	asked chan *asked
}

// asked is a watch that was asked for.
type asked struct {
	ctx     context.Context
	ch      chan clientv3.WatchResponse
	answers chan struct{}
}

func (s slow) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	w := &asked{ctx, make(chan clientv3.WatchResponse, 1), make(chan struct{})}
	s.asked <- w
	<-w.answers
	return w.ch
}

func (w *asked) opens() {
	w.ch <- fakeetcd.Response(1, clientv3.WatchResponse{Created: true})
	w.fails()
}

func (w *asked) fails() {
	close(w.ch)
	close(w.answers)
	synctest.Wait()
}

// An openingScene is a Client in a bubble whose watches are given up.
type openingScene struct {
	*testing.T
	slow
	c *Client
}

// givenUp is a watch that was given up.
func (s *openingScene) givenUp() *asked {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := s.c.OpenWatch(ctx, context.Background(), "a", "")
		require.ErrorIs(s, err, ErrWatch)
	}()
	synctest.Wait()
	cancel()
	synctest.Wait()
	return s.next()
}

// next is the next watch that was asked for.
func (s *openingScene) next() *asked {
	require.Len(s, s.asked, 1)
	return <-s.asked
}

func (s *openingScene) rests() { require.Empty(s, s.asked) }

func playOpening(t *testing.T, play func(s *openingScene, closeClient func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := clientv3.NewCtxClient(ctx)
		s := &openingScene{t, slow{asked: make(chan *asked, 100)}, nil}
		client.Watcher = s.slow
		s.c = NewClient(client)
		play(s, cancel)
		cancel()
	})
}

// However many watches are given up, one stays. When it is open, one more is opened behind them, and both end.
func TestOpening_OneStays(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		first, second, third := s.givenUp(), s.givenUp(), s.givenUp()
		require.NoError(t, first.ctx.Err())
		require.Error(t, second.ctx.Err())
		require.Error(t, third.ctx.Err())
		second.fails()
		third.fails()
		s.rests()
		first.opens()
		behind := s.next()
		require.NoError(t, first.ctx.Err(), "its stream would end")
		behind.opens()
		require.Error(t, first.ctx.Err())
		require.Error(t, behind.ctx.Err())
		s.rests()
		again := s.givenUp()
		require.NoError(t, again.ctx.Err())
		again.opens()
		require.Error(t, again.ctx.Err())
		s.rests()
	})
}

// A stream on which other watches are opened is good, however long one watch has stood in line. A stream on which none is
// opened meanwhile is bad, and the next watches get another one.
func TestOpening_InLine(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		w := s.c.watcher
		w.quit = nil // as of etcd's own
		failed := make(chan error)
		open := func() *asked {
			go func() {
				_, err := s.c.OpenWatch(context.Background(), context.Background(), "a", "")
				failed <- err
			}()
			synctest.Wait()
			return s.next()
		}
		first, second := open(), open()
		<-time.After(AttemptMin / 2)
		first.opens()
		require.NoError(t, <-failed)
		require.ErrorIs(t, <-failed, ErrWatch)
		s.c.etcdAnswers()
		require.Same(t, w, s.c.watcher)
		third := open()
		require.ErrorIs(t, <-failed, ErrWatch)
		s.c.etcdAnswers()
		require.NotSame(t, w, s.c.watcher)
		second.fails()
		third.fails()
		s.next().fails() // the one behind the watch that stayed
	})
}

// A watch that has ended when nothing stays any more has another one opened behind it, which is the one that stays.
func TestOpening_EndsLast(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		first, second := s.givenUp(), s.givenUp()
		first.opens()
		require.Error(t, first.ctx.Err())
		s.rests()
		second.fails()
		behind := s.next()
		require.NoError(t, behind.ctx.Err())
		third := s.givenUp()
		require.Error(t, third.ctx.Err())
		behind.opens()
		require.Error(t, behind.ctx.Err())
		third.fails()
		s.next().fails()
		s.rests()
	})
}

// The watch that stays ends with the clientv3.Client.
func TestOpening_ClientIsClosed(t *testing.T) {
	playOpening(t, func(s *openingScene, closeClient func()) {
		w := s.givenUp()
		closeClient()
		synctest.Wait()
		require.Error(t, w.ctx.Err())
		w.fails()
		s.rests()
	})
}

// Where etcd answers late, a watch is not given up before it can be open: each that is given up costs etcd one more.
func TestOpening_AllAnswersLate(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		const late = 2 * AttemptMin
		for range 10 {
			_, _, err := Do(s.Context(), s.c, Policy{Hedge: true}, func(ctx context.Context) (int, error) { return 0, Sleep(ctx, late) })
			require.NoError(s, err)
		}
		opened := make(chan *Watch, 1)
		go func() {
			w, err := s.c.OpenWatch(s.Context(), s.Context(), "a", "")
			require.NoError(s, err)
			opened <- w
		}()
		synctest.Wait()
		first := s.next()
		require.NoError(s, Sleep(first.ctx, late-AttemptMin/2)) // the mean of a few answers
		first.opens()
		(<-opened).Close()
		s.rests()
	})
}

// A Watcher that the user has put in the place of etcd's own has no call once CloseWatcher has returned, since its Watch may
// not be safe while the clientv3.Client is closed.
func TestOpening_CloseWatcherWaits(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		first, second := s.givenUp(), s.givenUp()
		require.NoError(t, first.ctx.Err())
		closed := make(chan struct{})
		go func() {
			s.c.CloseWatcher()
			close(closed)
		}()
		synctest.Wait()
		require.Error(t, first.ctx.Err())
		first.fails()
		s.rests()
		select {
		case <-closed:
			t.Fatal("a call has not returned")
		default:
		}
		second.fails()
		<-closed
		s.rests()
		_, err := s.c.OpenWatch(context.Background(), context.Background(), "a", "")
		require.ErrorIs(t, err, ErrWatch)
		s.rests()
	})
}

// A call that does not end with its ctx does not keep CloseWatcher for long.
func TestOpening_CloseWatcherIsBounded(t *testing.T) {
	playOpening(t, func(s *openingScene, _ func()) {
		first := s.givenUp()
		began := time.Now()
		s.c.CloseWatcher()
		require.Equal(t, AttemptMin, time.Since(began))
		first.fails()
	})
}
