package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
)

var errExpired, errClosed = errors.New("expired"), errors.New("closed")

// newLease is a lease whose requests go nowhere: the test sets KeepAlive.
func newLease(t *testing.T, ttl time.Duration) *Lease {
	l := New(etcd.NewClient(clientv3.NewCtxClient(t.Context())), 5, ttl, &outage.Outages{}, slog.New(slog.DiscardHandler))
	l.Expired = errExpired
	return l
}

// finish ends the use of the lease, and waits for its goroutines.
func finish(l *Lease) {
	l.End(errClosed, "test")
	l.NotFound()
	l.Wait()
}

// The first renewal is due a third of the TTL after the grant was sent, and not after its
// reply arrived.
func TestLease_RenewsSoonAfterASlowGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 9*time.Second)
		l.KeepAlive = func(context.Context) (int64, error) {
			<-time.After(time.Second)
			return 9, nil
		}
		l.Record(time.Now().Add(-7*time.Second), 9)
		l.Run()
		<-time.After(time.Minute)
		require.NoError(t, l.Err())
		finish(l)
	})
}

// A process whose clock runs at nine tenths of etcd's speed still ends its session before etcd lets the lease expire,
// whatever the TTL.
func TestFault_J17_SlowClock(t *testing.T) {
	sent := time.Now()
	for _, seconds := range []int64{1, 2, 3, 10, 30, 60, 3600} {
		shown := trustedUntil(sent, seconds).Sub(sent)
		require.Equal(t, time.Duration(seconds)*time.Second, shown*10/9, "TTL %d s: etcd's clock at the deadline", seconds)
	}
}

// A reply that arrives when the lease may have expired does not start a session.
func TestLease_AdoptedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 0)
		l.KeepAlive = func(context.Context) (int64, error) {
			<-time.After(4 * time.Second)
			return 4, nil
		}
		require.ErrorIs(t, l.Adopt(t.Context()), errTooLate)
		require.ErrorIs(t, l.Err(), errExpired)
	})
}

// The session renews every third of the TTL, and hedges a renewal without a reply. A member
// that hangs does not harm the session. An outage that lasts too long ends it at its deadline.
func TestLease_Renewals(t *testing.T) {
	play := func(t *testing.T, keepAlive func(ctx context.Context, n int) (int64, error)) (*Lease, *int) {
		n := new(int)
		var mu sync.Mutex
		l := newLease(t, 9*time.Second)
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			mu.Lock()
			*n++
			i := *n
			mu.Unlock()
			return keepAlive(ctx, i)
		}
		l.Record(time.Now(), 9)
		l.Run()
		return l, n
	}
	hang := func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
	for name, tc := range map[string]struct {
		keepAlive func(ctx context.Context, n int) (int64, error)
		lives     bool
		requests  int // in a minute
	}{
		"all well": {func(context.Context, int) (int64, error) { return 9, nil }, true, 20},
		"every second hangs": {func(ctx context.Context, n int) (int64, error) {
			return map[bool]int64{true: 9}[true], hangIf(ctx, n%2 == 1)
		}, true, 26},
		"slow replies":        {func(ctx context.Context, n int) (int64, error) { <-time.After(4 * time.Second); return 9, nil }, true, 46},
		"fails fast for 5 s":  {func(ctx context.Context, n int) (int64, error) { return 9, failIf(n > 1 && n < 11) }, true, 0},
		"all hang":            {func(ctx context.Context, _ int) (int64, error) { return hang(ctx) }, false, 17},
		"lease gone":          {func(ctx context.Context, n int) (int64, error) { return int64(9 - 9*(n/3)), nil }, false, 3},
		"refused to the last": {func(ctx context.Context, n int) (int64, error) { return 0, errors.New("x") }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, n := play(t, tc.keepAlive)
				<-time.After(time.Minute)
				synctest.Wait()
				require.Equal(t, tc.lives, l.Err() == nil)
				if tc.requests > 0 {
					require.InDelta(t, tc.requests, *n, 1)
				}
				finish(l)
			})
		})
	}
}

func hangIf(ctx context.Context, hangs bool) error {
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// Renewals get no answer at all. The session must not give up early: etcd's own client gives up a lease
// of a minute after 5 s.
func TestFault_F2_NotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, time.Minute)
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		l.Record(time.Now(), 60)
		l.Run()
		<-time.After(53 * time.Second)
		require.NoError(t, l.Err())
		<-time.After(2 * time.Second)
		require.ErrorIs(t, l.Err(), errExpired)
		l.NotFound()
		l.Wait()
	})
}

// A member hangs with its connections open. The client is busy, so its balancer spreads the
// requests over all members, and a renewal may meet the hanging member several times in a
// row. An earlier version made only 4 attempts; one hanging member of three then ended a
// busy client's session within minutes.
func TestFault_F12_RenewalsMeetTheMemberThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 10*time.Second)
		var attempts, answered atomic.Int32
		l.KeepAlive = func(ctx context.Context) (int64, error) {
			if attempts.Add(1)%12 == 0 {
				answered.Add(1)
				return 10, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		l.Record(time.Now(), 10)
		l.Run()
		<-time.After(1000 * time.Second)
		synctest.Wait()
		require.NoError(t, l.Err())
		require.Greater(t, answered.Load(), int32(100))
		l.End(errClosed, "the test is over")
		l.NotFound()
		l.Wait()
	})
}

func failIf(fails bool) error {
	if fails {
		return errors.New("away")
	}
	return nil
}
