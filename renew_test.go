package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/harness"
)

// What hooks and log are told of renewals that are not answered.
func TestSession_RenewalsThatHang(t *testing.T) {
	const ttl = 9 * time.Second
	hangs := func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }
	for name, tc := range map[string]struct {
		keepAlive func(ctx context.Context, n int) (int64, error)
		check     func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log)
	}{
		// An alert on failures must fire before the session is lost.
		"all": {func(ctx context.Context, _ int) (int64, error) { return hangs(ctx) }, func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log) {
			require.False(t, lives)
			require.GreaterOrEqual(t, late, 3)
			require.Equal(t, asked-1, late, "each must be told once: all but the last")
			require.Equal(t, []string{harness.LogOutage, harness.LogLost}, log.Messages())
		}},
		// The others answer: metrics show it, and the log has no outage.
		"one member of two": {func(ctx context.Context, n int) (int64, error) {
			if n%2 == 1 {
				return hangs(ctx)
			}
			return int64(ttl / time.Second), nil
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log) {
			require.True(t, lives)
			require.Greater(t, late, 100)
			require.Equal(t, asked, late+renewed)
			require.Empty(t, log.Messages())
		}},
		// One that was told to be late is told again when it succeeds after all.
		"replies that are late": {func(context.Context, int) (int64, error) {
			<-time.After(ttl / 5)
			return int64(ttl / time.Second), nil
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log) {
			require.True(t, lives)
			require.Equal(t, 1, late, "later on one is answered before the next is due")
			require.InDelta(t, asked, renewed, 1, "but for the last, which is on its way")
			require.Empty(t, log.Messages())
		}},
		// A failure is told once.
		"every second fails": {func(_ context.Context, n int) (int64, error) {
			return int64(ttl / time.Second), failIf(n%2 == 1)
		}, func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log) {
			require.True(t, lives)
			require.Zero(t, late)
			require.Equal(t, asked, renewed)
		}},
		"the lease is gone": {func(context.Context, int) (int64, error) { return 0, nil }, func(t *testing.T, lives bool, asked, late, renewed int, log *harness.Log) {
			require.False(t, lives)
			require.Zero(t, late+renewed)
			require.Equal(t, []string{harness.LogLost}, log.Messages())
			require.NotContains(t, log.Lines()[0], "error=")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log harness.Log
				r := &recorder{}
				s := makeSession(clientv3.NewCtxClient(t.Context()), config{lease: 5, ttl: ttl, log: log.Logger(), hooks: []*Hooks{r.hooks()}})
				asked := make(chan int, 10_000)
				s.keepAlive = func(ctx context.Context) (int64, error) {
					asked <- 0
					return tc.keepAlive(ctx, len(asked))
				}
				s.record(time.Now(), int64(ttl/time.Second))
				s.wg.Add(1)
				go s.run()
				<-time.After(10*time.Minute + time.Second/2)
				synctest.Wait()
				lives := s.Err() == nil
				s.terminate(ErrSessionClosed, "test")
				s.endLease()
				s.wg.Wait()
				late, renewed := 0, 0
				for _, e := range r.all() {
					switch {
					case e.what == "renewed" && errors.Is(e.err, errNoAnswer):
						require.GreaterOrEqual(t, e.took, ttl/48)
						late++
					case e.what == "renewed":
						require.NotErrorIs(t, e.err, context.DeadlineExceeded)
						renewed++
					}
				}
				tc.check(t, lives, len(asked), late, renewed, &log)
			})
		})
	}
}
