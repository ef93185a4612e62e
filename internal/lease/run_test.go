package lease

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/test/logtest"
)

// A lease that nobody asks for anything ends soon after its client was closed, and not at its deadline.
func TestLease_ClientClosedAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := New(etcd.NewClient(clientv3.NewCtxClient(ctx)), 5, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
		l.Expired = errExpired
		reason := ""
		l.Ended = func(r string, _ error) { reason = r }
		l.Record(time.Now(), 60)
		l.Run()
		cancel()
		synctest.Wait()
		require.Equal(t, errExpired, context.Cause(l.Ctx))
		require.Equal(t, "client closed", reason)
		l.NotFound()
		l.Wait()
	})
}

// An attempt that opened no stream, since the password is being checked, is no failure: nobody is told, and the attempt
// before it goes on.
func TestLease_AttemptWithoutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		began := time.Now()
		sent, told := make(chan time.Duration, 10), make(chan error, 10)
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			sent <- time.Since(began)
			if time.Since(began) > 4*time.Second {
				return 0, etcd.ErrOpening
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		l.Renewed = func(_ time.Duration, err error) { told <- err }
		var last error
		l.Ended = func(_ string, unrenewed error) { last = unrenewed }
		l.Record(began, 12)
		l.Run()
		<-time.After(7250 * time.Millisecond)
		synctest.Wait()
		for _, at := range []time.Duration{4 * time.Second, 6 * time.Second, 7 * time.Second} {
			require.Equal(t, at, <-sent)
		}
		require.Empty(t, sent)
		for range 2 { // at 6 s and at 7 s
			require.Equal(t, errNoAnswer, <-told)
		}
		require.Empty(t, told)
		finish(l)
		require.Equal(t, errNoAnswer, last)
	})
}

// Nor is such an attempt of Refresh, which is made beside a renewal of Run.
func TestLease_RefreshWithoutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		l.Record(time.Now(), 12)
		asked := 0
		l.KeepAlive = func(context.Context) (int64, error) {
			if asked++; asked <= 3 {
				return 0, etcd.ErrOpening
			}
			return 12, nil
		}
		var told []error
		l.Renewed = func(_ time.Duration, err error) { told = append(told, err) }
		require.NoError(t, l.Refresh(t.Context()))
		require.Equal(t, 4, asked)
		require.Equal(t, []error{nil}, told)
		finish(l)
	})
}

// A renewal that fails at once is repeated soon, however long the TTL is.
func TestLease_FailureIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, time.Minute)
		began := time.Now()
		n := 0
		l.KeepAlive = func(context.Context) (int64, error) {
			n++
			return 60, failIf(n == 1)
		}
		l.Record(began, 60)
		l.Run()
		<-time.After(20*time.Second + etcd.RetryMax)
		synctest.Wait()
		require.Equal(t, 2, n)
		finish(l)
	})
}

// That the lease has ended is not taken for the failure of a renewal, if Run hears of both at once.
func TestLease_EndIsNoFailure(t *testing.T) {
	for range 20 { // of two things that it hears of, Run takes one by chance
		synctest.Test(t, func(t *testing.T) {
			l := newLease(t, 12*time.Second)
			answer := make(chan struct{})
			l.KeepAlive = func(context.Context) (int64, error) {
				<-answer
				return 0, errors.New("unavailable")
			}
			l.Renewed = func(time.Duration, error) { // Run tells that there is no answer
				l.Renewed = nil
				l.End(errClosed, "test")
				close(answer)
				synctest.Wait()
			}
			var last error
			l.Ended = func(_ string, unrenewed error) { last = unrenewed }
			l.Record(time.Now(), 12)
			l.Run()
			<-l.Ctx.Done()
			l.NotFound()
			l.Wait()
			require.Equal(t, errNoAnswer, last)
		})
	}
}

