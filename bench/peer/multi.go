package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/etcdlock/etcdlock"
)

// A MultiSession is a session that can lock several names together.
type MultiSession interface {
	Session
	// Multi makes a handle on the locks of the names, which are sorted; it makes no request.
	Multi(names []string) Locker
}

func (s etcdlockSession) Multi(names []string) Locker {
	parts := make([]etcdlock.Part, len(names))
	for i, name := range names {
		parts[i] = etcdlock.Write(name)
	}
	return &etcdlockMutex{mutex: etcdlock.NewMulti(s.Session, parts...)}
}

// OneByOne is [Etcdlock] without its Multi: it locks several names one after the other in
// their order, so that nobody waits in a circle, and unlocks them in reverse.
func OneByOne(clients Clients) Peer {
	return ofEtcdlock("etcdlock, one by one", clients, func(s etcdlockSession) Session { return oneByOneSession{s} })
}

type oneByOneSession struct{ etcdlockSession }

func (s oneByOneSession) Multi(names []string) Locker {
	locks := make(oneByOne, len(names))
	for i, name := range names {
		locks[i] = s.Mutex(name)
	}
	return locks
}

type oneByOne []Locker

func (locks oneByOne) Lock(ctx context.Context) error {
	for i, l := range locks {
		if err := l.Lock(ctx); err != nil {
			return errors.Join(err, locks[:i].Unlock(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

func (locks oneByOne) Unlock(ctx context.Context) (err error) {
	for _, l := range slices.Backward(locks) {
		err = errors.Join(err, l.Unlock(ctx))
	}
	return err
}

// Several is the peer with n names wherever it would lock one. Its sessions are MultiSessions.
func Several(p Peer, n int) Peer {
	open := p.Open
	p.Open = func(ctx context.Context, i int) (Session, error) {
		s, err := open(ctx, i)
		if err != nil {
			return nil, err
		}
		return severalSession{s.(MultiSession), n}, nil
	}
	return p
}

type severalSession struct {
	MultiSession
	n int
}

func (s severalSession) Mutex(name string) Locker {
	names := make([]string, s.n)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%02d", name, i)
	}
	return s.Multi(names)
}
