// Package etcdlock is a fair mutex and a fair read-write lock for services that
// already run etcd.
//
// A [Session] is a lease that is kept alive. A [Mutex] or [RWMutex] is a name in
// a session. An acquisition is a value: a [Held] that is unlocked once, or a
// [Ticket], a place in the queue to wait at.
//
// # What it guarantees
//
//   - One queue per name, ordered by etcd's create revision. Nobody passes
//     anybody: not a Try, not a reader a writer, not a goroutine of the same
//     session another.
//   - Of the entries in etcd, never two exclusive ones, nor an exclusive and a
//     shared one, are entitled to the lock at the same revision.
//   - A holder learns of its loss: [Held.Context] ends before etcd can give the
//     lock to somebody else because the lease was not renewed, and within
//     500 ms if somebody revokes the lease or deletes the entry. That is so while
//     the process runs, and etcd's clocks and its own run alike to a tenth.
//   - A ctx that ends ends the call within milliseconds, whether etcd answers or
//     not. After any error but Unlock's the caller holds nothing and owes
//     nothing; what was left in etcd is removed in the background.
//   - Leader changes, compaction, lost replies, and members that are stopped,
//     hang or are cut off cost time and not the place in the queue.
//
// # What no lock service can give
//
// A process that is paused, by its machine or by a debugger, goes on when it is
// woken as if it held its lock, until it looks. So protect what matters where it
// is written: what is in etcd with [Held.Txn], what is elsewhere by its
// comparing [Held.Token] with the highest it has seen. [Held.Valid] looks at the
// clocks and costs nothing; it narrows the gap without closing it.
//
// A lock whose holder died stays taken until its lease expires: a TTL, and more
// if etcd elects leaders meanwhile, as each election starts all leases anew. The
// TTL is a lower bound and no more.
//
// A member that was the leader, and was paused for longer than a TTL, may revoke
// leases on waking that were renewed with its successor (etcd 3.7.3): their
// holders are told, as of any other revocation.
//
// A watch on a member that hangs, with its connections open, is silent. Waits and
// watched holds ask for themselves each half TTL then, so that this is how long
// the news takes. A client with a DialKeepAliveTime (gRPC takes 10 s at least)
// and a DialKeepAliveTimeout leaves such a member after the two.
//
// A snapshot that is restored brings back the entries and leases of its time.
// Who came since has lost its entry, and is told when the session next asks
// etcd, for a wait and a watched hold within about half a TTL; until then
// somebody else may have the lock. What was given back since is in the queue
// again, until its session takes that lock anew or ends. And tokens are given
// out a second time, so that they no longer fence: restore with etcdutl's
// --bump-revision, by more than was written since, and --mark-compacted, which
// has holders told at once too, and start the clients anew.
//
// # Keys
//
//	<name>/<lease>[-<n>]    exclusive: a Mutex, a write lock
//	<name>/r<lease>[-<n>]   shared: a read lock, and the second key of a write lock
//
// Lease and n are in lower-case hex. Etcd's own concurrency.Mutex, `etcdctl lock`
// and v3lock write the first form, so all of them queue with each other. Other
// keys below <name>/, those of a lock <name>/x among them, are passed over, but
// not by the others: a concurrency.Mutex on "a" waits also for the keys of
// "a/b". The value, JSON, is for people.
//
// A client needs read and write rights on the prefix <name>/. A client wrapped
// by clientv3/namespace works.
//
// # Looking at a queue
//
// [Inspect] shows a lock's queue and [Watch] each change of it, [Names] the locks
// there are, and [Break] takes an entry out. They need a client and no session,
// and see the entries of etcd's own locks too.
//
// # For as long as the process lives
//
// A session that is lost stays lost, and its locks with it. Locks of a [Pool] can
// be taken again, in the pool's next session, and a Lock that waits goes on there
// by itself. An [Elector] runs a function in one process of many, the leader, and
// campaigns again after a loss. Neither takes a lock anew that was held.
//
// # States of an entry
//
//	enqueued   its keys are written, or may be
//	held       granted
//	released   given back by its holder
//	abandoned  withdrawn before its owner had it
//	lost       removed by somebody else, or with its session
//
// # Invariants
//
//	I1  An entry has the lock only after a revision at which it was in the queue
//	    and nothing that blocks it was below. Nothing is ever added below.
//	I2  Exclusive entries wait for all lower ones, shared ones for all lower
//	    exclusive ones.
//	I3  The queue is judged only at a revision at which the entry is in it, by a
//	    read that is pinned there or linearizable.
//	I4  The session's deadline counts from before the renewal was sent.
//	I5  An entry is its key and its create revision: what releases it compares
//	    both.
//	I6  A key is used anew only when its last use is settled: its removal is
//	    confirmed, and no write of it is to be expected. One that comes even so,
//	    as when a member wakes after minutes, is removed within about a TTL.
//
// # When something fails
//
//	what happens                         what the caller sees
//	ctx ends in Lock                     ctx's error at once; the entry is removed behind
//	reply lost, leader changes           nothing: the request is repeated
//	etcd away, shorter than the TTL      waiting goes on; the hold stays
//	etcd away, longer                    Done at the deadline: ErrLost, ErrSessionExpired
//	lease revoked by somebody            the same, within 500 ms where a hold is watched or a wait near the front
//	entry deleted by somebody            ErrLost alone, as soon; deeper in the queue within 5/8 of the TTL
//	session closed or orphaned           ErrLost and ErrSessionClosed; waiters: ErrSessionClosed
//	process dies                         the next one is granted when the lease has expired
//	process paused for longer            Valid is false at once on waking, Txn says ErrLost
//	etcd refuses (rights, space)         its error, from Lock at once
//	watches break, compaction            nothing: looked at again, in the same place
//
// # Cost
//
// Lock and Unlock are one request and one commit each. A Lock that waits costs
// one watch and up to one read behind one or two others; deeper in the queue two
// watches and two reads, and one read more where more than 16 keys are before it; a
// write lock behind any number of readers one watch and up to three reads. A waiter
// has one watch at a time at most. A release wakes three waiters, one to take the lock, one
// to count, and one to prepare, or the readers next in line.
//
// Several who wait on one client share a watch on all of the queue if they are at
// least a quarter of it, be they goroutines of one session or of several; all but
// the first, who came alone. Behind up to 16 keys those who come when the watch is open
// read nothing, and those who waited for it read once together. So etcd tells each
// release to four such clients at most, and one of them wakes up to sixteen waiters.
// Readers on one client that wait for the same writer share a watch in any case. Who
// comes when nothing was heard of such a watch for somewhat over a second opens
// another one, which those behind share.
//
// Fewer than a quarter, who wait for an exclusive hold, stand in line: only the first
// two on a client that are not near the front have watches, and those that are. The
// others ask etcd nothing until one of these is near, but for their rechecks. So 5,000
// waiters on 8 clients have some 20 watches.
//
// A request that has no answer after 300 ms, or four times as long as they took
// lately, is sent again beside the first one, twice at most, and then after a
// second all anew: a member that hangs delays a lock by that much.
package etcdlock
