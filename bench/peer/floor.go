package peer

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Floor is not a lock. It does the minimum that a lock on etcd must do when nobody
// else wants it: it puts a key with a lease, and deletes the key.
func Floor(clients Clients) Peer {
	return Peer{"floor", false, func(ctx context.Context, i int) (Session, error) {
		c := clients(i)
		lease, err := c.Grant(ctx, ttl)
		if err != nil {
			return nil, err
		}
		alive, err := c.KeepAlive(context.WithoutCancel(ctx), lease.ID)
		if err != nil {
			return nil, err
		}
		go func() { // ends when the lease is revoked, or the client is closed
			for range alive {
				continue
			}
		}()
		return &floorSession{c, lease.ID}, nil
	}}
}

type floorSession struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
}

func (s *floorSession) Mutex(name string) Locker {
	return &floorKey{s, fmt.Sprintf("%s/%x", name, s.lease)}
}

func (s *floorSession) Close(ctx context.Context) error {
	_, err := s.client.Revoke(ctx, s.lease)
	return err
}

type floorKey struct {
	*floorSession
	key string
}

func (k *floorKey) Lock(ctx context.Context) error {
	_, err := k.client.Put(ctx, k.key, "", clientv3.WithLease(k.lease))
	return err
}

func (k *floorKey) Unlock(ctx context.Context) error {
	_, err := k.client.Delete(ctx, k.key)
	return err
}
