// The read-write lock.

package etcdlock

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
	"github.com/etcdlock/etcdlock/internal/removal"
)

// An RWMutex is a [Mutex] that any number of readers may hold together, like [sync.RWMutex]. Readers and writers
// stand in one queue and keep its order: consecutive readers hold the lock together, a reader never passes a writer
// that was there before it, and a writer never passes anybody. So neither starves. There is no upgrade from reading
// to writing, since two readers that wait for each other would wait forever: release the read lock first, and look
// again under the write lock. The other way there is [Held.Downgrade].
//
// It shares its name's queue with [Mutex], which is a writer in it.
type RWMutex struct{ w, r *lock }

// NewRWMutex makes an RWMutex that ends with its session; [Client.RWMutex] makes one that does not. It makes no
// request. A name that is not valid, or a nil session, is an error of every call.
func NewRWMutex(s *Session, name string) *RWMutex { return newRWMutex(s, name) }

func newRWMutex(from source, name string) *RWMutex {
	m := &RWMutex{newLock(from, name, writing), newLock(from, name, reading)}
	m.w.second = true
	return m
}

// Lock takes the lock for writing and waits for it, as [Mutex.Lock] does. Behind any number of readers it costs at
// most three reads, and one watch for all of them.
func (m *RWMutex) Lock(ctx context.Context) (*Held, error) { return m.w.lock(ctx, "lock") }

// TryLock takes the lock for writing if nobody holds it or waits for it, as [Mutex.TryLock] does.
func (m *RWMutex) TryLock(ctx context.Context) (*Held, error) { return m.w.try(ctx, "try to lock") }

// Enqueue takes a writer's place in the queue, as [Mutex.Enqueue] does.
func (m *RWMutex) Enqueue(ctx context.Context) (*Ticket, error) {
	return m.w.enqueue(ctx, "enqueue for")
}

// Do runs fn under the write lock, as [Mutex.Do] does. Under the ctx of RDo it returns ErrWouldDeadlock: it would
// wait for its own read lock.
func (m *RWMutex) Do(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.w.do(ctx, "do", fn)
}

// RLock takes the lock for reading and waits until no writer that came before is left. What blocks it, what ends it and what it
// costs is as for [Mutex.Lock]. Readers of one session that wait for the same writer have one watch and one read together.
func (m *RWMutex) RLock(ctx context.Context) (*Held, error) { return m.r.lock(ctx, "rlock") }

// TryRLock takes the lock for reading if no writer holds it or waits for it, and otherwise returns ErrLocked, as
// [Mutex.TryLock] does.
func (m *RWMutex) TryRLock(ctx context.Context) (*Held, error) { return m.r.try(ctx, "try to rlock") }

// REnqueue takes a reader's place in the queue, as [Mutex.Enqueue] does.
func (m *RWMutex) REnqueue(ctx context.Context) (*Ticket, error) {
	return m.r.enqueue(ctx, "renqueue for")
}

// RDo runs fn under the read lock, as [Mutex.Do] does. Under the ctx of Do or RDo it runs fn at once, inside that hold.
func (m *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context, h *Held) error) error {
	return m.r.do(ctx, "rdo", fn)
}

// Downgrade turns a write hold into a read hold with nobody in between: readers that wait next in line get in, writers wait on.
// The token stays; Key names the shared entry from now on. On a read hold it does nothing. It costs one commit.
//
// It blocks until etcd has confirmed, or ctx or the hold ends. After an error of ctx or of etcd the lock is still held,
// for reading at least, and the downgrade goes on in the background. A call beside another call, or after such an error, waits
// for the same downgrade. With a ctx that has ended before, nothing begins.
func (h *Held) Downgrade(ctx context.Context) error {
	d, err := h.beginDowngrade(ctx)
	if d != nil {
		life, stop := h.untilOver()
		defer stop()
		either, end := etcd.Bind(ctx, life)
		defer end()
		err = d.Wait(either, h.s.lease.WaitError)
	}
	return h.wrap("downgrade", h.preferLoss(err))
}

// beginDowngrade begins the downgrade, if there is none yet. It returns nil if there is nothing to wait for. It goes on
// when ctx has ended: etcd may have carried it out, and let readers of other sessions in.
func (h *Held) beginDowngrade(ctx context.Context) (*removal.Outcome, error) {
	ended := etcd.CtxError(ctx, nil) // without the mutex: ctx may be the caller's own code
	h.mu.Lock()
	defer h.unlockAndNotify()
	h.checkSessionLocked()
	p := &h.parts()[0]
	switch {
	case h.state != held:
		return nil, h.causeLocked()
	case h.multi:
		return nil, errors.New("a Multi keeps what it has: release it, and take another one")
	case p.Kind == writing && len(p.Keys()) == 1:
		return nil, errors.New("a Mutex has no read holds: use an RWMutex")
	case p.Kind == reading && h.holdCtx == nil:
		return nil, nil
	case p.Kind == reading: // which it was from the start, or is since a downgrade
		return h.holdCtx.downgrade, nil
	case ended != nil:
		return nil, ended
	}
	// From here on the hold is known by the shared entry: that is there from the start, and stays in any case.
	h.unwatchLocked()
	p.Queue, h.fenced = &keyspace.Queue{Name: p.Name, Kind: reading}, true
	p.Downgrading()
	key, exclusive := p.Key(), p.Keys()[1]
	c, d := h.holdContextLocked(), &downgrade{removal.NewOutcome(), h}
	if c.downgrade = d.Outcome; c.watched {
		h.watchLocked()
	}
	h.s.removals.RemoveLater(h.s.removals.Add(p.Name, &removal.Leaving{
		Keys: []string{exclusive}, Kept: key, Rev: h.rev, Next: p.Behind(), Now: true, Owner: d,
	}))
	return d.Outcome, nil
}

// A downgrade is told what becomes of the removal of a hold's exclusive entry. The removal goes on until etcd has confirmed it, also
// if the hold has ended.
type downgrade struct {
	*removal.Outcome
	h *Held
}

// Removed lets readers of the session in that wait behind.
func (d *downgrade) Removed(r removal.Result) {
	h := d.h
	if len(r.Removed) == 0 || !r.Found(true) { // the exclusive entry was not there up to now: others may have been in
		d.End(h.markLost(h.Key()))
		return
	}
	h.mu.Lock()
	gone := h.parts()[0].Downgraded(r.At, r.Sought, r.There)
	h.mu.Unlock()
	markAllLost(gone)
	d.End(nil)
}
