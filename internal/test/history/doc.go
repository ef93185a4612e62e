// Package history keeps the history of a run in which locks were used while
// things broke, and judges it.
//
// There are two sides to it. A [Log] is etcd's own: every event, complete and in
// order. A [Record] is what the workers say: which guarded transactions etcd
// carried out for them ([Claim]), when a hold said that it was valid ([Sample]),
// what they did to sets that are kept in etcd ([SetOp]), and each step of an
// acquisition, as hooks report it ([Step]). Four things are asked of them:
//
//   - [Log.CheckGrants]: whoever acted as holder was entitled to the lock at that
//     revision of etcd. This knows no clocks. Porcupine checks it with a queue
//     as its model.
//   - [Log.CheckValid]: no hold said that it was valid after etcd had removed its
//     entry.
//   - [CheckSets]: the sets are linearizable. They are changed only in transactions
//     that a hold guards, by reading the whole, adding one element and writing the
//     whole back, so that two holders at a time lose something.
//   - [Log.CheckTrace]: each step, and each change in etcd, is one that the model of
//     the protocol (model/lock.pml) allows from the state that it is in.
//
// CheckTrace sees what hooks and etcd's history show: entries written and removed,
// the steps of their acquisitions, and guarded transactions that were carried out. It
// does not see requests, watches and reads, nor which keys a session keeps reserved, nor a
// fence that is in use without such a transaction. A step is placed among etcd's changes
// as well as the times at which an observer heard of these allow.
//
// The package does not use the code that it judges: it knows the grammar of the
// keys and what an entry is from doc.go alone.
package history
