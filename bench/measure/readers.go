package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Burst is the time from the start of a writer's Unlock until all readers that queue
// behind it hold the lock together; the median of several repetitions. The writer
// unlocks as soon as etcd has all the readers' entries. The result
// includes the requests of all readers, which count counts. The writer is one of the
// contenders of the first process.
func Burst(ctx context.Context, p peer.Peer, look *clientv3.Client, count *Counter, c Contenders) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	var times []time.Duration
	for range 5 {
		name := newName()
		locks := ss.rwMutexes(name)
		writer, readers := locks[0], locks[1:]
		if err := writer.Lock(ctx); err != nil {
			return nil, err
		}
		held, err := entries(ctx, look, name)
		if err != nil {
			return nil, err
		}
		before := count.count()
		all := start(len(readers), func(i int) error { return readers[i].RLock(ctx) })
		if err := queued(ctx, look, name, held+len(readers)); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := writer.Unlock(ctx); err != nil {
			return nil, err
		}
		if err := <-all; err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
		v = count.count().per(before, 1)
		if err := each(len(readers), func(i int) error { return readers[i].RUnlock(ctx) }); err != nil {
			return nil, err
		}
	}
	v.distribution(times)
	return v, nil
}

// WriterBehind is the time from the start of the last reader's RUnlock until the Lock
// of a writer returns that has waited for all readers. The readers leave in random
// order. The result includes the requests of the writer from its Lock to the grant;
// count counts the requests of writers and not those of readers.
func WriterBehind(ctx context.Context, readers, writers peer.Peer, look *clientv3.Client, count *Counter, c Contenders) (v Values, err error) {
	rs, err := Open(ctx, readers, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	ws, err := Open(ctx, writers, Contenders{1, 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ws.Close()) }()
	n := c.Total()
	var times []time.Duration
	for range 10 {
		name := newName()
		locks, writer := rs.rwMutexes(name), ws.rwMutexes(name)[0]
		if err := each(n, func(i int) error { return locks[i].RLock(ctx) }); err != nil {
			return nil, err
		}
		before := count.count()
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
		v = count.count().per(before, 1)
		if err := writer.Unlock(ctx); err != nil {
			return nil, err
		}
	}
	v.distribution(times)
	return v, nil
}
