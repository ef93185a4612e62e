// Package etcdtest runs a real etcd of one or several members inside a Go
// test, breaks it, and mends it.
//
//	func TestMyService(t *testing.T) {
//		cluster := etcdtest.Start(t)
//		client := cluster.Client(t)
//		// ... use the client; all is closed when the test ends
//	}
//
// [Start] never skips: a test fails when etcd can't start. Code without a
// [testing.TB], such as TestMain, an example or a command, uses [New] and
// [Cluster.Close].
//
// # Defaults
//
// A cluster has one member, listens on loopback only, and logs nothing but the
// reason of a crash. It differs from a production etcd in two points:
//
//   - It doesn't fsync. A write then costs tens of microseconds and the tests of
//     several packages don't queue for one disk. What a test can observe is the
//     same, since stopping a member (even abruptly) loses nothing that was
//     handed to the operating system. [WithFsync] turns it on.
//   - Its clock is quicker: one member ticks each 10 ms and elects itself after
//     at most 0.2 s; several members tick each 50 ms and elect after 0.6 to
//     1.2 s. The shortest lease that etcd grants is 1.5 times the election
//     timeout, rounded up to seconds, so with either setting a TTL of 1 s is
//     granted as 1 s (etcd's own default would make it 2 s). Several
//     members run in one process: a pause of the process stops all their
//     clocks at once and costs no leader.
//
// [WithConfig] changes any of this.
//
// # Breaking it
//
//   - [Member] stops, kills, restarts and isolates one server. [Cluster.MoveLeader] and
//     [Cluster.Compact] do what their names say.
//   - [Proxy] damages the network between one client and the members: it discards,
//     holds back or delays bytes in either direction, and resets or refuses connections.
//   - [Tap] sits inside a client: it loses the reply of a chosen call, fails it, or sends
//     it after the caller has left; it counts calls, and drops or rewrites messages of
//     the Watch and LeaseKeepAlive streams.
//
// Proxy and Tap are options of [Cluster.Client], so that one client is broken while
// another one looks on:
//
//	tap, proxy := etcdtest.NewTap(), cluster.Proxy(t)
//	client, observer := cluster.Client(t, tap, proxy), cluster.Client(t)
//
// # Other servers
//
// [Attach] makes clients, proxies and taps for servers that run already, such as
// processes of the version that runs in production.
//
// # Leak checks
//
// After the end of a one-member cluster none of its goroutines is left. With several
// members a few connections between them outlive it by up to 5 s: etcd's peer
// listener overrides the deadline by which net/http wakes its reader, and
// nothing outside can close them. A goleak check then needs the option
// goleak.IgnoreAnyFunction for each of
//
//	net/http.(*conn).serve
//	net/http.(*connReader).backgroundRead
//	net/http.(*persistConn).readLoop
//	net/http.(*persistConn).writeLoop
package etcdtest
