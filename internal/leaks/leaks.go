// Package leaks finds goroutines that tests leave behind.
package leaks

import (
	"slices"
	"time"

	"go.uber.org/goleak"
)

// peers are what an embedded etcd of several members leaves for some seconds; see
// package etcdtest.
var peers = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
	goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
}

// Find returns an error when goroutines are left that don't end within a generous bound:
// a watch stream of etcd's client ends some time after the client is closed.
func Find(within time.Duration, opts ...goleak.Option) error {
	err := goleak.Find(opts...)
	for start := time.Now(); err != nil && time.Since(start) < within; {
		err = goleak.Find(opts...)
	}
	return err
}

// FindBesidePeers is Find where clusters of several members were, whose peer
// connections don't count.
func FindBesidePeers(within time.Duration, opts ...goleak.Option) error {
	return Find(within, slices.Concat(peers, opts)...)
}
