package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// WriterBehind is the time from the start of the last reader's RUnlock until the Lock
// of a writer returns that has waited for all readers. The readers leave in random
// order. The result includes the requests of the writer from its Lock to the grant; c
// counts the requests of writers and not those of readers.
func WriterBehind(ctx context.Context, readers, writers peer.Peer, look *clientv3.Client, c *Counter, n int) (v Values, err error) {
	rs, closeReaders, err := open(ctx, readers, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeReaders()) }()
	ws, closeWriter, err := open(ctx, writers, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeWriter()) }()
	var times []time.Duration
	for range 10 {
		name := newName()
		locks, writer := rwMutexes(rs, name), rwMutexes(ws, name)[0]
		if err := each(n, func(i int) error { return locks[i].RLock(ctx) }); err != nil {
			return nil, err
		}
		before := c.count()
		granted := start(1, func(int) error { return writer.Lock(ctx) })
		if err := errors.Join(queued(ctx, look, name, n+1), atRest(ctx)); err != nil {
			return nil, err
		}
		order := rand.Perm(n)
		if err := each(n-1, func(i int) error { return locks[order[i]].RUnlock(ctx) }); err != nil {
			return nil, err
		}
		if err := atRest(ctx); err != nil { // the work that the other readers' unlocks caused is done
			return nil, err
		}
		begin := time.Now()
		if err := locks[order[n-1]].RUnlock(ctx); err != nil {
			return nil, err
		}
		if err := <-granted; err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
		v = c.count().per(before, 1)
		if err := writer.Unlock(ctx); err != nil {
			return nil, err
		}
	}
	v.distribution(times)
	return v, nil
}
