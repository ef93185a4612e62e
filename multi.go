// Several locks that are taken together.

package etcdlock

import (
	"context"
	"fmt"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// A Multi is several locks that are taken together: all of them or none. Other locks, Multis too, may have the same names, and
// each name excludes what a [Mutex] or [RWMutex] of that name does. A Multi takes its places in all
// queues at one revision. So two Multis stand in the same order wherever they meet, and nobody waits in a circle,
// whatever names overlap and in whatever order they are given. A Multi is as fair as a Mutex in each of the queues: while
// it waits for one name it keeps its place, and so the lock, in the others.
//
// Its hold is one acquisition, with one Token and a key for each name: see [Held.Keys]. The loss of one of the keys is the loss
// of the hold, and what is left of it is removed at once. A Multi has no state, may be copied and is safe for concurrent use.
type Multi struct{ l *lock }

// Write is a part that excludes everybody else. It can't be downgraded.
func Write(name string) Part { return Part{name, writing} }

// Read is a part that excludes writers, as [RWMutex.RLock] does.
func Read(name string) Part { return Part{name, reading} }

// NewMulti makes a Multi that ends with its session; [Client.Multi] makes one that does not. It makes no request. A Multi has
// 1 to 32 names. No name, more than 32, a name that is given twice or is not valid is an error of every call
// (ErrInvalidName), and so is a nil session.
func NewMulti(s *Session, parts ...Part) *Multi { return &Multi{newMultiLock(s, parts)} }

// Multi locks all of these names together: see [NewMulti]. It makes no request.
func (c *Client) Multi(parts ...Part) *Multi { return &Multi{newMultiLock(c, parts)} }

func newMultiLock(from source, parts []Part) *lock {
	l := &lock{from: from, multi: true}
	for _, p := range parts {
		l.queues = append(l.queues, keyspace.Queue{Name: p.name, Kind: p.kind})
	}
	if err := keyspace.CheckNames(l.names(), maxParts); err != nil {
		l.err = fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return l
}

// Lock takes all the locks, and waits for them. What blocks it and what ends it is as for [Mutex.Lock].
//
// If nobody is before it, it costs one request, which is one commit, for any number of names. A Lock that waits costs what
// Mutex.Lock does for each name that it waits for, one after the other, and at last one read more for all names.
func (m *Multi) Lock(ctx context.Context) (*Held, error) { return m.l.lock(ctx, "lock") }

// TryLock takes all the locks if nobody holds or waits for what any of them excludes, and otherwise returns
// ErrLocked, as [Mutex.TryLock] does: one request, and no write on failure.
func (m *Multi) TryLock(ctx context.Context) (*Held, error) { return m.l.try(ctx, "try to lock") }

// Enqueue takes a place in all the queues, as [Mutex.Enqueue] does in one.
func (m *Multi) Enqueue(ctx context.Context) (*Ticket, error) { return m.l.enqueue(ctx, "enqueue for") }

// Do takes all the locks, runs fn and releases them, as [Mutex.Do] does. Under the ctx that fn got, Do of the same session (or
// Client) and the same names runs its fn at once, inside the hold. Under that ctx any other lock that shares a name with the
// Multi returns ErrWouldDeadlock, and from TryLock ErrLocked; so does a Multi that shares a name with the Do of another lock.
func (m *Multi) Do(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.l.do(ctx, "do", fn)
}
