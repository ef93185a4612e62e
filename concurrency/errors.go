// The errors: etcd's own, but for ErrLockReleased, so that a file of a program that still imports etcd's package can compare
// with them.

package concurrency

import (
	"errors"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// The errors of a Mutex. ErrSessionExpired may also say that a waiter's entry was removed.
var (
	ErrLocked         = concurrency.ErrLocked
	ErrSessionExpired = concurrency.ErrSessionExpired
	ErrLockReleased   = errors.New("mutex: lock has already been released") // client 3.5 has none
)

// The errors of an Election.
var (
	ErrElectionNotLeader = concurrency.ErrElectionNotLeader
	ErrElectionNoLeader  = concurrency.ErrElectionNoLeader
)
