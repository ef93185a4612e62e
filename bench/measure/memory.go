package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Waiting is what a waiter costs its own process, in goroutines and in bytes of heap
// and stacks. Its session and one idle goroutine are subtracted. The server must run in
// another process.
func Waiting(ctx context.Context, p peer.Peer, look *clientv3.Client, waiters int) (v Values, err error) {
	ss, closeAll, err := open(ctx, p, waiters+1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	ctx, cancel := context.WithCancel(ctx)
	name := newName()
	lockers := mutexes(ss, name)
	if err := lockers[waiters].Lock(ctx); err != nil {
		cancel()
		return nil, err
	}
	gate := make(chan struct{})
	all := start(waiters, func(i int) error {
		<-gate
		return lockers[i].Lock(ctx)
	})
	before := measureMemory()
	close(gate)
	err = errors.Join(queued(ctx, look, name, waiters+1), atRest(ctx))
	after := measureMemory()
	cancel() // the waiters give up
	if gaveUp := <-all; gaveUp == nil {
		err = errors.Join(err, errors.New("a waiter got the lock"))
	}
	v = after.per(before, waiters)
	v["bytes"] = v["heap_bytes"] + v["stack_bytes"]
	return v, err
}

// Holding is what a held lock costs its process, in bytes of heap, measured with n
// locks of one session. It is also the time in which closing the session releases all
// its locks: the median of several sessions, one after another. The server must run in
// another process.
func Holding(ctx context.Context, p peer.Peer, n int) (v Values, err error) {
	closings := make([]time.Duration, 5)
	for i := range closings {
		one, took, err := holding(ctx, p, n)
		if err != nil {
			return nil, err
		}
		if v == nil {
			v = one // only the first session starts in a process that has done nothing before
		}
		closings[i] = took
	}
	slices.Sort(closings)
	v["close_us"] = micros(quantile(closings, 0.5))
	return v, nil
}

func holding(ctx context.Context, p peer.Peer, n int) (v Values, closing time.Duration, err error) {
	ss, closeAll, err := open(ctx, p, 1)
	if err != nil {
		return nil, 0, err
	}
	name := newName()
	lockers := make([]peer.Locker, n)
	for i := range lockers {
		lockers[i] = ss[0].Mutex(fmt.Sprintf("%s/%d", name, i))
	}
	before := measureMemory()
	err = each(n, func(i int) error { return lockers[i].Lock(ctx) })
	v = measureMemory().per(before, n)
	runtime.KeepAlive(lockers)
	start := time.Now()
	err = errors.Join(err, closeAll())
	return v, time.Since(start), err
}

// measureMemory returns the number of goroutines and the bytes in use, after garbage
// was collected and connections have become idle.
func measureMemory() Values {
	var m runtime.MemStats
	for range 6 { // each collection at most halves the stacks that are too large
		time.Sleep(100 * time.Millisecond)
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return Values{
		"goroutines":  float64(runtime.NumGoroutine()),
		"heap_bytes":  float64(m.HeapAlloc),
		"stack_bytes": float64(m.StackInuse),
	}
}
