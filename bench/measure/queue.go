package measure

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// entries counts the keys in the queue of a lock on etcd.
func entries(ctx context.Context, look *clientv3.Client, name string) (int, error) {
	resp, err := look.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(resp.Count), nil
}

// queued waits until the queue of a lock on etcd has n keys.
func queued(ctx context.Context, look *clientv3.Client, name string, n int) error {
	for {
		in, err := entries(ctx, look, name)
		if err != nil || in >= n {
			return err
		}
		sleep(ctx, time.Millisecond)
	}
}

// atRest waits until this process hardly uses its processors any more: the waiters
// have made all their requests and only wait. It takes at least a third of a second.
func atRest(ctx context.Context) error {
	const step = 100 * time.Millisecond
	for calm := 0; calm < 3 && ctx.Err() == nil; calm++ {
		before := processorTime()
		sleep(ctx, step)
		if processorTime()-before > step/4 {
			calm = -1
		}
	}
	return ctx.Err()
}
