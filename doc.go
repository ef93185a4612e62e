// Package etcdlock is a fair mutex and a fair read-write lock on etcd.
package etcdlock
