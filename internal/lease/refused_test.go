package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
				err := l.refusedInstead(t.Context(), rpctypes.ErrPermissionDenied) // as a Lock that comes in between
				require.Greater(t, n, 1)
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

// That a request is refused for its own sake ends nothing.
func TestLease_RefusedForItsOwnSake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 9*time.Second)
		l.KeepAlive = func(context.Context) (int64, error) { return 9, nil }
		l.Record(time.Now(), 9)
		require.ErrorIs(t, l.refusedInstead(t.Context(), rpctypes.ErrPermissionDenied), rpctypes.ErrPermissionDenied)
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
