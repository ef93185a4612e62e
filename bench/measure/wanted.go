package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Wanted is how long a competitor of another process waits for a lock that a process needs
// for each of many items, which take the time item. The competitor releases it at once, and
// comes again after the time every, on average: etcd serves some watches from a loop of
// 100 ms, and regular times could stay in step with it. per_s is how many items are done.
func Wanted(ctx context.Context, p, competitor peer.Peer, item, every, d time.Duration) (v Values, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := newName()
	var lockers []peer.Locker
	for i, p := range []peer.Peer{p, competitor} {
		s, openErr := p.Open(ctx, i)
		if openErr != nil {
			return nil, openErr
		}
		defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
		lockers = append(lockers, s.Mutex(name))
	}
	worker, comer := lockers[0], lockers[1]
	for range 20 { // opens connections
		if _, err := cycle(ctx, comer); err != nil {
			return nil, err
		}
	}
	if _, err := cycle(ctx, worker); err != nil { // from here on it may keep the lock
		return nil, err
	}
	var sec section
	var over atomic.Bool
	items, begin := 0, time.Now()
	worked := start(1, func(int) error {
		defer cancel() // a competitor may wait for a lock that is not released any more
		for !over.Load() {
			if err := worker.Lock(ctx); err != nil {
				return err
			}
			sec.enter()
			sleep(ctx, item)
			items++
			sec.leave()
			if err := worker.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	var waits []time.Duration
	for time.Since(begin) < d && ctx.Err() == nil && err == nil {
		sleep(ctx, every/2+rand.N(every))
		came := time.Now()
		if err = comer.Lock(ctx); err == nil {
			waits = append(waits, time.Since(came))
			sec.enter()
			sec.leave()
			err = comer.Unlock(ctx)
		}
	}
	over.Store(true)
	if err := errors.Join(<-worked, err); err != nil {
		return nil, err
	}
	v = Values{"overlaps": float64(sec.overlaps.Load()), "per_s": float64(items) / time.Since(begin).Seconds()}
	v.distribution(waits)
	return v, nil
}
