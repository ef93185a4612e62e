//go:build !hedgesoon

package etcd

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// The tests of this file are about the times of hedge_late.go.

// A call says when one of the calls of Do answers, and what.
type call struct {
	after time.Duration // longer than any limit: not before it is cancelled
	err   error
}

func TestDo_Hedged(t *testing.T) {
	const never = time.Hour
	gone := errors.New("no leader")
	for name, tc := range map[string]struct {
		calls     []call // those after the last are as the last
		pace      time.Duration
		took      time.Duration
		made      int
		from      int // whose answer it is
		ambiguous bool
		err       error
	}{
		"the ordinary case":                 {calls: []call{{after: 0}}, made: 1},
		"slow, but in time":                 {calls: []call{{after: 299 * time.Millisecond}}, took: 299 * time.Millisecond, made: 1},
		"the first hangs":                   {calls: []call{{after: never}, {after: 0}}, took: 300 * time.Millisecond, made: 2, from: 1, ambiguous: true},
		"the first is late, and first":      {calls: []call{{after: 400 * time.Millisecond}, {after: never}}, took: 400 * time.Millisecond, made: 2, ambiguous: true},
		"two hang":                          {calls: []call{{after: never}, {after: never}, {after: 0}}, took: 600 * time.Millisecond, made: 3, from: 2, ambiguous: true},
		"one hangs, the next has no leader": {calls: []call{{after: never}, {err: gone}, {after: 0}}, took: 1000 * time.Millisecond, made: 3, from: 2, ambiguous: true},
		"late without a leader, then not":   {calls: []call{{after: 350 * time.Millisecond, err: gone}, {after: 100 * time.Millisecond}}, took: 400 * time.Millisecond, made: 2, from: 1, ambiguous: true},
		"no leader at first":                {calls: []call{{err: gone}, {after: 0}}, took: 10 * time.Millisecond, made: 2, from: 1, ambiguous: true},
		"refused":                           {calls: []call{{err: rpctypes.ErrPermissionDenied}}, made: 1, err: rpctypes.ErrPermissionDenied},
		"hangs, and refused":                {calls: []call{{after: never}, {err: rpctypes.ErrPermissionDenied}}, took: 300 * time.Millisecond, made: 2, from: 1, ambiguous: true, err: rpctypes.ErrPermissionDenied},
		"all hang for the first attempt":    {calls: []call{{after: never}, {after: never}, {after: never}, {after: 0}}, took: 1000 * time.Millisecond, made: 4, from: 3, ambiguous: true},
		"etcd is far away":                  {calls: []call{{after: 790 * time.Millisecond}}, pace: 200 * time.Millisecond, took: 790 * time.Millisecond, made: 1},
		"etcd is very far away":             {calls: []call{{after: never}, {after: 1200 * time.Millisecond}}, pace: 400 * time.Millisecond, took: 2800 * time.Millisecond, made: 2, from: 1, ambiguous: true},
	} {
		onLanes(t, name, func(t *testing.T, c *Client, hedged Policy) {
			c.pace.Store(int64(tc.pace))
			began := time.Now()
			numbers := make(chan int, 100)
			for i := range cap(numbers) {
				numbers <- i
			}
			running := make(chan struct{}, 100)
			from, ambiguous, err := Do(context.Background(), c, hedged, func(ctx context.Context) (int, error) {
				running <- struct{}{}
				defer func() { <-running }()
				n := <-numbers
				call := tc.calls[min(n, len(tc.calls)-1)]
				if err := Sleep(ctx, call.after); err != nil {
					return n, err
				}
				return n, call.err
			})
			require.Empty(t, running, "a call goes on")
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.made, cap(numbers)-len(numbers))
			require.Equal(t, tc.from, from)
			require.Equal(t, tc.ambiguous, ambiguous)
			// The pauses between attempts are jittered.
			require.InDelta(t, tc.took, time.Since(began), float64(10*time.Millisecond))
		})
	}
}

