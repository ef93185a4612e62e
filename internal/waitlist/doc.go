// Package waitlist keeps what one session has in one lock's queue, its entries, and says which of them has the lock and
// what must be asked of etcd for the others. It makes no request: it is told of what was registered, read, heard and
// released. While there is something to ask, a list has one agent, which asks Next what to do; the goroutine of an
// entry waits only for Wake. The package knows nothing of sessions and leases.
//
// # What is known of a queue
//
// What a request has shown is kept as it was shown, for exclusive and for shared keys apart: a view. A reading replaces
// a view and is never merged into it. From then on keys only leave it, as nothing can be added to a queue but at its end.
//
//	view.keys       the keys that were there, less those that have left since
//	view.listed     the revision of the reading: all of the keys were there at this revision
//	view.low, upTo  which keys the view is about: those that were created above low and up to upTo
//	List.at         a revision. If a waiting entry's seen is not before it, this is true: each key below the entry that
//	                the views are about, and do not have, had been deleted by seen, except keys of own entries that are over
//	Part.seen      the last revision at which the entry is known to have been in the queue
//
// That a key has gone stays true, so at only rises, whoever tells of the key: a reading that no longer shows a key, a watch, a
// request that does not find an entry. That a key is there is true of one revision only. So listed belongs to a reading,
// and seen to an entry, and neither says anything about the rest of the queue.
//
// Of two keys the lower one has the lower create revision, and no two entries of different sessions share a revision.
// Invariant (I1): if an entry is granted, there was a revision at which the entry was in the queue and no lower key
// blocked it, except keys of entries of its own list that are over: these had left without a fence, or were removed.
// entitledLocked decides this. Why that is enough: an entry that was created at rev and is there at seen was there in between.
// A view with low 0 and an upTo of rev or more is about all keys below the entry. Since seen is not before at, each of these
// keys that the view lacks had been deleted by seen. So what was below the entry at seen is what the views have, and own
// entries that are over.
//
// So when an entry of another session is granted, each earlier entry that excludes it has been deleted. That its holder no
// longer believes in it by then is decided elsewhere: a release ends the hold before the removal is sent (release.go of
// package etcdlock), and a session ends before etcd can have taken its lease away (I4: Record in package lease). If
// somebody else deletes the key of a hold, its holder is told of that, and until then only the token tells the two apart.
//
// # What reaches a list late
//
// The reply to a request may show keys whose deletion the list has heard of while the request was on its way. The log has
// these deletions, and each reply is read through it. It is about keys and revisions, so it can't be wrong for a reply; it
// is only trimmed, of what every request on its way is known to come after.
//
// # Rules
//
// Each has tests that fail without it: go test -run _V3 ./internal/waitlist. Random worlds (TestModel_I1) try all together.
//
//	V1 one agent asks, for the front-most waiting entry, as the others have to wait for it anyway: agent.go
//	V2 a reading replaces a view: applyLocked
//	V3 each reply is read through the log: log.go
//	V4 at rises with all that may have gone: goneByLocked; who is granted was there at that time: entitledLocked
//	V5 what is covered and absent is lost: absentLocked; no reading is older than what is known: readLocked
//	V6 few clients are told of a release: a watch on all is for a good part of the queue only: plan.go, watch.go
package waitlist
