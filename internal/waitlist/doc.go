// Package waitlist keeps the entries of one session in one lock's queue. It says which of them has the lock, and what
// must be asked of etcd for the others. It makes no request: its callers tell it what was registered, read, heard and
// released. While there is something to ask, a list has one agent, which asks Next what to do; the goroutine of an
// entry waits only for Woken. The package knows nothing of sessions and leases.
//
// # What is known of a queue
//
// What a request has shown of the exclusive keys, or of the shared ones, is a view. A reading replaces a view and is never
// merged into it. From then on keys only leave the view, since nothing is added to a queue but at its end.
//
//	view.keys       the keys that were there, less those that have left since
//	view.listed     the revision of the reading: all of the keys were there at this revision
//	view.low, upTo  which keys the view is about: those that were created above low and up to upTo
//	Part.seen       the last revision at which the entry is known to have been in the queue. If a watch on the entry's key has since
//	                told of a deletion, and not of this key's, the entry was still there then: lastSeenLocked
//	List.goneBy     the revision by which every missing key had been deleted. A key is missing if a view is about it and does not
//	                have it. So an entry that was seen at goneBy, or later, was still in the queue after all missing keys below it
//	                had gone. Keys of own entries do not count: the state of an own entry says whether the entry is in the way
//
// upTo is never beyond listed: a reading shows no key that was created later. So a missing key was created and deleted by
// listed, or was deleted since, or was never there.
//
// That a key has gone stays true, so goneBy only rises, until the list forgets all:
//
//   - when a key leaves a view;
//   - when etcd confirms the removal of an own entry that was in the way;
//   - when a reply shows that an own entry is not in the queue any more;
//   - when a reading is the first that covers the keys below an entry, and the entry was last seen before that reading: a key may
//     have gone in between.
//
// That a key is there is known only of the revision at which it was seen. listed dates the keys of one reading, and seen dates one
// entry. Neither is evidence for any other key.
//
// When nobody waits and no request is on its way, the list forgets views, goneBy and log: see unlock. The next entry finds it as new.
//
// Of two keys the lower one has the lower create revision. No two entries of a queue share a revision. Each request has a
// revision of its own, and the sender (package sender) puts at most one enqueue of a name into a request. So a list finds
// its entry by the revision alone: findLocked. The two keys of a write lock share one, and are one entry. While its txn is on its way
// an entry has no revision yet, and is not among List.parts: the list knows its request as a flight, see log.go. If a reading shows
// the entry's key meanwhile, the key counts as another session's.
//
// # Which own entries are in the way
//
// An entry is over if it is in nobody's way, wherever its key is: method over. Of the states (list.go) these two are over:
//
//   - left: the entry was released or withdrawn, and its holder has used no fence. (With a fence, a transaction of the former holder
//     compares the entry's key, and may still be on its way: nobody else may have the lock before the key is gone.)
//   - missing: somebody else removed the entry while it waited. It never had the lock, so it has no holder and no fence.
//
// An entry in the state removing is not over, although nobody wants it any more: it was released with a fence, or is part of a Multi
// that was given up, or was lost while it was held. The entries behind wait until Removed says that nothing of the entry is in etcd,
// and must have been seen at that revision or later.
//
// # Who has the lock
//
// Invariant (I1): if an entry is granted, there was a revision at which the entry was in the queue and no lower key
// blocked it, except keys of entries of its own list that are over. entitledLocked decides this. Why that is enough: an entry
// that was created at rev and is there at seen was there in between. A view with low 0 and an upTo of rev or more is about
// all keys below the entry. Since seen is not before goneBy, each of these keys that the view lacks had been deleted by seen. So
// a key that was below the entry at seen is still in a view, or is that of an own entry. entitledLocked rules out the former, and
// the latter unless that own entry is over. So of two entries of one session, the later one is granted when the earlier one is
// over, which its holder has left; and of two sessions' entries, when the key of the earlier one has been deleted.
//
// So when an entry of another session is granted, each earlier entry that excludes it has been deleted. Other packages see
// to it that the holder of the earlier entry no longer believes in its hold by then: a release ends the hold before the
// removal is sent (release.go of package etcdlock), and a session ends before etcd can have taken its lease away (I4:
// Record in package lease; whether the lease is still good is looked at after the grant, by acceptGrant in waiter.go). One case is
// left that these packages can see: somebody else deletes the key of a hold, or of a waiter whose list grants it before it hears of
// that. Then two sessions may believe that they have the lock until a reply, a watch or a check tells, and only the token tells the
// two apart. What no lock can rule out, a process that is paused, a clock that runs wrong, or a restored snapshot, is in the
// comment of package etcdlock.
//
// # What reaches a list late
//
// The reply to a request may show keys whose deletion the list has heard of while the request was on its way. The log has
// these deletions, and each reply is read through it. What the log says of a key and a revision is true of every reply. So
// nothing must be taken out of the log for a reply, and it is trimmed only of what is older than every request on its way.
//
// # Rules
//
// Each has tests that fail without it: go test -run _V3 ./internal/waitlist. Random worlds (TestModel_I1) try all together.
//
//	V1 one agent asks, for the front-most waiting entry, as the others must wait for that entry anyway: agent.go
//	V2 a reading replaces a view: applyLocked
//	V3 each reply is read through the log: log.go
//	V4 goneBy rises with all that may have gone; who is granted was there at that time: goneByLocked, entitledLocked
//	V5 an own entry that a reading is about and does not show is lost; no reading is older than what is known: absentLocked, readLocked
//	V6 few clients are told of a release: a watch on all is for a good part of the queue only: plan.go, watch.go
package waitlist
