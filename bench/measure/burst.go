package measure

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Burst is the time from the start of a writer's Unlock until all readers that
// queue behind it hold the lock together; the median of several repetitions. The
// writer unlocks as soon as etcd has all the readers' entries or, if rested, when
// the process is idle. The result includes the requests of all readers, which c
// counts.
func Burst(ctx context.Context, p peer.Peer, look *clientv3.Client, c *Counter, readers int, rested bool) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, readers+1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	var times []time.Duration
	for range 5 {
		name := newName()
		locks := rwMutexes(ss, name)
		writer, locks := locks[readers], locks[:readers]
		if err := writer.Lock(ctx); err != nil {
			return nil, err
		}
		held, err := entries(ctx, look, name)
		if err != nil {
			return nil, err
		}
		before := c.count()
		all := start(readers, func(i int) error { return locks[i].RLock(ctx) })
		if err := queued(ctx, look, name, held+readers); err != nil {
			return nil, err
		}
		if rested {
			if err := atRest(ctx); err != nil {
				return nil, err
			}
		}
		begin := time.Now()
		if err := writer.Unlock(ctx); err != nil {
			return nil, err
		}
		if err := <-all; err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
		v = c.count().per(before, 1)
		if err := each(readers, func(i int) error { return locks[i].RUnlock(ctx) }); err != nil {
			return nil, err
		}
	}
	v.distribution(times)
	v["txns"]-- // the writer's Unlock
	return v, nil
}

// start calls f(0) ... f(n-1) concurrently. When all have returned, it sends the
// first error, or nil.
func start(n int, f func(i int) error) <-chan error {
	done, each := make(chan error, 1), make(chan error, n)
	for i := range n {
		go func() { each <- f(i) }()
	}
	go func() {
		var errs []error
		for range n {
			errs = append(errs, <-each)
		}
		done <- errors.Join(errs...)
	}()
	return done
}

func rwMutexes(sessions []peer.Session, name string) []peer.RWLocker {
	lockers := make([]peer.RWLocker, len(sessions))
	for i, s := range sessions {
		lockers[i] = s.(peer.RWSession).RWMutex(name)
	}
	return lockers
}
