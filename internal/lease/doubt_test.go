package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A machine was suspended for longer than its TTL, and its monotonic clock stood still. The first look at Valid has etcd
// asked, so Ctx does not wait for the next renewal.
func TestValid_AsksAfterASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 12*time.Second)
		l.KeepAlive = func(context.Context) (int64, error) { return 0, nil }
		l.Record(time.Now(), 12)
		l.Run()
		<-time.After(lookInterval)
		require.True(t, l.Valid())
		synctest.Wait()
		require.NoError(t, l.Ctx.Err(), "nobody has asked")
		l.WallClock = func() time.Time { return time.Now().Round(0).Add(time.Hour) }
		require.False(t, l.Valid())
		synctest.Wait()
		require.Equal(t, errExpired, context.Cause(l.Ctx))
		finish(l)
	})
}

// Whoever looks at Valid again and again makes no storm while etcd is away.
func TestValid_AsksNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, 30*time.Second)
		asked := 0
		l.KeepAlive = func(context.Context) (int64, error) {
			asked++
			return 0, failIf(true)
		}
		l.WallClock = func() time.Time { return time.Now().Round(0).Add(time.Hour) }
		l.Record(time.Now(), 30)
		l.Run()
		for range 500 {
			<-time.After(10 * time.Millisecond)
			require.False(t, l.Valid())
		}
		synctest.Wait()
		require.LessOrEqual(t, asked, 11, "once in lookInterval")
		require.GreaterOrEqual(t, asked, 5)
		finish(l)
	})
}
