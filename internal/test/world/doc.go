// Package world is a test only: random worlds of processes that take the same locks in every way there is, on a fake of etcd in
// a synctest bubble. Requests are slow, get lost, and are carried out late or twice, and watches are late or silent; processes are
// killed or call Orphan, and their successors adopt what is left; two sessions live on one lease; connections stand still for longer
// than a TTL, so that leases expire; in every second world somebody removes entries and leases; and in every third world etcd refuses
// requests for a while. Users are processes whose goroutines make every call of the API, on each other's holds too, with ctxs that
// end at any moment, and that close their sessions beside these calls. Some make more calls at once than a session sends requests. What
// must be so in all worlds:
//
//   - No two holders, as the processes see it, have what excludes the other (I1, I2).
//   - Nobody passes anybody, and no goroutine another one of its session: locks are granted in the order of their entries, and a session
//     sends the entries of a name in the order of the calls. No request removes after it has written, or writes two entries of a name.
//   - No entry has the lock that was removed while another session's entry blocked it, and a hold that was lost hands nothing over (I1).
//   - A write that is guarded by a hold does not come after that of a later holder. If Txn says that etcd has carried it out, etcd has;
//     and after an error without ErrOutcomeUnknown, etcd never does.
//   - No hold is lost while its entry and its session live. When a lease expires its session has ended, with the Contexts of its holds,
//     and no hold on it is valid (I4).
//   - Each call returns when its ctx ends, or its session.
//   - Each error of a user's call is one that the library documents for that call, and after the end of a hold all methods say
//     how the hold has ended. With the end of its session they say that the hold was lost. The hooks are told of the end of each hold.
//   - If Unlock returns nil, nothing of the hold is in etcd; after Downgrade, no key that excludes everybody; and Check does not return
//     nil of an entry that was not there when the call began.
//   - When nothing goes wrong any more, all calls return. Then nothing of a user is in the queues, though its session lives: what is
//     written late is removed within seconds, and then the session uses its keys again (I6).
//   - When all processes have ended, no lease and no entry is left, and no goroutine.
//
// If somebody has removed the entry of a hold, others may be in until its holder is told: other sessions' holders, not those of its own.
//
// In every third world the TTL is a minute: then no lease expires while a connection stands still, and a session finds a late write
// because it looks for it, and not soon by the list of its lease's keys.
//
//	go test ./internal/test/world                          a few worlds
//	go test ./internal/test/world -args -worlds=1000       many
//	go test ./internal/test/world -args -seed=7            the world with this seed
//
// A seed makes the same dice; which goroutine throws them first is up to the scheduler, so play a world a few times.
package world
