// Package waitlist keeps the entries of one session in one lock's queue. It says which of them has the lock, and what
// must be asked of etcd for the others. It makes no request: its callers tell it what was registered, read, heard and
// released. While there is something to ask, a list has one agent, which asks Next what to do; the goroutine of an
// entry waits only for Woken. The package knows nothing of sessions and leases.
//
// # What must not happen
//
// Two entries that exclude each other must never have the lock at once. A new key comes to the end of the queue. So once a list has
// read all keys below an entry, and each one that blocks has gone since, nobody else can be in the way. That is not enough, since
// the entry itself may have gone before its turn:
//
//	revision 15   session X enqueues, and has the lock
//	         18   session P enqueues behind X
//	         19   somebody deletes P's key by hand
//	         20   X releases the lock
//	         21   session C enqueues, finds the queue empty, and has the lock
//
// If the list of P hears of 20 and not of 19, it must not grant P. So it must also know that P was still in the queue at 20.
//
// # What is known of a queue
//
// What a request has shown of the exclusive keys, or of the shared ones, is a view. A reading replaces a view and is never
// merged into it. Between two readings keys only leave a view.
//
//	view.keys       the keys that were there, less those that have left since
//	view.listed     the revision of the reading: all of the keys were there at this revision
//	view.low, upTo  which keys the view is about: those that were created above low and up to upTo, which is not beyond listed. If
//	                such a key is not in the view, the key is not in the queue, and never will be
//	Part.seen       the last revision at which an answer has shown the entry in the queue. If a watch covers the entry's key since
//	                then, and has told of a deletion at a later revision, and not of this key's, the entry was in the queue at that
//	                revision too: lastSeenLocked. What one revision has deleted is told together
//	List.goneBy     a revision by which each missing key had been deleted. A key is missing if a view is about it and does not have
//	                it. Keys of the list's own entries, present or former, are never missing: see below
//
// goneBy only rises, until the list forgets all:
//
//   - when a key leaves a view, to the revision that has deleted the key, or else to that of the reading that does not show it;
//   - when etcd confirms the removal of an own entry that was in the way, or that somebody else may have removed;
//   - when a reply shows that an own entry is not in the queue any more;
//   - to listed, when a new view is about keys below an entry that the old view was not about, and the entry was last seen before
//     listed: such a key may have gone since then. Likewise when the reply to an entry's own txn comes later than such a view.
//
// When nobody waits and no request is on its way, the list forgets views, goneBy and log: see unlock. The next entry finds the
// list as new.
//
// Of two keys the lower one has the lower create revision. No two entries of a queue share a revision: etcd carries each request
// that writes out at a revision of its own, and a request has at most one enqueue of a name (package sender). So a list
// finds its entry by the revision alone: findLocked. A write lock has two keys, an exclusive one and a shared one for Downgrade, of
// one revision. They are one entry. While its txn is on its way an entry has no revision yet, and is not among List.parts: the
// list knows its request as a flight, see log.go. If a reading shows the entry's key meanwhile, the key counts as another session's.
//
// # Which own entries are in the way
//
// An entry is over if it is in nobody's way, wherever its key is: method over. Of the states (list.go) these two are over:
//
//   - left: the entry was released or withdrawn, and its holder has used no fence.
//   - evicted: somebody else removed the entry while it waited. It never had the lock, so it has no holder and no fence.
//
// An entry in the state removing is not over, although nobody wants it any more: it was released with a fence, or is part of a Multi
// that was given up, or was lost while it had the lock. With a fence, a transaction of the former holder that compares the entry's key
// may still be on its way, and fails once the key is gone. The entries behind wait until Removed says that nothing of the entry is in
// etcd, and must have been seen at that revision or later.
//
// # Who has the lock
//
// Invariant (I1): if an entry is granted, there was a revision at which the entry was in the queue, and each lower key that blocked
// it was of an entry of its own list that is over by now. entitledLocked decides this, and that revision is the one at which the
// entry was last seen. If the views of what blocks the entry have low 0, and an upTo that is not below the entry, they are about all
// keys that may block it. If such a key is in no view and is not an own entry's, it was deleted by goneBy, and so by that revision.
// entitledLocked refuses if a blocking key of another session is in a view, and if an own entry that blocks is not over.
//
// So, of two entries that exclude each other, the later one is granted
//
//   - if both are of one session: after the earlier one is over, or its removal is confirmed. Its holder has left it before that;
//   - if they are of two sessions: after the key of the earlier one was deleted.
//
// Other packages see to it that the holder of the earlier entry no longer believes in its hold when its key is deleted: a release ends
// the hold before the removal is sent (release.go of package etcdlock), and a session ends before etcd can have taken its lease away
// (I4: Record in package lease; whether the lease is still good is looked at after the grant, by acceptGrant in waiter.go).
//
// One case is left. Somebody else deletes the key of an entry after the revision at which the entry was last seen. Until a reply, a
// watch or a check tells the list, it may grant the entry, or leave it its lock, and two may believe that they have the lock; their
// tokens tell them apart. Behind an entry of another session a watch tells in time. Behind one of the same session nothing is
// watched for the first 100 ms (guardsLocked): if X and P above are of one session, P may get the lock at 20, beside C.
//
// What no lock can rule out, a process that is paused, a clock that runs wrong, or a restored snapshot, is in the comment of package
// etcdlock.
//
// # What reaches a list late
//
// A reply may show keys whose deletion the list has heard of while the request was on its way. The log has these deletions, and each
// reply is read through it: a key that was created before a deletion of the log is gone. Several replies may be on their
// way. So the log keeps a deletion until every request on its way was sent later.
//
// # Rules
//
// Each has tests that fail without it: go test -run _V3 ./internal/waitlist. Random worlds (TestModel_I1) try all together.
//
//	V1 one agent asks, for the front-most waiting entry, as the others must wait for that entry anyway: agent.go
//	V2 a reading replaces a view: applyLocked
//	V3 each reply is read through the log: log.go
//	V4 goneBy rises with all that may have gone; who is granted was there at that time: goneByLocked, entitledLocked
//	V5 an own entry that a reading is about and does not show is lost; no reading is asked for that is older than what is known:
//	   absentLocked, readLocked
//	V6 the whole queue is watched only by a session that has a good part of it, so that a release wakes few clients: plan.go, watch.go
package waitlist
