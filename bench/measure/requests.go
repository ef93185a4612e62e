package measure

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Requests is how many requests an acquisition and its release make. A single
// contender finds the lock free; several want it all the time, and each keeps it for
// hold.
func Requests(ctx context.Context, p peer.Peer, count *Counter, c Contenders, hold, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	lockers := ss.mutexes(newName())
	if len(lockers) == 1 {
		const cycles = 200
		before := count.count()
		for range cycles {
			if _, err := cycle(ctx, lockers[0]); err != nil {
				return nil, err
			}
		}
		return count.count().per(before, cycles), nil
	}
	var before Values
	grants := -1
	_, err = contend(ctx, lockers, d, func(_ int, warm bool) {
		if warm {
			if grants++; grants == 0 {
				before = count.count()
			} else {
				v = count.count()
			}
		}
		time.Sleep(hold)
	}, func(int) {})
	if err != nil || grants < 1 {
		return nil, errors.Join(err, errNoGrants)
	}
	return v.per(before, float64(grants)), nil
}

var errNoGrants = errors.New("the lock was hardly granted")
