package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Floor is the shortest time in which a lock on etcd can change hands: the time
// from the start of a deletion by one client until another client, which watches
// the key, sees the deletion.
func Floor(ctx context.Context, from, to *clientv3.Client, hold, d time.Duration) (v Values, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	key := newName()
	events := to.Watch(ctx, key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	if resp := <-events; resp.Err() != nil || !resp.Created {
		return nil, errors.Join(errors.New("watch"), resp.Err())
	}
	var times []time.Duration
	begin := time.Now()
	for warmup := min(d, time.Second); time.Since(begin) < warmup+d; {
		if _, err := from.Put(ctx, key, ""); err != nil {
			return nil, err
		}
		time.Sleep(hold)
		seen := make(chan time.Time, 1)
		go func() {
			if resp := <-events; len(resp.Events) == 1 {
				seen <- time.Now()
			}
			close(seen)
		}()
		start := time.Now()
		if _, err := from.Delete(ctx, key); err != nil {
			return nil, err
		}
		at, ok := <-seen
		if !ok {
			return nil, fmt.Errorf("watch ended: %w", ctx.Err())
		}
		if time.Since(begin) > warmup {
			times = append(times, at.Sub(start))
		}
	}
	v = Values{}
	v.distribution(times)
	return v, nil
}
