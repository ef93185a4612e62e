// The read-write lock.

package etcdlock

import "context"

// An RWMutex is a [Mutex] that any number of readers may hold together, like [sync.RWMutex]. Readers and writers
// stand in one queue and keep its order: consecutive readers hold the lock together, a reader never passes a writer
// that was there before it, and a writer never passes anybody. So neither starves. There is no upgrade from reading
// to writing, since two readers that wait for each other would wait forever: give the read lock back first, and look
// again under the write lock. The other way there is [Held.Downgrade].
//
// It shares its name's queue with [Mutex], which is a writer in it.
type RWMutex struct{ l lock }

// NewRWMutex makes an RWMutex that ends with its session; [Client.RWMutex] makes one that does not. It makes no
// request. A name that is not valid, or a nil session, is an error of every call.
func NewRWMutex(s *Session, name string) *RWMutex { return &RWMutex{newLock(s, name)} }

// Lock takes the lock for writing and waits for it, as [Mutex.Lock] does. Behind any number of readers it costs at
// most three reads, and one watch for all of them.
func (m *RWMutex) Lock(ctx context.Context) (*Held, error) { return m.l.lock(ctx, "lock", writeMode) }

// TryLock takes the lock for writing if nobody holds it or waits for it, as [Mutex.TryLock] does.
func (m *RWMutex) TryLock(ctx context.Context) (*Held, error) {
	return m.l.try(ctx, "try to lock", writeMode)
}

// Enqueue takes a writer's place in the queue, as [Mutex.Enqueue] does.
func (m *RWMutex) Enqueue(ctx context.Context) (*Ticket, error) {
	return m.l.enqueue(ctx, "enqueue for", writeMode)
}

// Do runs fn under the write lock, as [Mutex.Do] does. Under the ctx of RDo it returns ErrWouldDeadlock: it would
// wait for its own read lock.
func (m *RWMutex) Do(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.l.do(ctx, "do", writeMode, fn)
}

// RLock takes the lock for reading and waits until no writer that came before is left. What blocks it, what ends it
// and what it costs is as for [Mutex.Lock]. Readers of one session that wait for the same writer have one watch and
// one read together.
func (m *RWMutex) RLock(ctx context.Context) (*Held, error) { return m.l.lock(ctx, "rlock", readMode) }

// TryRLock takes the lock for reading if no writer holds it or waits for it, and otherwise returns ErrLocked, as
// [Mutex.TryLock] does.
func (m *RWMutex) TryRLock(ctx context.Context) (*Held, error) {
	return m.l.try(ctx, "try to rlock", readMode)
}

// REnqueue takes a reader's place in the queue, as [Mutex.Enqueue] does.
func (m *RWMutex) REnqueue(ctx context.Context) (*Ticket, error) {
	return m.l.enqueue(ctx, "renqueue for", readMode)
}

// RDo runs fn under the read lock, as [Mutex.Do] does. Under the ctx of Do or RDo it runs fn at once, inside that
// hold.
func (m *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.l.do(ctx, "rdo", readMode, fn)
}
