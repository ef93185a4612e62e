package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Ring is the floor of Grants: how many times a second a turn can be passed on in a
// ring of contenders, without any queue. Each contender watches the key of the one
// before it. When that key is deleted, it has the turn and passes it on with pass: [DeleteAndPut] or [LikeALock].
func Ring(ctx context.Context, clients peer.Clients, c Contenders, d time.Duration, pass Pass) (v Values, err error) {
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
	turn := func(i int, had int64) error {
		turns.Add(1)
		return pass(ctx, client(i), name+"/", key(i), had)
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			var err error
			if i == n-1 { // it begins, and takes no other turn before its key exists again
				err = turn(i, 0)
			}
			for resp := range before[i] {
				for _, e := range resp.Events {
					err = errors.Join(err, turn(i, e.Kv.ModRevision))
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

// A Pass passes the turn of a [Ring] on: the contender's key, in the queue of that name, is deleted and put again. The
// contender has had the turn since revision had, or from the beginning if had is 0.
type Pass func(ctx context.Context, client *clientv3.Client, queue, key string, had int64) error

// DeleteAndPut is the cheapest Pass. It costs as many commits as a release and the next entry in the queue.
func DeleteAndPut(ctx context.Context, client *clientv3.Client, _, key string, _ int64) error {
	_, derr := client.Delete(ctx, key)
	_, perr := client.Put(ctx, key, "")
	return errors.Join(derr, perr)
}

// LikeALock is a Pass with the requests of a lock of one queue: a read which shows that nobody else is before the
// contender, a release that deletes no later entry, and an entry that shows whom the contender must wait for.
func LikeALock(ctx context.Context, client *clientv3.Client, queue, key string, had int64) error {
	shown := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(16)}
	_, rerr := client.Get(ctx, queue, append(shown, clientv3.WithRev(had), clientv3.WithSerializable())...)
	if errors.Is(rerr, rpctypes.ErrFutureRev) { // of a member that lags
		_, rerr = client.Get(ctx, queue, shown...)
	}
	_, derr := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).Then(clientv3.OpDelete(key)).Commit()
	_, perr := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpGet(queue, shown...), clientv3.OpPut(key, "")).Commit()
	return errors.Join(rerr, derr, perr)
}
