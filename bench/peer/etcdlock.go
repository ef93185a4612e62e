package peer

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock"
)

// Etcdlock is this repository's library.
func Etcdlock(clients Clients) Peer {
	return ofEtcdlock("etcdlock", clients, func(s etcdlockSession) Session { return s })
}

// Releasing is [Etcdlock] with Release instead of Unlock: the caller does not wait for
// etcd's reply.
func Releasing(clients Clients) Peer {
	return ofEtcdlock("etcdlock, Release", clients, func(s etcdlockSession) Session { return releasingSession{s} })
}

func ofEtcdlock(name string, clients Clients, as func(etcdlockSession) Session) Peer {
	return Peer{name, false, func(ctx context.Context, i int) (Session, error) {
		s, err := etcdlock.NewSession(ctx, clients(i), etcdlock.WithTTL(ttl*time.Second))
		if err != nil {
			return nil, err
		}
		return as(etcdlockSession{s}), nil
	}}
}

type releasingSession struct{ etcdlockSession }

func (s releasingSession) Mutex(name string) Locker {
	return releasingMutex{&etcdlockMutex{mutex: etcdlock.NewMutex(s.Session, name)}}
}

type releasingMutex struct{ *etcdlockMutex }

func (l releasingMutex) Unlock(context.Context) error {
	l.held.Release()
	return nil
}

type etcdlockSession struct{ *etcdlock.Session }

func (s etcdlockSession) Close(context.Context) error { return s.Session.Close() }

func (s etcdlockSession) Mutex(name string) Locker {
	return &etcdlockMutex{mutex: etcdlock.NewMutex(s.Session, name)}
}

func (s etcdlockSession) RWMutex(name string) RWLocker {
	return &etcdlockRWMutex{mutex: etcdlock.NewRWMutex(s.Session, name)}
}

// etcdlockMutex is a handle on a Mutex or a Multi.
type etcdlockMutex struct {
	mutex interface {
		Lock(ctx context.Context) (*etcdlock.Held, error)
	}
	held *etcdlock.Held
}

func (l *etcdlockMutex) Lock(ctx context.Context) (err error) {
	l.held, err = l.mutex.Lock(ctx)
	return err
}

func (l *etcdlockMutex) Unlock(ctx context.Context) error { return l.held.Unlock(ctx) }

type etcdlockRWMutex struct {
	mutex *etcdlock.RWMutex
	held  *etcdlock.Held
}

func (l *etcdlockRWMutex) Lock(ctx context.Context) (err error) {
	l.held, err = l.mutex.Lock(ctx)
	return err
}

func (l *etcdlockRWMutex) RLock(ctx context.Context) (err error) {
	l.held, err = l.mutex.RLock(ctx)
	return err
}

func (l *etcdlockRWMutex) Unlock(ctx context.Context) error { return l.held.Unlock(ctx) }

func (l *etcdlockRWMutex) RUnlock(ctx context.Context) error { return l.held.Unlock(ctx) }
