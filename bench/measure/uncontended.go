package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Uncontended is the time of a Lock and its Unlock when nobody else wants the lock.
// The peers take turns after each cycle, in random order. So other load on the
// machine, and what one peer leaves behind in etcd, affect all peers alike; this
// matters because the differences are small. Before the measurement each peer takes
// and releases its lock used times.
func Uncontended(ctx context.Context, peers []peer.Peer, used int, d time.Duration) (vs []Values, err error) {
	lockers := make([]peer.Locker, len(peers))
	for i, p := range peers {
		// Each peer has its own connection. A shared connection uses the members in
		// turn, so each peer would always use the same member.
		s, err := p.Open(ctx, i)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
		lockers[i] = s.Mutex(newName())
	}
	err = each(len(peers), func(i int) error {
		for range max(used, 20) { // the first cycles open connections
			if _, err := cycle(ctx, lockers[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	times := make([][]time.Duration, len(peers))
	for end := time.Now().Add(time.Duration(len(peers)) * d); time.Now().Before(end); {
		for _, i := range rand.Perm(len(lockers)) {
			t, err := cycle(ctx, lockers[i])
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], t)
		}
	}
	for _, t := range times {
		v := Values{}
		v.distribution(t)
		vs = append(vs, v)
	}
	return vs, nil
}

func cycle(ctx context.Context, l peer.Locker) (time.Duration, error) {
	start := time.Now()
	if err := l.Lock(ctx); err != nil {
		return 0, err
	}
	err := l.Unlock(ctx)
	return time.Since(start), err
}
