package etcd

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A looking ctx looks, when it is asked whether it has ended, whether its caller holds the mutex of the calls.
type looking struct {
	context.Context
	calls *calls
	taken bool
}

func (l *looking) Err() error {
	for range 100_000 { // others hold it for a moment
		if l.calls.mu.TryLock() {
			l.calls.mu.Unlock()
			return l.Context.Err()
		}
		runtime.Gosched()
	}
	l.taken = true
	return l.Context.Err()
}

// A ctx is the caller's own code, which may take its time: while it is asked, no other call is held up.
func TestDrain_ForeignCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, open := newTestClient(), make(chan struct{})
		close(open)
		for _, leaves := range []bool{true, false} {
			resume := c.Drain(time.Second, open, nil)
			ctx, cancel := context.WithCancel(t.Context())
			own, result := &looking{Context: ctx, calls: &c.calls}, make(chan error)
			go func() {
				_, _, err := Do(own, c, Policy{}, func(context.Context) (int, error) { return 0, nil })
				result <- err
			}()
			synctest.Wait()
			if leaves {
				cancel()
				require.ErrorIs(t, <-result, context.Canceled)
				resume()
			} else {
				resume()
				require.NoError(t, <-result)
			}
			require.False(t, own.taken)
			cancel()
		}
	})
}
