package measure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// contend starts one goroutine for each locker, which takes and releases the lock
// repeatedly until warmup has returned, and then for d. It calls granted after each
// grant and leaving before each release, both inside the section; warm says
// whether the warm-up is over.
func contend(ctx context.Context, lockers []peer.Locker, warmup func(context.Context) error, d time.Duration,
	granted, leaving func(i int, warm bool)) (*section, error) {
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
				w := warm.Load()
				granted(i, w)
				leaving(i, w)
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
	if err := warmup(ctx); err != nil {
		fail(err)
	}
	warm.Store(true)
	sleep(ctx, d)
	over.Store(true)
	cancel()
	wg.Wait()
	return &sec, err
}

// warmupFor returns a warm-up that takes d, or 1.5 s if that is longer.
func warmupFor(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		sleep(ctx, max(d, 1500*time.Millisecond))
		return ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func mutexes(sessions []peer.Session, name string) []peer.Locker {
	lockers := make([]peer.Locker, len(sessions))
	for i, s := range sessions {
		lockers[i] = s.Mutex(name)
	}
	return lockers
}