// What is late depends on how long answers took lately, not on what was waited
// for in vain.
func TestDo_Pace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient()
		answer := func(after time.Duration, hangs bool) {
			first := make(chan struct{}, 1)
			if hangs {
				first <- struct{}{}
			}
			_, _, err := Do(context.Background(), c, hedged, func(ctx context.Context) (int, error) {
				select {
				case <-first:
					return 0, Sleep(ctx, time.Hour)
				default:
					return 0, Sleep(ctx, after)
				}
			})
			require.NoError(t, err)
		}
		require.Equal(t, HedgeMin, c.pace.late())
		for range 20 {
			answer(200*time.Millisecond, false)
		}
		require.InDelta(t, 800*time.Millisecond, c.pace.late(), float64(5*time.Millisecond))
		for range 20 {
			answer(time.Millisecond, true)
		}
		require.Equal(t, HedgeMin, c.pace.late())
	})
}

// Requests to an etcd that answers late are not repeated, which would make it later still. Once it is quick again, a
// member that hangs does not hold up a request for longer than before.
func TestDo_AllAnswersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient()
		var calls atomic.Int64
		after := func(d time.Duration) {
			_, _, err := Do(context.Background(), c, hedged, func(ctx context.Context) (int, error) {
				calls.Add(1)
				return 0, Sleep(ctx, d)
			})
			require.NoError(t, err)
		}
		for range 10 {
			after(3 * AttemptMin)
		}
		calls.Store(0)
		for range 10 {
			after(3 * AttemptMin)
		}
		require.EqualValues(t, 10, calls.Load())
		for range 20 {
			after(time.Millisecond)
		}
		require.Equal(t, AttemptMin, c.patience())
	})
}

// A reply that says that there was nothing to change waits for the calls beside it, and none is added: the first one
// that etcd has carried out says whether there was. Only a call without an answer leaves that open.
func TestDoFirst(t *testing.T) {
	type call struct {
		after time.Duration
		did   bool
		err   error
	}
	const never, ms = time.Hour, time.Millisecond
	gone := errors.New("gone")
	for name, tc := range map[string]struct {
		calls     []call
		made      int
		did       bool
		ambiguous bool
		took      time.Duration
	}{
		"at once":                    {calls: []call{{}}, made: 1},
		"the first one":              {calls: []call{{after: 350 * ms, did: true}, {after: 350 * ms}}, made: 2, did: true, ambiguous: true, took: 350 * ms},
		"the second one":             {calls: []call{{after: 350 * ms}, {after: 350 * ms, did: true}}, made: 2, did: true, took: 650 * ms},
		"none":                       {calls: []call{{after: 350 * ms}, {after: 350 * ms}}, made: 2, took: 650 * ms},
		"none, the second at first":  {calls: []call{{after: 500 * ms}, {after: 100 * ms}}, made: 2, took: 500 * ms},
		"none of three":              {calls: []call{{after: 700 * ms}, {after: 600 * ms}, {after: 50 * ms}}, made: 3, took: 900 * ms},
		"the other one hangs":        {calls: []call{{after: 350 * ms}, {after: never}}, made: 2, ambiguous: true, took: 1000 * ms},
		"the first one hangs":        {calls: []call{{after: never}, {after: 50 * ms}}, made: 2, ambiguous: true, took: 1000 * ms},
		"the other one's is lost":    {calls: []call{{after: 350 * ms}, {after: 150 * ms, err: gone}}, made: 2, ambiguous: true, took: 450 * ms},
		"refused":                    {calls: []call{{after: 350 * ms, err: rpctypes.ErrPermissionDenied}, {after: never}}, made: 2, ambiguous: true, took: 350 * ms},
		"a lost reply, then nothing": {calls: []call{{err: gone}, {}}, made: 2, ambiguous: true, took: 10 * ms},
	} {
		onLanes(t, name, func(t *testing.T, c *Client, hedged Policy) {
			began := time.Now()
			var made atomic.Int32
			did, ambiguous, _ := DoFirst(context.Background(), c, hedged, Func[bool](func(ctx context.Context) (bool, error) {
				call := tc.calls[made.Add(1)-1]
				if err := Sleep(ctx, call.after); err != nil {
					return false, err
				}
				return call.did, call.err
			}), func(did bool) bool { return did })
			require.EqualValues(t, tc.made, made.Load())
			require.Equal(t, tc.did, did)
			require.Equal(t, tc.ambiguous, ambiguous)
			require.InDelta(t, tc.took, time.Since(began), float64(10*ms))
		})
	}
}
