// Package etcdlock is a fair mutex and a fair read-write lock for services that already run etcd.
//
//	locks := etcdlock.New(client)
//	defer locks.Close()
//	err := locks.Mutex("jobs/report").Do(ctx, func(ctx context.Context, h *etcdlock.Held) error {
//		return report(ctx) // ctx ends when the lock is lost
//	})
//
// A [Client], made by [New], gives locks by name for as long as the process lives. Behind a Client is a [Session]: a lease that is
// kept alive, and granted anew after a loss. An acquisition is a value: a [Held] that is unlocked once, or a [Ticket], a place in the
// queue to wait at. A [Multi] takes several locks at once, without deadlocks. An [Elector] runs a function in one process of many.
//
// # What it guarantees
//
//   - One queue per name, ordered by etcd's create revision. Nobody passes anybody: no Try passes a waiter, no
//     reader passes a writer, no goroutine passes another one of its session.
//   - No two exclusive entries in etcd, and no exclusive and shared entry, are entitled to the lock at the
//     same revision.
//   - A holder learns of its loss. [Held.Context] ends before etcd can give the lock to somebody else because
//     the lease was not renewed, and within 500 ms if somebody revokes the lease or deletes the entry. Both
//     promises hold while the process runs, and its clock runs as fast as etcd's, give or take a tenth.
//   - When ctx ends, the call ends within milliseconds, whether etcd answers or not. After an error of
//     Lock, Try or Enqueue the caller holds nothing and owes nothing; what was left in etcd is removed in the background.
//   - Leader changes, compaction, lost replies, and members that are stopped, hang or are cut off cost time
//     and not the place in the queue.
//
// # What no lock service can give
//
// A process that was paused, by its machine or by a debugger, goes on when it is woken as if it held its lock, until it looks.
// So protect what matters where it is written: in etcd with [Held.Txn], elsewhere by comparing [Held.Token] with the highest
// token seen there. [Held.Valid] looks at the clocks and costs nothing, but makes the gap only smaller.
//
// Clones of a virtual machine that had a session hold the session's locks together: close the Client before the snapshot.
//
// A lock whose holder died stays taken until its lease expires: a TTL after the last renewal, and more if
// etcd elects leaders meanwhile, as each election starts all leases anew.
//
// A leader of etcd that was paused for longer than a TTL may revoke, when it wakes, leases that were renewed with
// its successor (etcd 3.7.3). The holders are told, as of any other revocation.
//
// If a member hangs with its connections open, the news of a loss comes late, by two seconds or half a TTL. Behind
// `etcd grpc-proxy` the news may come late too: see "News that comes late" in docs/operations.md.
//
// A snapshot that is restored brings back the entries and leases of its time. An entry that is newer is lost,
// and its owner is told when the session next asks etcd, within about half a TTL; until then somebody else may
// have the lock. An entry that was released since is in the queue again for as long. Tokens are given out a
// second time, so they no longer fence. A session that finds etcd's revision lower than before, or another
// cluster ID, ends; once as much was written anew, the revision shows nothing. So restore with etcdutl's --bump-revision,
// by more than was written since, and --mark-compacted, which has holders told at once, and start the clients anew.
//
// # Keys
//
//	<name>/<lease>[-<n>]    exclusive: a Mutex, a write lock
//	<name>/r<lease>[-<n>]   shared: a read lock, and the second key of a write lock
//
// Lease and n are in lower-case hex. Etcd's own concurrency.Mutex, `etcdctl lock` and v3lock write the first form, so all these
// locks queue with each other. A concurrency.Mutex on the session's lease would take the session's key for its own: give it
// another lease. Other keys below <name>/ (of a lock <name>/x, or of a lease with a negative ID, which etcd never chooses)
// count in etcd's own locks only: a concurrency.Mutex on "a" waits also for the keys of "a/b".
//
// Keep names apart from data: any key <name>/<hex> is an entry by its form, so data at orders/4711 blocks the
// lock "orders". The log and the error of a wait say so, as does Data of an [Entry]; Break would delete the data.
//
// A client needs read and write rights on the prefix <name>/. A client wrapped by clientv3/namespace works, and
// so does one of etcd's v3client. [Client.Inspect], [Client.Watch], [Client.ListNames] and [Client.Break] look into
// queues from outside; they need no session, and see the entries of etcd's own locks too.
//
// # When something fails
//
//	what happens                         what the caller sees
//	ctx ends in Lock                     ctx's error at once; the entry is removed in the background
//	reply lost, leader changes           nothing: the request is repeated
//	etcd away, shorter than the TTL      waiting goes on; the hold stays
//	etcd away, longer                    Done at the deadline: ErrLost, ErrSessionExpired; a Lock of New waits on
//	lease revoked by somebody            the same, within 500 ms if the hold is watched or the wait near the front
//	entry deleted by somebody            ErrLost alone, in the same time; otherwise within 5/8 of the TTL
//	session closed or orphaned           ErrLost and ErrSessionClosed; waiters: ErrSessionClosed
//	process dies                         the next waiter is granted when the lease has expired
//	process paused for longer            Valid is false at once on waking, Txn says ErrLost
//	etcd refuses (rights, space)         its error, from Lock at once
//	rights on a held lock are revoked    etcd refuses the whole lease: as if it was revoked; the error names the key
//	watches break, compaction            nothing: the queue is read again, in the same place
//
// # Hand-over inside a process
//
// When a holder releases a lock and the next entry in the queue is of the same session, that entry has the lock
// at once, while the former key is on its way out. Other sessions see nothing of this: they wait for both keys.
//
// The fence of a hold comes into use with the first call of its [Held.IsOwner], [Held.Txn], [Held.SetValue] or
// [Held.Downgrade], or when a reply to its Lock is lost. From then on the next entry waits until etcd has confirmed
// the release, so that a late transaction of the former holder fails. After the end of the hold, IsOwner and Txn
// make comparisons that are never true. A guard that is built by hand from Key and Token brings no fence into use:
// until Unlock has returned nil, such a guard may be true while the next holder of the session is in, unless IsOwner
// was called before. After a loss, no other entry of the session has the lock while such a guard is true.
//
// A hold that was lost hands nothing over. If somebody removes an entry that waits behind its own session, its
// owner learns that with the reply to the release at the latest.
//
// What each call costs, in requests, is in docs/protocol.md, with the invariants I1 to I6 that the code keeps. Where to find
// what in the code is in CONTRIBUTING.md.
package etcdlock
