// Package peer shows how each lock service that is compared is used: one
// adapter a peer, no tricks in any of them.
package peer

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Peer is a lock library together with the servers it is used on.
type Peer struct {
	Name string
	// Open makes a session: what one process of a service would have. i numbers
	// the sessions of a measurement from 0.
	Open func(ctx context.Context, i int) (Session, error)
}

// A Session is one participant. What it holds is lost when it ends.
type Session interface {
	// Mutex makes a handle on the lock of that name; it makes no request.
	Mutex(name string) Locker
	Close(ctx context.Context) error
}

// A Locker is used by one goroutine at a time, which unlocks what it locked.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// An RWSession is a session that has read-write locks too.
type RWSession interface {
	Session
	RWMutex(name string) RWLocker
}

// An RWLocker is a Locker for writing, and for reading one of many.
type RWLocker interface {
	Locker
	RLock(ctx context.Context) error
	RUnlock(ctx context.Context) error
}

// Clients gives the etcd client of the i-th session. Several sessions may share
// a client, which is one connection.
type Clients func(i int) *clientv3.Client

// ttl is for how many seconds a lock outlives a process that dies, with every
// peer.
const ttl = 60
