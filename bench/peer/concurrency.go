package peer

import (
	"context"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// Concurrency is the Mutex of etcd's own client library. All mutexes of one session and
// name write the same key, so if two goroutines shared a session, both would hold the
// lock at once.
func Concurrency(clients Clients) Peer {
	return Peer{"concurrency", true, func(_ context.Context, i int) (Session, error) {
		// WithContext(ctx) would end the whole session with ctx. Without it, no
		// context bounds this call.
		s, err := concurrency.NewSession(clients(i), concurrency.WithTTL(ttl))
		return concurrencySession{s}, err
	}}
}

type concurrencySession struct{ *concurrency.Session }

func (s concurrencySession) Mutex(name string) Locker {
	return concurrency.NewMutex(s.Session, name)
}

func (s concurrencySession) Close(context.Context) error { return s.Session.Close() }
