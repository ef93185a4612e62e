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

// Relay is the floor of Grants: how often in a second a turn can be passed on
// among this many clients of etcd, without any queue. Each watches the key of
// the one before it in a ring. Seeing that deleted, it has the turn: it deletes
// its own key, which is what a release costs, and puts it again, which is what
// it costs to queue up anew.
func Relay(ctx context.Context, clients peer.Clients, n int, d time.Duration) (v Values, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	name := newName()
	key := func(i int) string { return fmt.Sprintf("%s/%d", name, (i+n)%n) }
	before := make([]clientv3.WatchChan, n)
	err = each(n, func(i int) error {
		if _, err := clients(i).Put(ctx, key(i), ""); err != nil {
			return err
		}
		before[i] = clients(i).Watch(ctx, key(i-1), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		resp := <-before[i]
		return resp.Err()
	})
	if err != nil {
		return nil, err
	}
	var turns atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			for resp := range before[i] {
				for range resp.Events {
					turns.Add(1)
					_, derr := clients(i).Delete(ctx, key(i))
					_, perr := clients(i).Put(ctx, key(i), "")
					if err := errors.Join(derr, perr); err != nil {
						if ctx.Err() == nil {
							errs[i] = err
						}
						return
					}
				}
			}
		})
	}
	if _, err := clients(0).Delete(ctx, key(-1)); err != nil {
		return nil, err
	}
	if _, err := clients(0).Put(ctx, key(-1), ""); err != nil {
		return nil, err
	}
	sleep(ctx, min(d, time.Second))
	start, from := time.Now(), turns.Load()
	sleep(ctx, d)
	v = Values{"per_s": float64(turns.Load()-from) / time.Since(start).Seconds()}
	cancel()
	wg.Wait()
	return v, errors.Join(errs...)
}
