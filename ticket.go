// A place in the queue that is taken now and waited for later.

package etcdlock

import (
	"context"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Ticket is a place in a lock's queue. It is granted or fails by itself, in the background; its owner waits for
// that when it suits, or not at all. It is safe for concurrent use.
//
// A grant that nobody claims with Wait keeps the lock: every Ticket needs its Wait and the hold's Unlock, or Cancel,
// or the session's end.
type Ticket struct {
	h      *Held
	done   chan struct{} // closed when granted or failed
	err    error         // why it failed, set before done is closed
	cancel context.CancelFunc

	mu        sync.Mutex
	claimed   bool            // Wait has returned the hold
	cancelled bool            // Cancel came before
	gone      <-chan struct{} // closed when etcd has confirmed the removal after Cancel or a failure; nil if there is none: claimed, session ended
}

// errCancelled is what Wait and Ahead return after Cancel.
var errCancelled = fmt.Errorf("%w: the ticket was cancelled", ErrNotHeld)

// newTicket waits for an acquisition that is in the queue, on a goroutine that ends with the grant, Cancel or the session.
func newTicket(h *Held) (*Ticket, error) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Ticket{h: h, done: make(chan struct{}), cancel: cancel}
	ok := h.s.lease.Go(func(context.Context) {
		defer cancel()
		defer close(t.done)
		if t.err = h.wait(ctx); t.err == nil {
			return
		}
		if ctx.Err() != nil {
			t.err = errCancelled
		}
		if gone := h.abandon(t.err, ctx.Err() != nil); h.s.Err() == nil {
			t.gone = gone
		}
	})
	if !ok {
		cancel()
		h.abandon(h.s.Err(), false) // that it has ended, or that its client is closed
		return nil, h.s.Err()
	}
	return t, nil
}

// Done is closed when the lock is granted, or the place is lost. Wait tells which, without blocking from then on.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Wait blocks until the lock is granted and returns the hold, the same one on every call. If ctx ends first, it returns ctx's
// error and the place stays. It fails for good if the session ends or the entry is removed by somebody else before the hold is
// claimed (ErrSessionExpired, ErrSessionClosed, ErrLost), and after Cancel (ErrNotHeld). It makes no requests of its own.
func (t *Ticket) Wait(ctx context.Context) (*Held, error) {
	select {
	case <-t.done:
	default:
		select {
		case <-t.done:
		case <-ctx.Done():
			return nil, t.h.wrap("wait for", etcd.CtxError(ctx, nil))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.errLocked(); err != nil {
		return nil, t.h.wrap("wait for", err)
	}
	t.claimed = true
	return t.h, nil
}

// errLocked is why nobody can claim the grant, once done is closed.
func (t *Ticket) errLocked() error {
	switch {
	case t.cancelled:
		return errCancelled
	case t.err == nil && !t.claimed:
		return t.h.Err() // a grant that was lost before anybody claimed it
	}
	return t.err
}

// Ahead counts the acquisitions that have to leave the queue before this one is granted, with one linearizable read:
// a write lock counts once, readers before a reader don't count, and an acquisition that is before a Multi with several names
// counts once. Ahead is 0 once granted. If the place was lost or cancelled before, the error is Wait's.
func (t *Ticket) Ahead(ctx context.Context) (int, error) {
	select {
	case <-t.done:
		t.mu.Lock()
		defer t.mu.Unlock()
		return 0, t.h.wrap("count before", t.errLocked())
	default:
	}
	n, err := t.h.ahead(ctx)
	return n, t.h.wrap("count before", err)
}

// ahead counts the acquisitions that have to leave before this one is granted.
func (a *acquisition) ahead(ctx context.Context) (int, error) {
	a.mu.Lock() // for the queues
	reads := ofEach(a, func(p *part) etcd.Read {
		from, to := p.Blocking()
		return etcd.ReadRange(from, to, clientv3.WithMaxCreateRev(a.rev-1))
	})
	a.mu.Unlock()
	got, _, err := a.s.lease.Read(ctx, a.s.lease.Ctx, 0, reads...)
	if err != nil {
		return 0, err
	}
	return queue.Ahead(a.names(), a.rev, got), nil
}

// Cancel withdraws the place, or releases the grant that nobody has claimed. It blocks until etcd has confirmed that or the
// lease is gone, or ctx ends; then it returns ctx's error and the removal goes on in the background. If the session has ended
// before, it returns nil at once: the place goes with the lease. After Wait has returned the hold, Cancel does nothing, so it may
// be deferred.
func (t *Ticket) Cancel(ctx context.Context) error {
	t.cancel()
	<-t.done // at once, as the wait has ended
	t.mu.Lock()
	if !t.claimed && !t.cancelled {
		if t.cancelled = true; t.err == nil {
			t.gone = t.h.release()
		}
	}
	gone := t.gone
	t.mu.Unlock()
	if t.h.s.awaitRemoved(ctx, gone) {
		return nil
	}
	return t.h.wrap("cancel", etcd.CtxError(ctx, nil))
}
