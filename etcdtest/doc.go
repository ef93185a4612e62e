// Package etcdtest runs a real etcd cluster of one or more members inside a Go test,
// injects faults into it, and repairs it.
//
//	func TestMyService(t *testing.T) {
//		cluster := etcdtest.Start(t)
//		client := cluster.Client(t)
//		// ... use the client; client and cluster are closed when the test ends
//	}
//
// [Start] never skips a test: the test fails if etcd can't start. Code without a
// [testing.TB], such as TestMain, an example or a command, uses [New] and
// [Cluster.Close].
//
// # Defaults
//
// A cluster has one member, listens on loopback only, and logs nothing except the
// reason for a crash. It differs from a production etcd in two ways:
//
//   - It does not call fsync. A write then takes tens of microseconds, and the tests of
//     several packages do not compete for one disk. A test observes the same behaviour,
//     because stopping a member, even abruptly, loses no data that was handed to the
//     operating system. [WithFsync] turns fsync on.
//   - Its elections are faster. A single member ticks every 10 ms and elects itself
//     within 0.2 s; the members of a larger cluster tick every 50 ms and elect a leader
//     in 0.6 to 1.2 s. The shortest lease that etcd grants is 1.5 election timeouts,
//     rounded up to seconds, so in both cases a TTL of 1 s is granted as 1 s (with
//     etcd's own defaults it would become 2 s). All members run in one process, so a
//     pause of the process stops all their clocks together and causes no election.
//
// [WithConfig] changes any of this.
//
// # Faults
//
//   - [Member] stops, kills, restarts and isolates one server. [Cluster.MoveLeader]
//     changes the leader, and [Cluster.Compact] compacts the history.
//   - [Proxy] disturbs the network between one client and the members: it discards,
//     holds back or delays bytes in either direction, and resets or refuses connections.
//   - [Tap] intercepts the calls of a client: it drops the reply of a chosen call, makes
//     the call fail, or sends it after its caller has returned. It also counts calls, and
//     drops or rewrites messages of the Watch and LeaseKeepAlive streams.
//
// Proxy and Tap are options of [Cluster.Client], so a test can disturb one client while
// another client observes the result:
//
//	tap, proxy := etcdtest.NewTap(), cluster.Proxy(t)
//	client, observer := cluster.Client(t, tap, proxy), cluster.Client(t)
//
// # Other servers
//
// [Attach] makes clients, proxies and taps for servers that already run, such as
// processes of the version that is used in production.
//
// # Leak checks
//
// When a cluster of one member is closed, none of its goroutines is left. With several
// members, a few connections between them stay open for up to 5 s after Close: etcd's
// peer listener overrides the deadline that net/http uses to wake its reader, and no
// code outside etcd can close these connections. A goleak check then needs the option
// goleak.IgnoreAnyFunction for each of
//
//	net/http.(*conn).serve
//	net/http.(*connReader).backgroundRead
//	net/http.(*persistConn).readLoop
//	net/http.(*persistConn).writeLoop
package etcdtest
