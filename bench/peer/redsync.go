package peer

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Redsync locks on one Redis server. It has no queue: a client that finds the lock
// taken tries again after 50 to 250 ms, which is its default. The lock expires after
// its expiry, and redsync does not renew it.
func Redsync(name, addr string) Peer {
	return Peer{name, false, func(ctx context.Context, _ int) (Session, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		if err := c.Ping(ctx).Err(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return redsyncSession{c, redsync.New(goredis.NewPool(c))}, nil
	}}
}

type redsyncSession struct {
	client *redis.Client
	locks  *redsync.Redsync
}

func (s redsyncSession) Mutex(name string) Locker {
	// By default it gives up after 32 tries.
	return redsyncMutex{s.locks.NewMutex(name, redsync.WithExpiry(ttl*time.Second), redsync.WithTries(math.MaxInt))}
}

func (s redsyncSession) Close(context.Context) error { return s.client.Close() }

type redsyncMutex struct{ *redsync.Mutex }

func (l redsyncMutex) Lock(ctx context.Context) error { return l.LockContext(ctx) }

func (l redsyncMutex) Unlock(ctx context.Context) error {
	ok, err := l.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("redsync: the lock was not held anymore")
	}
	return err
}
