package main

// A row is something that happens to users of locks on etcd.
type row struct {
	id, what string
	// elsewhere are tests that show the row under another name than its own.
	elsewhere []string
	// instead says why no test shows it.
	instead string
}

var rows = []row{
	{id: "A1", what: "the reply to an acquisition is lost, or ctx ends while it is on its way"},
	{id: "A2", what: "an Unlock is repeated after the next holder has the key"},
	{id: "A3", what: "TryLock's ctx ends between its two requests"},
	{id: "A4", what: "Unlock with a ctx that has ended"},
	{id: "A5", what: "Unlock's request fails once"},
	{id: "A6", what: "waiting fails for another reason than ctx"},
	{id: "A7", what: "stray keys, and entries without a lease, below the lock's name"},
	{id: "A8", what: "the reply to the grant of the lease is lost"},
	{id: "B1", what: "ctx ends while the network is gone"},
	{id: "B2", what: "a session is made while the network is gone"},
	{id: "B3", what: "the ctx that a session was made with ends"},
	{id: "B4", what: "a session is closed while the network is gone"},
	{id: "B5", what: "a sync.Locker can only panic"},
	{id: "B6", what: "a waiter's own lease goes"},
	{id: "B7", what: "a lock is used on after its session expired"},
	{id: "B8", what: "a thousand acquisitions are cancelled: what leaks"},
	{id: "C1", what: "the watch is on a member that is cut off"},
	{id: "C2", what: "compaction, then a reconnect"},
	{id: "C3", what: "compaction between the read and the watch"},
	{id: "C4", what: "compaction makes a waiter spin"},
	{id: "C5", what: "the event of the deletion is lost"},
	{id: "C6", what: "the watch breaks, the client is closed"},
	{id: "C7", what: "events come late"},
	{id: "C8", what: "observers are not told that there is no leader", instead: "no such API: the package has locks only"},
	{id: "D1", what: "two goroutines of one session", elsewhere: []string{"TestMutex_OneSessionManyGoroutines"}},
	{id: "D2", what: "TryLock beside a waiter of the same session"},
	{id: "D3", what: "two goroutines share one Mutex", elsewhere: []string{"TestMutex_OneSessionManyGoroutines"}},
	{id: "D4", what: "one name is the beginning of another", elsewhere: []string{"TestMutex_NestedNamesDontMeet", "TestNamesNeverCollide"}},
	{id: "D5", what: "the waiter's key is deleted and written anew"},
	{id: "D6", what: "the guard of a transaction when nothing is held"},
	{id: "D7", what: "each step reads the whole queue", elsewhere: []string{"TestRequests_Uncontended", "TestRequests_ContendedFirstInLine", "TestRequests_ContendedDeeper", "TestRequests_WriterBehindReaders"}},
	{id: "D8", what: "a lock is taken by its own holder", elsewhere: []string{"TestDo"}},
	{id: "E1", what: "the lease of the first of two waiting writers goes"},
	{id: "E2", what: "the lease of the only waiter goes, then the holder leaves"},
	{id: "E3", what: "an entry's value is rewritten"},
	{id: "E4", what: "RLock twice"},
	{id: "E5", what: "readers, then a writer, then readers", elsewhere: []string{"TestInvariant_I2_OrderOfReadersAndWriters"}},
	{id: "F1", what: "etcd is gone: is the holder told before another can have the lock?"},
	{id: "F2", what: "the same, with no renewal ever answered"},
	{id: "F3", what: "the lease is revoked by somebody else"},
	{id: "F4", what: "the holder's process is paused (SIGSTOP) for twice the TTL"},
	{id: "F5", what: "the entry is deleted, the lease lives"},
	{id: "F6", what: "etcd revokes a lease that is being renewed"},
	{id: "F7", what: "renewals are confirmed though the lease is gone"},
	{id: "F8", what: "changes of the leader while a holder is dead"},
	{id: "F9", what: "a lease that never expires"},
	{id: "F10", what: "etcd grants a longer TTL than was asked for"},
	{id: "F11", what: "renewals pile up, or go on after the end"},
	{id: "F12", what: "a member hangs with its connections open, paused (SIGSTOP) or cut off from the client"},
	{id: "F13", what: "auth: tokens expire, roles change, rights are few"},
	{id: "F14", what: "the holder is stuck and its lease is renewed", instead: "no limit to a hold: `Do`, ctx and the token are for the caller to use"},
	{id: "F15", what: "the lock is lost while the function under it runs"},
}
