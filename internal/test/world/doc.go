// Package world is a test only: random worlds of processes that take the same locks in every way there is, on a fake of etcd in
// a synctest bubble. Requests are slow, get lost, and are carried out late or twice; processes are killed or call Orphan, and
// their successors adopt what is left; two sessions live on one lease; connections stand still for longer than a TTL, so that
// leases expire; and in every second world somebody removes entries. What must be so in all of them:
//
//   - No two holders, as the processes see it, have what excludes the other (I1, I2).
//   - A write that is guarded by a hold does not come after that of a later holder.
//   - No hold is lost while its entry and its session live, and no hold is valid when its lease expires (I4).
//   - Each call returns when its ctx ends.
//
// A hold whose entry somebody has removed counts for none of these: its holder is told, and until then others may be in.
//
//	go test ./internal/test/world                          a few worlds
//	go test ./internal/test/world -args -worlds=1000       many
//	go test ./internal/test/world -args -seed=7            the world with this seed
//
// A seed makes the same dice; which goroutine throws them first is up to the scheduler, so play a world a few times.
package world
