package measure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// contend starts one goroutine for each locker, which takes and releases the lock
// repeatedly during a warm-up, and then for d. It calls granted after each grant and
// leaving before each release, both inside the section; warm says whether the warm-up
// is over.
func contend(ctx context.Context, lockers []peer.Locker, d time.Duration, granted func(i int, warm bool), leaving func(i int)) (*section, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sec section
	var warm, over atomic.Bool
	var wg sync.WaitGroup
	var failed sync.Once
	var err error // the first one
	fail := func(e error) {
		if !over.Load() {
			failed.Do(func() { err = e })
			cancel()
		}
	}
	for i, l := range lockers {
		wg.Go(func() {
			for {
				if err := l.Lock(ctx); err != nil {
					fail(err)
					return
				}
				sec.enter()
				granted(i, warm.Load())
				leaving(i)
				sec.leave()
				// Release the lock even if ctx has ended.
				if err := l.Unlock(context.WithoutCancel(ctx)); err != nil {
					fail(err)
					return
				}
				if over.Load() {
					return
				}
			}
		})
	}
	sleep(ctx, min(3*d/2, 1500*time.Millisecond)) // connections open, and the queue fills
	warm.Store(true)
	sleep(ctx, d)
	over.Store(true)
	cancel()
	wg.Wait()
	return &sec, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
