package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Two refusals in a row end the use of the lease, soon after each other. One alone does not, however often.
func TestFault_J13_TwoRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		every int // one renewal of that many succeeds
		lives bool
	}{"every second one": {2, true}, "two of three": {3, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLease(t, 9*time.Second)
				l.InTheWay = func(context.Context) string { return "k" }
				n := 0
				l.KeepAlive = func(context.Context) (int64, error) {
					if n++; n%tc.every == 0 {
						return 9, nil
					}
					return 0, rpctypes.ErrPermissionDenied
				}
				began := time.Now()
				l.Record(began, 9)
				l.Run()
				<-time.After(time.Minute)
				synctest.Wait()
				if tc.lives {
					require.NoError(t, l.Err())
				} else {
					require.ErrorIs(t, l.Err(), errExpired)
					require.ErrorContains(t, l.Err(), `no right to write the key "k"`)
					require.Equal(t, 2, n)
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
