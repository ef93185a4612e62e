package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Ring is the floor of Grants: how many times a second a turn can be passed on in a
// ring of contenders, without any queue. Each contender watches the key of the one
// before it. When that key is deleted, it has the turn: it deletes its own key,
// which costs as much as a release, and puts it again, which costs as much as queueing
// up again.
func Ring(ctx context.Context, clients peer.Clients, c Contenders, d time.Duration) (v Values, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	n, name := c.Total(), newName()
	client := func(i int) *clientv3.Client { return clients(i / c.Goroutines) }
	key := func(i int) string { return fmt.Sprintf("%s/%d", name, (i+n)%n) }
	before := make([]clientv3.WatchChan, n)
	err = each(n, func(i int) error {
		if _, err := client(i).Put(ctx, key(i), ""); err != nil {
			return err
		}
		before[i] = client(i).Watch(ctx, key(i-1), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		resp := <-before[i]
		return resp.Err()
	})
	if err != nil {
		return nil, err
	}
	var turns atomic.Int64
	turn := func(i int) error {
		turns.Add(1)
		_, derr := client(i).Delete(ctx, key(i))
		_, perr := client(i).Put(ctx, key(i), "")
		return errors.Join(derr, perr)
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			var err error
			if i == n-1 { // it begins, and takes no other turn before its key exists again
				err = turn(i)
			}
			for resp := range before[i] {
				for range resp.Events {
					err = errors.Join(err, turn(i))
				}
				if err != nil {
					break
				}
			}
			if ctx.Err() == nil {
				errs[i] = err
			}
		})
	}
	sleep(ctx, min(d, time.Second))
	start, from := time.Now(), turns.Load()
	sleep(ctx, d)
	passed := turns.Load() - from
	v = Values{"per_s": float64(passed) / time.Since(start).Seconds()}
	if passed == 0 {
		err = errors.New("no contender passed the turn on")
	}
	cancel()
	wg.Wait()
	return v, errors.Join(append(errs, err)...)
}
