package measure

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// OneSession is Grants for goroutines of one process that share one session. It also
// counts how many goroutines were in the section at once at most, and how often Lock
// or Unlock failed. Each goroutine keeps the lock for hold: in an empty section no
// goroutine stays long enough to overlap with another.
func OneSession(ctx context.Context, p peer.Peer, goroutines int, hold, d time.Duration) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	var failures, grants atomic.Int64
	lockers := make([]peer.Locker, goroutines)
	use := func() []peer.Locker {
		name := newName()
		for i := range lockers {
			lockers[i] = tolerant{ss[0].Mutex(name), &failures}
		}
		return lockers
	}
	_, err = contend(ctx, use(), warmupFor(d), d, func(_ int, warm bool) {
		if warm {
			grants.Add(1)
		}
	}, func(int, bool) {})
	if err != nil {
		return nil, err
	}
	sec, err := contend(ctx, use(), warmupFor(d), d/2, func(int, bool) { time.Sleep(hold) }, func(int, bool) {})
	return Values{
		"per_s":    float64(grants.Load()) / d.Seconds(),
		"overlaps": float64(sec.overlaps.Load()),
		"most":     float64(sec.most.Load()),
		"failures": float64(failures.Load()),
	}, err
}

// tolerant counts failures and continues, so that the result shows them.
type tolerant struct {
	peer.Locker
	failures *atomic.Int64
}

func (l tolerant) Lock(ctx context.Context) error {
	for {
		err := l.Locker.Lock(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		l.failures.Add(1)
	}
}

func (l tolerant) Unlock(ctx context.Context) error {
	if err := l.Locker.Unlock(ctx); err != nil {
		l.failures.Add(1)
	}
	return nil
}
