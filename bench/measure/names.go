package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Names are contenders that lock many names.
type Names struct {
	Contenders
	Among int           // how many names there are: each contender locks another one each time; 0: each has a name of its own
	Pause time.Duration // the mean of the random pauses between two locks
}

// String is such as "1x4", "1x4, pauses" or "8x16, 64 names".
func (n Names) String() string {
	text := n.Contenders.String()
	if n.Among > 0 {
		text += fmt.Sprintf(", %d names", n.Among)
	}
	if n.Pause > 0 {
		text += ", pauses"
	}
	return text
}

// ManyNames is how many times a second the contenders lock and unlock a name. count counts the requests of the peer's
// clients, and pids are etcd's processes: so the values tell what a cycle costs.
func ManyNames(ctx context.Context, p peer.Peer, n Names, count *Counter, pids []int, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, n.Contenders)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	base := newName()
	sections := make([]section, max(n.Among, len(ss.Of)))
	var warm, over atomic.Bool
	times := make([][]time.Duration, len(ss.Of))
	done := start(len(ss.Of), func(i int) error {
		name, handle := -1, peer.Locker(nil)
		choose := func(to int) {
			if name != to {
				name, handle = to, ss.Of[i].Mutex(fmt.Sprintf("%s/%d", base, to))
			}
		}
		choose(i)
		for !over.Load() {
			if n.Among > 0 {
				choose(rand.N(n.Among))
			}
			if n.Pause > 0 {
				time.Sleep(rand.N(2 * n.Pause))
			}
			began := time.Now()
			if err := handle.Lock(ctx); err != nil {
				return err
			}
			sections[name].enter()
			sections[name].leave()
			if err := handle.Unlock(ctx); err != nil {
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
	if p.Name != "floor" { // which is not a lock
		for i := range sections {
			v["overlaps"] += float64(sections[i].overlaps.Load())
		}
	}
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
