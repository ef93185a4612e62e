package measure

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Order lets the contenders arrive one after another, 25 ms apart, and the first of
// them give the lock back when all have arrived. It counts the pairs of waiters in which the later one got the lock
// first.
func Order(ctx context.Context, p peer.Peer, c Contenders, repetitions int) (v Values, err error) {
	waiters := c.Total() - 1
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	v = Values{"inversions": 0, "pairs": float64(repetitions * waiters * (waiters - 1) / 2)}
	for range repetitions {
		lockers := ss.mutexes(newName())
		holder := lockers[waiters]
		if err := holder.Lock(ctx); err != nil {
			return nil, err
		}
		var grants []int // guarded by the lock itself
		arrivals := make([]chan struct{}, waiters)
		for i := range arrivals {
			arrivals[i] = make(chan struct{})
		}
		all := start(waiters, func(i int) error {
			<-arrivals[i]
			if err := lockers[i].Lock(ctx); err != nil {
				return err
			}
			grants = append(grants, i)
			return lockers[i].Unlock(ctx)
		})
		for _, a := range arrivals {
			close(a)
			sleep(ctx, 25*time.Millisecond)
		}
		if err := errors.Join(holder.Unlock(ctx), <-all); err != nil {
			return nil, err
		}
		for k, later := range grants {
			for _, earlier := range grants[k:] {
				if earlier < later {
					v["inversions"]++
				}
			}
		}
	}
	return v, nil
}
