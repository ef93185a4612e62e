package peer

import (
	"context"

	"github.com/etcdlock/etcdlock"
)

// Keeping is [Etcdlock] whose Unlock keeps the lock until somebody else wants it. The next
// Lock then makes no request.
func Keeping(clients Clients) Peer {
	return ofEtcdlock("etcdlock, Contended", clients, func(s etcdlockSession) Session { return keepingSession{s} })
}

type keepingSession struct{ etcdlockSession }

func (s keepingSession) Mutex(name string) Locker {
	return &keepingMutex{etcdlockMutex{mutex: etcdlock.NewMutex(s.Session, name)}}
}

type keepingMutex struct{ etcdlockMutex }

func (l *keepingMutex) Lock(ctx context.Context) error {
	if l.held != nil {
		return nil
	}
	return l.etcdlockMutex.Lock(ctx)
}

func (l *keepingMutex) Unlock(ctx context.Context) error {
	select {
	case <-l.held.Contended():
	case <-l.held.Done(): // it is lost, and Unlock says so
	default:
		return nil
	}
	held := l.held
	l.held = nil
	return held.Unlock(ctx)
}
