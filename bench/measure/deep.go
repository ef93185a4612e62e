package measure

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Deep is Handover with a queue that certainly has its full length before
// anything is timed: the first holder keeps the lock until etcd has an entry for
// each of the waiters. The client look is used to check that.
func Deep(ctx context.Context, p peer.Peer, look *clientv3.Client, waiters int, hold, d time.Duration) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, waiters+1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	name := newName()
	lockers := mutexes(ss, name)
	gates := make([]chan struct{}, len(lockers))
	for i := range lockers {
		gates[i] = make(chan struct{})
		lockers[i] = gated{lockers[i], gates[i]}
	}
	complete := make(chan struct{})
	warmup := func(ctx context.Context) error {
		defer close(complete)
		return letIn(ctx, look, name, len(lockers), func(i int) { close(gates[i]) })
	}
	// Guarded by the lock itself.
	var times []time.Duration
	var released time.Time
	before := -1
	sec, err := contend(ctx, lockers, warmup, d, func(i int, _ bool) {
		if now := time.Now(); before >= 0 && before != i {
			times = append(times, now.Sub(released))
		}
		before = i
		<-complete
		time.Sleep(hold)
	}, func(int, bool) { released = time.Now() })
	if err != nil {
		return nil, err
	}
	v = Values{"overlaps": float64(sec.overlaps.Load())}
	v.distribution(times)
	return v, nil
}

// gated is a Locker whose first Lock waits until its gate is opened.
type gated struct {
	peer.Locker
	gate chan struct{}
}

func (l gated) Lock(ctx context.Context) error {
	select {
	case <-l.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	return l.Locker.Lock(ctx)
}

// letIn lets n waiters queue up for the lock of that name, only a few at a time: if
// thousands of requests each read a queue of thousands, etcd can't answer them in
// time. It returns when all waiters are in the queue and the process is idle.
func letIn(ctx context.Context, look *clientv3.Client, name string, n int, enter func(i int)) error {
	for in, started := 0, 0; in < n; {
		for ; started < min(n, in+64); started++ {
			enter(started)
		}
		var err error
		if in, err = entries(ctx, look, name); err != nil {
			return err
		}
		sleep(ctx, 2*time.Millisecond)
	}
	return atRest(ctx)
}
