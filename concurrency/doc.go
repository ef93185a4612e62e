// Package concurrency has the types and functions of go.etcd.io/etcd/client/v3/concurrency, on the locks of etcdlock. A
// program changes the import path:
//
//	import "github.com/etcdlock/etcdlock/concurrency"
//
// The keys in etcd are the same, and so are the values of an Election. So programs with either package queue with each
// other on one name, and can be changed over one at a time. With the new path alone these do not happen any more: a Lock that
// goes on after its ctx has ended, an entry that nobody owns and that blocks the lock, a second goroutine of the session that
// gets in, a session that ends after its lease, and some 84 ms for each hand-over. Only code that locks a name
// again under its own lock, by another Mutex of the session, must change: such a Lock waits until its ctx ends.
//
// A Mutex returns no hold. So there is no Done for each lock: Done of the session tells that all of its locks are lost,
// and nothing tells that the entry of one lock was removed. Fence with IsOwner as before. New programs use package etcdlock
// itself. docs/coming-from.md has the calls of both packages side by side, and what differs from etcd's package.
package concurrency
