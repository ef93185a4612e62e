package measure

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Grants is how often in a second a lock changes hands that this many sessions
// want all the time, when nobody keeps it. passed_per_s counts only the grants
// to another session than the one before: a lock that lets its last holder barge
// in has many grants and passes rarely.
func Grants(ctx context.Context, p peer.Peer, sessions int, d time.Duration) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, sessions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	grants, passed, before := 0, 0, -1
	var first, last time.Time
	sec, err := contend(ctx, mutexes(ss, newName()), warmupFor(d), d, func(i int, warm bool) {
		if !warm {
			return
		}
		// Guarded by the lock itself; where that fails, the numbers are void.
		last = time.Now()
		if grants == 0 {
			first = last
		}
		grants++
		if i != before {
			before = i
			passed++
		}
	}, func(int, bool) {})
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
