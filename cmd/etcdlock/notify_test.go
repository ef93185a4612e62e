package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a command waits for is said when it changes, and not each time somebody looks.
func TestNotify(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var state, looks atomic.Int64
		said := make(chan string, 100)
		logged := make(chan struct{}, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			notify(ctx, logged,
				func(context.Context) (obstacle, string) {
					looks.Add(1)
					return obstacle(state.Load()), fmt.Sprint("state ", state.Load())
				},
				func(what string) { said <- fmt.Sprint(time.Since(began), " ", what) })
		}()
		set := func(o obstacle) { state.Store(int64(o)) }
		log := func() { logged <- struct{}{}; synctest.Wait() }
		pass := func(d time.Duration) {
			timer := time.NewTimer(d)
			<-timer.C
			synctest.Wait()
		}
		log()
		require.Zero(t, looks.Load(), "a short wait is not worth a look")
		pass(tellAfter)
		pass(tellAfter)
		require.EqualValues(t, 2, looks.Load())
		require.Empty(t, said, "it is about to be granted")
		set(waitsForHolder)
		pass(tellAfter)
		log()
		pass(time.Hour)
		require.EqualValues(t, 4, looks.Load(), "no polling")
		require.Len(t, said, 1)
		set(waitsUnsaid)
		log()
		set(waitsForHolder)
		pass(tellAfter)
		require.Len(t, said, 1, "it was about to be granted, and was not")
		set(waitsForEtcd)
		log()
		log()
		pass(3 * tellAgain)
		require.Len(t, said, 2, "once for each outage")
		set(waitsForPlace)
		pass(tellAgain)
		require.Len(t, said, 2, "between two sessions")
		set(waitsForHolder)
		pass(tellAgain)
		require.Len(t, said, 3)
		set(waitsForPlace)
		log()
		require.Len(t, said, 3)
		pass(2 * tellAgain)
		require.Len(t, said, 4)
		set(waitsForSpace)
		log()
		looks.Store(0)
		pass(time.Hour)
		require.Zero(t, looks.Load())
		cancel()
		<-done
		close(said)
		away := 4*tellAfter + time.Hour
		for _, want := range []string{
			fmt.Sprint(3*tellAfter, " state ", waitsForHolder),
			fmt.Sprint(away, " state ", waitsForEtcd),
			fmt.Sprint(away+5*tellAgain, " etcd answers again; state ", waitsForHolder),
			fmt.Sprint(away+6*tellAgain, " state ", waitsForPlace),
			fmt.Sprint(away+7*tellAgain, " state ", waitsForSpace),
		} {
			require.Equal(t, want, <-said)
		}
		require.Empty(t, <-said)
	})
}

// An outage is delivered when it begins and when it ends.
func TestSilences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		away := errors.New("away")
		answers := []error{nil, away, away, nil, nil, away}
		changes := silences(ctx, func(context.Context) error {
			if len(answers) == 0 {
				return away
			}
			err := answers[0]
			answers = answers[1:]
			return err
		}, func(err error) string { return "because " + err.Error() })
		began := time.Now()
		for _, want := range []struct {
			checks int
			what   string
		}{{2, "because away"}, {4, ""}, {6, "because away"}} {
			require.Equal(t, want.what, <-changes)
			require.Equal(t, time.Duration(want.checks)*checkEach, time.Since(began))
		}
		cancel()
		synctest.Wait()
	})
}
