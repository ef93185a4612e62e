package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/outage"
	"github.com/etcdlock/etcdlock/internal/test/fakeetcd"
)

const checkedTTL = 24 * time.Second

// checked is a lease that is renewed, and its checks, in a bubble. Each renewal shows etcd's revision.
type checked struct {
	*testing.T
	*Lease
	f      *fakeetcd.Server
	stream atomic.Int64
	none   atomic.Bool
	again  atomic.Bool                               // a check asks for another one
	began  atomic.Int64                              // checks
	during atomic.Pointer[func(ctx context.Context)] // the next check
}

func check(t *testing.T, adopted bool, act func(c *checked)) {
	synctest.Test(t, func(t *testing.T) {
		c := &checked{T: t, f: fakeetcd.New()}
		c.stream.Store(1)
		c.Lease = New(etcd.NewClient(c.f.Client(nil)), 5, checkedTTL, &outage.Outages{}, slog.New(slog.DiscardHandler))
		c.Adopted, c.Expired = adopted, errExpired
		c.KeepAlive = func(ctx context.Context) (int64, error) {
			_, err := c.Client.Get(ctx, "x")
			return int64(checkedTTL / time.Second), err
		}
		c.Stream = func() int { return int(c.stream.Load()) }
		c.Record(time.Now(), int64(checkedTTL/time.Second))
		c.StartChecks(c.none.Load, func(ctx context.Context) bool {
			c.began.Add(1)
			if f := c.during.Swap(nil); f != nil {
				(*f)(ctx)
			}
			return !c.again.Load()
		})
		c.Lease.Run()
		act(c)
		finish(c.Lease)
	})
}

// within is how many checks begin in that time.
func (c *checked) within(d time.Duration) int {
	before := c.began.Load()
	<-time.After(d)
	synctest.Wait()
	return int(c.began.Load() - before)
}

const most = checkedTTL / 8 * 5 // between two checks

// While etcd does not change, there is the first check, and then one for some TTLs.
func TestChecks_EtcdAtRest(t *testing.T) {
	check(t, false, func(c *checked) {
		require.Equal(t, 1, c.within(most))
		require.Zero(t, c.within((trustedFor-2)*checkedTTL))
		require.Equal(t, 1, c.within(5*checkedTTL/2))
	})
}

// Where etcd changes, also once and a while after the last check, the next check is as soon as if there were one in each half TTL.
func TestChecks_EtcdChanges(t *testing.T) {
	for range 20 { // the time of a check is jittered
		check(t, false, func(c *checked) {
			require.Equal(t, 1, c.within(most))
			for wait := time.Duration(0); wait < checkedTTL; wait += checkedTTL / 16 {
				<-time.After(wait)
				synctest.Wait()
				c.f.Write("x")
				require.Equal(t, 1, c.within(most), "after %v", wait)
			}
		})
	}
}

// A session without keys is not told of changes: none is its own.
func TestChecks_NoKeys(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		check(t, adopted, func(c *checked) {
			c.none.Store(true)
			require.Equal(t, 1, c.within(most))
			c.f.Write("x")
			n := c.within((trustedFor - 2) * checkedTTL)
			require.Equal(t, adopted, n == 1, "of an adopted lease others may have keys")
			c.none.Store(false)
			c.f.Write("x")
			require.Equal(t, 1, c.within(most))
		})
	}
}

// Etcd is known to be full, and refuses a put. The alarm was lifted meanwhile, and etcd is full again by that put, which it has
// carried out. The session has no keys that it knows of, and looks for this one as soon as for any.
func TestChecks_RefusedAndCarriedOut(t *testing.T) {
	check(t, false, func(c *checked) {
		c.none.Store(true)
		put := func() {
			refused := func() (bool, error) { return false, rpctypes.ErrNoSpace }
			ambiguous, err := c.Put(c.Context(), clientv3.OpPut("a/5", ""), refused)
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
			require.False(t, ambiguous)
		}
		put() // which was not carried out
		require.Equal(t, 1, c.within(most))
		c.f.Write("x")
		require.Zero(t, c.within(most))
		c.f.Write("a/5")
		put()
		require.Equal(t, 1, c.within(most))
	})
}

// A check is made where another process of etcd may answer.
func TestChecks_AnotherStream(t *testing.T) {
	check(t, false, func(c *checked) {
		c.none.Store(true)
		require.Equal(t, 1, c.within(most))
		require.Zero(t, c.within(checkedTTL))
		c.stream.Store(2)
		require.Equal(t, 1, c.within(checkedTTL/3))
		require.Zero(t, c.within(checkedTTL))
		c.stream.Store(0) // behind a proxy
		n := c.within(4 * checkedTTL)
		require.GreaterOrEqual(t, n, 6)
		require.LessOrEqual(t, n, 11)
	})
}

// A check that has failed, or that has found something, is repeated.
func TestChecks_Again(t *testing.T) {
	check(t, false, func(c *checked) {
		c.again.Store(true)
		n := c.within(4 * checkedTTL)
		require.GreaterOrEqual(t, n, 6)
		require.LessOrEqual(t, n, 11)
		c.again.Store(false)
		require.LessOrEqual(t, c.within(2*checkedTTL), 1)
	})
}

// What etcd shows while a check is made may be later than what the check has found.
func TestChecks_ChangeMeanwhile(t *testing.T) {
	check(t, false, func(c *checked) {
		change := func(ctx context.Context) {
			c.f.Write("x")
			_, err := c.Client.Get(ctx, "x")
			require.NoError(t, err)
		}
		c.during.Store(&change)
		require.Equal(t, 1, c.within(most))
		require.Equal(t, 1, c.within(most))
		require.Zero(t, c.within(checkedTTL))
	})
}
