package peer

import (
	"context"
	"sync"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// Serialized is [Concurrency] with one session for a process. A sync.Mutex in front of
// it lets only one goroutine at a time use etcd.
func Serialized(clients Clients) Peer {
	return Peer{"concurrency behind sync.Mutex", false, func(_ context.Context, i int) (Session, error) {
		s, err := concurrency.NewSession(clients(i), concurrency.WithTTL(ttl))
		return &serializedSession{concurrencySession: concurrencySession{s}}, err
	}}
}

type serializedSession struct {
	concurrencySession
	local sync.Map // of *sync.Mutex, by name
}

func (s *serializedSession) Mutex(name string) Locker {
	local, _ := s.local.LoadOrStore(name, new(sync.Mutex))
	return &serializedMutex{local.(*sync.Mutex), concurrency.NewMutex(s.Session, name)}
}

type serializedMutex struct {
	local  *sync.Mutex
	global *concurrency.Mutex
}

func (l *serializedMutex) Lock(ctx context.Context) error {
	l.local.Lock() // ignores ctx
	if err := l.global.Lock(ctx); err != nil {
		l.local.Unlock()
		return err
	}
	return nil
}

func (l *serializedMutex) Unlock(ctx context.Context) error {
	defer l.local.Unlock()
	return l.global.Unlock(ctx)
}
