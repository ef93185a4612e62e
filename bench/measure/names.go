package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// ManyNames is how many times a second contenders lock and unlock, each a name of its own, so nobody wants what another one
// has. count counts the requests of the peer's clients, and pids are etcd's processes: so the values tell what a cycle costs.
func ManyNames(ctx context.Context, p peer.Peer, c Contenders, count *Counter, pids []int, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	base := newName()
	var warm, over atomic.Bool
	times := make([][]time.Duration, len(ss.Of))
	done := start(len(ss.Of), func(i int) error {
		l := ss.Of[i].Mutex(fmt.Sprintf("%s-own-%d", base, i))
		for !over.Load() {
			began := time.Now()
			if err := errors.Join(l.Lock(ctx), l.Unlock(ctx)); err != nil {
				return err
			}
			if warm.Load() && !over.Load() {
				times[i] = append(times[i], time.Since(began))
			}
		}
		return nil
	})
	time.Sleep(d / 4)
	warm.Store(true)
	before, began := spent(count, pids), time.Now()
	time.Sleep(d)
	over.Store(true)
	after, took := spent(count, pids), time.Since(began)
	if err := <-done; err != nil {
		return nil, err
	}
	cycles := slices.Concat(times...)
	v = after.per(before, float64(len(cycles)))
	v.distribution(cycles)
	v["per_s"] = float64(len(cycles)) / took.Seconds()
	return v, nil
}

// spent is what was spent so far.
func spent(count *Counter, pids []int) Values {
	v := Values{"client_cpu_us": micros(processorTime()), "requests": float64(count.Requests())}
	for _, pid := range pids {
		v["etcd_cpu_us"] += processorTimeOf(pid) * 1e6
	}
	v["cpu_us"] = v["client_cpu_us"] + v["etcd_cpu_us"]
	return v
}