// A lease that ends while it can't be renewed leaves the outage to those that still need etcd: it is over when they get
// on. And nobody wakes the client's connection for that lease any more.
func TestLease_EndsInAnOutage(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	defer client.Close()
	l := New(etcd.NewClient(client), 5, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
	l.Expired = errExpired
	renew := make(chan error)
	l.KeepAlive = func(context.Context) (int64, error) { return 0, <-renew }
	l.Record(time.Now().Add(-20*time.Second), 60)
	l.Run()
	require.Eventually(t, l.Client.Stalled, 10*time.Second, time.Millisecond, "there is no connection")
	renew <- errors.New("unavailable")
	require.Eventually(t, func() bool { return l.Outages.All.Why() != nil }, 10*time.Second, time.Millisecond)
	l.End(errClosed, "test")
	close(renew)
	l.NotFound()
	l.Wait()
	require.False(t, l.Client.Stalled())
	other := outage.Source{All: l.Outages.All, Client: l.Client, Life: t.Context(), Log: l.Outages.Log, Lease: l}
	o := other.Outage("")
	o.Start(t.Context(), errors.New("unavailable"))
	o.Stop(true)
	require.NoError(t, l.Outages.All.Why())
}

// After its end a lease makes no stream for watches, which nobody would close.
func TestLease_NoWatcherAfterTheEnd(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	client.Watcher = clientv3.NewWatcher(client)
	l := New(etcd.NewClient(client), 5, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
	l.Record(time.Now(), 60)
	l.Run()
	w := l.Client.EnterWatcher()
	l.Client.LeaveWatcher(w, false)
	finish(l)
	l.Client.ReplaceWatcher()
	require.Same(t, w, l.Client.EnterWatcher())
}

// Where the client has a password, the stream for the renewals is opened long before the first of them is due.
func TestLease_StreamIsOpenedAhead(t *testing.T) {
	tap := etcdtest.NewTap()
	client := etcd.NewClient(etcdtest.Start(t).Client(t, tap))
	client.Username = "somebody" // without a password, so that there is no check
	l := New(client, clientv3.NoLease, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
	l.Expired = errExpired
	require.NoError(t, l.Grant(t.Context(), time.Minute))
	l.Run()
	require.Eventually(t, func() bool { return tap.Calls("LeaseKeepAlive") == 1 }, 10*time.Second, time.Millisecond)
	<-l.Close(errClosed)
	require.NoError(t, l.CloseError())
}

// The log speaks once of a lease with many keys, and only where etcd checks rights.
func TestLease_ManyKeys(t *testing.T) {
	for user, lines := range map[string]int{"": 0, "somebody": 1} {
		log := &logtest.Log{}
		client := clientv3.NewCtxClient(t.Context())
		client.Username = user
		l := New(etcd.NewClient(client), 5, time.Minute, &outage.Outages{}, log.Logger())
		l.HasKeys(manyKeys - 1)
		require.Empty(t, log.Lines())
		l.HasKeys(manyKeys)
		l.HasKeys(manyKeys)
		require.Len(t, log.Lines(), lines)
	}
}

// A caller that gives up while etcd is asked whether the lease is refused has the refusal of its own request.
func TestLease_RefusedAndGivenUp(t *testing.T) {
	l := newLease(t, 9*time.Second)
	l.Record(time.Now(), 9)
	l.KeepAlive = func(context.Context) (int64, error) { return 0, errors.New("unavailable") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.refusedInstead(ctx, rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	finish(l)
}

// A request that etcd refuses because of another key of the lease fails with the end of the lease.
func TestLease_RefusedForAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 9*time.Second)
		l.InTheWay = func(context.Context) string { return "k" }
		l.KeepAlive = func(context.Context) (int64, error) { return 0, rpctypes.ErrPermissionDenied }
		l.Record(time.Now(), 9)
		_, err := l.refusedInstead(t.Context(), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, err, errExpired)
		require.ErrorContains(t, err, `"k"`)
		l.NotFound()
		l.Wait()
	})
}

// While the stream for the renewals lives Run does not look whether there is a connection. When that has ended it does.
func TestLease_LooksForAConnection(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	p := own.Proxy(t)
	l := New(etcd.NewClient(own.Client(t, p)), 5, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
	l.Expired = errExpired
	broken, looks := make(chan struct{}), make(chan struct{})
	l.Broken, l.Stream = broken, func() int { looks <- struct{}{}; return 1 }
	_, err := l.Client.Get(t.Context(), "x") // connects
	require.NoError(t, err)
	l.Record(time.Now(), 3600) // no renewal is due: there is no such lease
	l.Run()
	<-looks
	select {
	case <-looks:
		t.Fatal("it looks on")
	case <-time.After(3 * lookInterval):
	}
	p.Refuse()
	p.Reset()
	require.Eventually(t, func() bool { return !l.Client.Connected() }, 10*time.Second, time.Millisecond)
	broken <- struct{}{}
	require.Eventually(t, l.Client.Stalled, 10*time.Second, time.Millisecond)
	finish(l)
}

// blocking is a Watcher of the user's whose Watch does not end with its ctx.
type blocking struct {
	clientv3.Watcher
	until chan struct{}
}

func (b blocking) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	<-b.until
	return nil
}

// The end of a lease is told before anybody waits for the user's Watcher, which is foreign code.
func TestLease_EndDoesNotWaitForTheWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, watcher := clientv3.NewCtxClient(t.Context()), blocking{until: make(chan struct{})}
		client.Watcher = watcher
		l := New(etcd.NewClient(client), 5, time.Minute, &outage.Outages{}, slog.New(slog.DiscardHandler))
		l.Ended = func(string, error) { close(watcher.until) }
		_, err := l.Client.OpenWatch(t.Context(), l.Ctx, "a", "")
		require.ErrorIs(t, err, etcd.ErrWatch)
		l.Record(time.Now(), 60)
		l.Run()
		began := time.Now()
		finish(l)
		require.Equal(t, began, time.Now())
	})
}
