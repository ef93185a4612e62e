package measure

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Handover is the time from the start of an Unlock until another contender's
// Lock returns. The contenders always want the lock, and each keeps it for hold.
func Handover(ctx context.Context, p peer.Peer, c Contenders, hold, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	// Guarded by the measured lock; if the lock fails, the numbers are void.
	var times []time.Duration
	var released time.Time
	before, same := -1, 0
	sec, err := contend(ctx, ss.mutexes(newName()), d, func(i int, warm bool) {
		switch now := time.Now(); {
		case !warm || released.IsZero():
		case before == i:
			same++ // the lock did not change hands
		default:
			times = append(times, now.Sub(released))
		}
		before = i
		time.Sleep(hold)
	}, func(int) { released = time.Now() })
	if err != nil {
		return nil, err
	}
	v = Values{"overlaps": float64(sec.overlaps.Load()), "same": float64(same)}
	v.distribution(times)
	return v, nil
}
