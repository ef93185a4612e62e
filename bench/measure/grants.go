package measure

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Grants is how many times a second a lock is granted when the contenders
// always want it and each holder releases it at once. passed_per_s counts only grants
// to a contender other than the previous one: a lock that lets its last holder barge
// has many grants, but rarely passes to another contender.
func Grants(ctx context.Context, p peer.Peer, c Contenders, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	grants, passed, before := 0, 0, -1
	var first, last time.Time
	sec, err := contend(ctx, ss.mutexes(newName()), d, func(i int, warm bool) {
		if !warm {
			return
		}
		// Guarded by the measured lock; if the lock fails, the numbers are void.
		last = time.Now()
		if grants == 0 {
			first = last
		}
		grants++
		if i != before {
			before = i
			passed++
		}
	}, func(int) {})
	if err != nil {
		return nil, err
	}
	v = Values{"overlaps": float64(sec.overlaps.Load())}
	if grants > 1 {
		v["per_s"] = float64(grants-1) / last.Sub(first).Seconds()
		v["passed_per_s"] = float64(passed-1) / last.Sub(first).Seconds()
	}
	return v, nil
}
