package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd that refuses all renewals for a second ends the use of the lease, long before the deadline. Refusals that are over
// sooner do not, however many: a role may be changed in two steps.
func TestFault_J13_RefusedForAWhile(t *testing.T) {
	for name, tc := range map[string]struct {
		refuses func(n int, since time.Duration) bool
		lives   bool
	}{
		"always":          {func(int, time.Duration) bool { return true }, false},
		"for a moment":    {func(_ int, since time.Duration) bool { return since < refusedFor }, true},
		"each second one": {func(n int, _ time.Duration) bool { return n%2 == 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLease(t, 9*time.Second)
				l.InTheWay = func(context.Context) string { return "k" }
				began, n := time.Now(), 0
				l.KeepAlive = func(context.Context) (int64, error) {
					if n++; tc.refuses(n, time.Since(began)) {
						return 0, rpctypes.ErrPermissionDenied
					}
					return 9, nil
				}
				l.Record(began, 9)
				passed, err := l.refusedInstead(t.Context(), rpctypes.ErrPermissionDenied) // as a Lock that comes in between
				require.Greater(t, n, 1)
				require.Equal(t, tc.lives, passed)
				if tc.lives {
					require.Equal(t, rpctypes.ErrPermissionDenied, err)
					l.Run()
					<-time.After(time.Minute)
					require.NoError(t, l.Err())
				} else {
					require.ErrorIs(t, err, errExpired)
					require.ErrorContains(t, err, `no right to write the key "k"`)
					require.Less(t, time.Since(began), 2*time.Second)
				}
				finish(l)
			})
		})
	}
}

// A request that was refused while etcd refused the lease is sent again, unless ctx ends before etcd takes the lease again.
func TestLease_RefusedForAMoment(t *testing.T) {
	for name, tc := range map[string]struct {
		patience    time.Duration
		sent, doubt int // how often, and which is ambiguous
	}{"the first": {time.Minute, 2, 1}, "the second": {time.Minute, 2, 2}, "gives up": {refusedFor / 4, 1, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLease(t, 9*time.Second)
				l.InTheWay = func(context.Context) string { return "k" }
				began, sent := time.Now(), 0
				refused := func() error {
					if time.Since(began) < refusedFor/2 {
						return rpctypes.ErrPermissionDenied
					}
					return nil
				}
				l.KeepAlive = func(context.Context) (int64, error) { return 9, refused() }
				l.Record(began, 9)
				ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
				defer cancel()
				ambiguous, err := l.Put(ctx, clientv3.OpPut("a", ""), func() (ambiguous bool, err error) {
					sent++
					return sent == tc.doubt, refused()
				})
				require.True(t, ambiguous)
				require.Equal(t, tc.sent, sent)
				if sent == 1 {
					require.Equal(t, rpctypes.ErrPermissionDenied, err)
				} else {
					require.NoError(t, err)
				}
				finish(l)
			})
		})
	}
}

// That a request is refused for its own sake ends nothing.
func TestLease_RefusedForItsOwnSake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 9*time.Second)
		l.KeepAlive = func(context.Context) (int64, error) { return 9, nil }
		l.Record(time.Now(), 9)
		passed, err := l.refusedInstead(t.Context(), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.False(t, passed)
		require.NoError(t, l.Err())
		finish(l)
	})
}

// An Adopt whose ctx ends while etcd refuses the lease leaves nothing at work.
func TestLease_RefusedWhileAdopting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 9*time.Second)
		l.InTheWay = func(context.Context) string { return "k" }
		l.KeepAlive = func(context.Context) (int64, error) { return 0, rpctypes.ErrPermissionDenied }
		ctx, cancel := context.WithTimeout(t.Context(), refusedFor/2)
		defer cancel()
		require.ErrorContains(t, l.Adopt(ctx), `no right to write the key "k"`)
		require.Error(t, l.Ctx.Err())
		require.Error(t, l.Gone.Err())
	})
}
