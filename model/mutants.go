package main

import "cmp"

// A mutant is the protocol without one of its lines, ok(number) in the model.
type mutant struct {
	Number  int
	Without string // the line
	Bounds  string
	Found   string // the assertion that notices, by its name in the model
	Why     string // what the trail shows
}

// fileOf are the models of the mutants that are not of lock.pml.
var fileOf = map[int]string{25: multi, 26: multi, 27: multi, 29: renew, 30: renew, 31: restore, 32: restore, 33: adopt, 34: adopt, 35: adopt, 36: adopt, 37: adopt}

func (m *mutant) file() string { return cmp.Or(fileOf[m.Number], lock) }

var mutants = []mutant{
	{
		1, "a key stays in use until its last use is settled", "-DN=2 -DPAIR=1 -DFAULTS=1", "I6",
		"A Put was sent twice, and the entry was released when its second copy was still on its way. The copy writes the key again, which the session counts as free: the next acquisition " +
			"of that name would take it. So a key is free only when no write of it can come.",
	},
	{
		2, "an entry whose Put was sent again is settled", "-DN=2 -DPAIR=1 -DFAULTS=1", "I6",
		"The reply to one copy says that the entry is there, and it was released. The other copy comes after that and writes an entry that nobody waits for or holds. " +
			"So whatever was sent twice counts as ambiguous, also when it was answered.",
	},
	{
		3, "Try writes its entry only where nothing is in the queue that blocks it, waiting or holding", "-DN=3 -DTRIES=7", "I1, I2",
		"A Try that looks at holders alone is written behind somebody whose entry is there, and who does not know it yet. It counts itself a holder at once, since nobody held the lock. " +
			"So it has passed one that was there before, and both have the lock.",
	},
	{
		4, "after the watch is open, see whether the blocker is still there", "-DN=2", "served",
		"The blocker leaves after it was chosen and before the watch is open. A watch from now tells only what comes later. " +
			"So the waiter waits for an event that has been, on a lock that is free.",
	},
	{
		5, "the read after an event is pinned, at a revision at which the own entry is in the queue", "-DN=3 -DCANCELS=1", "I1, I2",
		"A member that lags answers with the queue of a time before anybody was in it. That shows nobody below, because it does not show the reader's own entry either. " +
			"So a waiter is granted while the first in the queue has the lock.",
	},
	{
		6, "when the blocker went, look at the queue again", "-DN=3 -DCANCELS=1", "I1, I2",
		"The blocker was the entry next below, and it gave up waiting. The entry before that one holds the lock all the time. " +
			"So the deletion of a blocker is no grant: it says only that it is time to look.",
	},
	{
		7, "a look asks also whether the own entry is there", "-DN=2 -DOTHERS=1", "I1",
		"Somebody removes the waiter's entry, and then its blocker leaves. The look shows nothing below, at a revision at which the waiter is not in the queue. " +
			"So it counts itself the holder, and whoever comes next is granted as well.",
	},
	{
		8, "a reader waits for every lower writer, not for the holder alone", "-DN=2 -DKINDS=42", "I1, I2",
		"A writer's entry is in the queue, and its owner has not learned so yet. A reader that looks at holders alone passes it. " +
			"So it would have the lock together with the writer, and a stream of readers would keep a writer out for ever.",
	},
	{
		9, "an exclusive entry waits for lower readers too", "-DN=2 -DKINDS=12", "I1, I2",
		"A reader is first in the queue. The mutex behind it waits for exclusive entries alone, and there are none. " +
			"So it is granted beside a reader.",
	},
	{
		10, "a watch that ended or fell silent is replaced, and the queue is looked at", "-DN=2 -DFAULTS=1", "served",
		"The watch is open, and its member hangs. The deletion of the blocker is never heard of. " +
			"So the waiter waits for ever; correctness must not hang on the delivery of one event.",
	},
	{
		11, "the deadline counts from before the renewal was sent", "-DN=2 -DTICKS=5", "I4",
		"Etcd renews the lease, and the reply takes a while. Counted from the reply, the session trusts its lease longer than etcd keeps it. " +
			"So etcd gives the lock to the next one while the holder still believes that it has it.",
	},
	{
		12, "a hold ends at the session's deadline", "-DN=2 -DTICKS=3", "exclusion",
		"No renewal gets through, and the lease expires. A hold that waits to be told so goes on believing. " +
			"So the next one is granted beside it.",
	},
	{
		13, "a fence in use waits for etcd", "-DN=2 -DPAIR=1 -DUSES=1", "fence",
		"The holder sends a guarded transaction, and gives the lock back before that is carried out. The next one of its session has the lock at once, while the former key is still in etcd. " +
			"So the transaction's guard is true, and it writes under somebody else's hold.",
	},
	{
		14, "a lost hold hands nothing over", "-DN=2 -DPAIR=1 -DOTHERS=1", "I1",
		"Somebody revokes the session's lease, and the holder learns that it has lost the lock. The next one of the session counts that as a hold that was released. " +
			"But its own entry went with the same lease, so it is granted without being in the queue.",
	},
	{
		15, "the hand-over waits for other sessions' entries in between", "-DN=3 -DPAIR=1", "I1, I2",
		"Between two entries of one session stands one of another session. The first of them gives the lock back, and hands it to the second. " +
			"So the second has passed the one between.",
	},
	{
		16, "the request that removes an own entry reads also whether the next one is there", "-DN=2 -DPAIR=1 -DOTHERS=1 -DUSES=1", "I1",
		"The next one of the session stands by and has no watch of its own, for nobody but its own session is before it. Somebody removes its entry meanwhile. " +
			"The reply to the release says only that the former holder is gone, so it is granted without being in the queue.",
	},
	{
		17, "a release compares the create revision", "-DN=3 -DPAIR=1 -DFAULTS=1", "exclusion",
		"A release was sent twice, and its second copy is still on its way. The session's next acquisition has the same key, and holds the lock. " +
			"Deleting by name alone, the copy removes that entry, and the next one is granted beside its holder.",
	},
	{
		18, "the guard of a transaction compares the create revision", "-DN=2 -DPAIR=1 -DUSES=1", "fence",
		"A guarded transaction is on its way when its hold ends. The session's next acquisition has the same key. " +
			"A guard that asks for the key alone is true again, and the former holder writes under its successor's hold.",
	},
	{
		19, "a downgrade compares the create revision", "-DN=3 -DPAIR=1 -DKINDS=244", "exclusion",
		"A downgrade is on its way when its hold is released. The session's next writer has the same keys. " +
			"Deleting by name alone, the downgrade removes the exclusive key of that writer, and a reader is granted beside it.",
	},
	{
		20, "a release is repeated until etcd has confirmed it", "-DN=2 -DFAULTS=1", "served",
		"The only copy of a release is lost. Nobody holds the lock, and its entry stays for as long as its session lives. " +
			"So the next one waits behind nobody.",
	},
	{
		21, "who gives up waiting withdraws its entry", "-DN=2 -DCANCELS=1", "served",
		"A waiter's ctx ends, and it goes away. Its entry stays in the queue, and comes to its turn. " +
			"So all behind it wait for a lock that nobody has.",
	},
	{
		22, "who gives up with a request on its way looks for what that writes", "-DN=2 -DCANCELS=1", "I6",
		"A ctx ends before the Put was answered. The Put is carried out after that, under a key that counts as free. " +
			"So an entry is in the queue that nobody knows of, and that jams the lock.",
	},
	{
		23, "what is left of a lost entry is removed", "-DN=2 -DKINDS=44 -DOTHERS=1", "served",
		"Somebody removes one of a writer's two keys. The writer learns that it has lost the lock, and leaves. " +
			"Its other key stays in the queue, and jams the lock.",
	},
	{
		24, "the session sweeps its lease for keys that no entry uses", "-DN=2 -DFAULTS=1 -DLATE=1", "served",
		"A request is carried out after everybody has ceased to look for it, as when a member wakes after minutes. What it writes belongs to nobody. " +
			"So it jams the lock until the session ends, unless the session looks through its lease now and then.",
	},
	{
		25, "one txn writes the entries of all names", "-DN=2", "served",
		"Two acquisitions want the same two names, and take one after the other, in different orders. Each has one and waits for the other's. " +
			"Entries of one revision stand in the same order in every queue, so that of all that wait, the first one waits for nobody that waits.",
	},
	{
		26, "after a wait, one read shows that all entries are there", "-DN=2 -DOTHERS=1", "I1",
		"It had one of its names at once, and waited for the other. Meanwhile somebody removed the entry of the first. " +
			"So there is no revision at which it had both: it asks for all of them before it is granted.",
	},
	{
		27, "a Multi that has lost one entry removes the others", "-DN=2 -DOTHERS=1", "served",
		"Somebody removes one of its entries. It learns that, and leaves. " +
			"Its entries of the other names stay, and jam them.",
	},
	{
		28, "that a hold was downgraded is learned from etcd, where no reply says so", "-DN=2 -DPAIR=1 -DKINDS=24 -DFAULTS=1 -DSTAYS=1", "served",
		"A writer downgrades, etcd carries that out, and the reply is lost. Readers of other sessions see that the exclusive key was removed, and get in. " +
			"A reader of the own session stands by behind the holder, and would wait for its release: so others pass it, for as long as the holder likes.",
	},
	{
		29, "the deadline counts from the earliest renewal that is unanswered", "-DPROXY=1", "I4",
		"A proxy answers all renewals that are open with one reply of etcd, and a second renewal was sent while the first one's reply was late. " +
			"Etcd renewed the lease before the second one was sent. Counted from that, the session trusts its lease longer than etcd keeps it.",
	},
	{
		30, "which renewals are unanswered is asked when a renewal is sent, not when its reply comes", "-DPROXY=1", "I4",
		"One reply of etcd answers two renewals through a proxy, and the session gets the first one's answer first. Then the second is the only one that is unanswered. " +
			"But its answer is that same reply, to a request that was carried out before the second renewal was sent.",
	},
	{
		31, "a session ends when etcd has gone back to an earlier revision", "-DWRITES=0", "exclusion",
		"A session has read the queue, and a snapshot is restored that is older. Somebody else enters the queue, and the session behind it, at revisions that are not above that reading. " +
			"The session judges its new entry by the queue of the former history, which shows nobody below, and both have the lock with their entries in etcd.",
	},
	{
		32, "a write whose revision is no higher than what was seen before it was sent shows that, also where it is the same", "-DWRITES=0", "exclusion",
		"The new entry has the very revision that the session has seen last, of another history. " +
			"For a read that is as it should be; a write always comes behind what was seen before it was sent.",
	},
	{
		33, "Orphan returns when what is on its way is answered", "-DCOPIES=1", "exclusion",
		"A process sends the removal of its entry, and orphans its session before the reply. Its successor adopts the entry, which is still there. " +
			"The removal is carried out after that, since key and revision are the same, and somebody else is granted beside the successor.",
	},
	{
		34, "Adopt takes no key that an acquisition of the session uses", "-DCOPIES=1", "exclusion",
		"A Lock of the successor wanted the key under which the entry of the process before is. Etcd refused that, and Adopt took the key. Then the Lock passes over the key, which frees it. " +
			"So the session's sweep removes the adopted entry as one that nobody uses.",
	},
	{
		35, "where an acquisition of the session uses the key, Adopt waits until that is over", "-DCOPIES=1", "served",
		"A Lock of the successor is about to write where the entry of the process before is. Adopt leaves that key alone, and says that there is nothing to adopt. " +
			"So the entry belongs to nobody, and all wait behind it, the Lock too, for as long as the session lives.",
	},
	{
		36, "Adopt claims the key before it reads whether the entry is there", "-DCOPIES=1", "exclusion",
		"Two calls of Adopt have found the entry, and have read that it is there. One of them takes it, releases it, and its key is free again. " +
			"Then the other one claims the key, of an entry that is gone, and is granted beside whoever has been next.",
	},
	{
		37, "Adopt that gives up frees the key that it has claimed", "-DCOPIES=1", "served",
		"An Adopt has claimed the entry, and its ctx ends before the grant. It leaves the entry as it was, but not the claim. So the next Adopt finds the key in use, " +
			"nobody has the entry, and all wait behind it for as long as the lease lives.",
	},
}
