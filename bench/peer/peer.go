// Package peer has one adapter for each lock service that is compared. The adapters
// use the services in the ordinary way, without tuning.
package peer

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Peer is a lock library together with its servers.
type Peer struct {
	Name string
	// OneEach says that a session serves one contender only, so that each goroutine needs
	// its own. Of other peers a process has one session.
	OneEach bool
	// Open makes a session of the i-th process.
	Open func(ctx context.Context, i int) (Session, error)
}

// A Session is one participant. It loses its locks when it ends.
type Session interface {
	// Mutex makes a handle on the lock of that name; it makes no request.
	Mutex(name string) Locker
	Close(ctx context.Context) error
}

// A Locker is used by one goroutine at a time; the same goroutine locks and unlocks it.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// An RWSession is a session that has read-write locks too.
type RWSession interface {
	Session
	RWMutex(name string) RWLocker
}

// An RWLocker is a Locker for one writer, or for many readers at once.
type RWLocker interface {
	Locker
	RLock(ctx context.Context) error
	RUnlock(ctx context.Context) error
}

// Clients returns the etcd client of the i-th process, which is one connection.
type Clients func(i int) *clientv3.Client

// ttl is how many seconds a lock stays after its process has died. It is the same for
// every peer, and etcdlock's default.
const ttl = 10
