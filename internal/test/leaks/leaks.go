// Package leaks finds goroutines that still run after the tests have ended.
package leaks

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// peers ignores the goroutines that an embedded etcd of several members leaves for some
// seconds; see package etcdtest.
var peers = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
	goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
}

// Find returns an error if goroutines are left that do not end within the given time. The
// time must be generous, because a watch stream of etcd's client ends some time after the
// client is closed.
func Find(within time.Duration, opts ...goleak.Option) error {
	err := goleak.Find(opts...)
	for start := time.Now(); err != nil && time.Since(start) < within; {
		err = goleak.Find(opts...)
	}
	return err
}

// FindBesidePeers is like Find, but ignores the peer connections of clusters with several
// members.
func FindBesidePeers(within time.Duration, opts ...goleak.Option) error {
	return Find(within, slices.Concat(peers, opts)...)
}

// Library returns the stacks of this process's goroutines that are in the library or in the watch of
// an etcd client.
func Library() string {
	buf := make([]byte, 16<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var own []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "etcdlock.(*") && !strings.Contains(g, "testing.tRunner") || strings.Contains(g, "serveSubstream") {
			own = append(own, g)
		}
	}
	return strings.Join(own, "\n\n")
}
