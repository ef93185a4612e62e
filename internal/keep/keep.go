// Package keep keeps one session at a time for all who share it: one of them grants a session when none lives, and the
// others wait for that. It knows nothing of leases and locks.
package keep

import (
	"context"
	"sync"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// A Config is what a Keeper needs to know of its sessions.
type Config[S comparable] struct {
	// Grant grants a session. After an error, left is what must be done in the background, until closed ends at the latest;
	// nil if nothing is left.
	Grant    func(ctx context.Context) (s S, left func(closed context.Context), err error)
	Lives    func(s S) bool
	End      func(s S)       // ends it at once, without a request
	Finish   func(s S) error // has etcd remove what is left of it, and waits for that
	Closed   error           // of calls that Close ends
	CtxError func(ctx context.Context) error
}

// A Keeper keeps the current session. It is safe for concurrent use.
type Keeper[S comparable] struct {
	Config[S]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	// granting is held by whoever grants a session, and for good by Close.
	granting  chan struct{}
	closeOnce sync.Once
	closed    chan struct{} // closed when Close has done all; then err is set
	err       error
	// finishing counts the goroutines that finish sessions which were lost, and what unanswered grants may have left, each
	// for a TTL at the most.
	finishing sync.WaitGroup

	mu      sync.Mutex
	current S // none before the first; may have ended
}

// New makes a Keeper that has no session yet.
func New[S comparable](c Config[S]) *Keeper[S] {
	k := &Keeper[S]{Config: c, granting: make(chan struct{}, 1), closed: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Session returns the current session, or grants one. The caller's ctx bounds only its own attempt: others that wait
// try for themselves then. A call that has waited, and whose ctx has ended by then, returns the error of ctx.
func (k *Keeper[S]) Session(ctx context.Context) (S, error) {
	if s, lives := k.Last(); lives {
		return s, nil
	}
	var none S
	bound, unbind := etcd.Bind(ctx, k.ctx)
	defer unbind()
	select {
	case k.granting <- struct{}{}:
		defer func() { <-k.granting }()
	case <-bound.Done():
		return none, k.closedError(k.CtxError(bound))
	}
	s, lives := k.Last() // it may have been granted while this call waited
	if !lives {
		granted, left, err := k.Grant(bound)
		if err != nil {
			if left != nil {
				k.finishing.Go(func() { left(k.ctx) })
			}
			return none, k.closedError(err)
		}
		s = granted
		k.set(s)
	}
	if ctx.Err() != nil {
		return none, k.closedError(k.CtxError(ctx))
	}
	return s, nil
}

// closedError is the error of a call that was ended by Close, or else by err.
func (k *Keeper[S]) closedError(err error) error {
	if k.ctx.Err() != nil {
		return k.Closed
	}
	return err
}

// Last is the session that was granted last, zero before the first one.
func (k *Keeper[S]) Last() (s S, lives bool) {
	k.mu.Lock()
	s = k.current
	k.mu.Unlock()
	var none S
	return s, s != none && k.Lives(s)
}

// set makes s the current session. The one before is finished in case that it still lives: its entries are only in the way.
func (k *Keeper[S]) set(s S) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var none S
	if old := k.current; old != none {
		k.finishing.Go(func() { _ = k.Finish(old) }) // or its lease expires by itself
	}
	if k.current = s; k.ctx.Err() != nil {
		k.End(s) // Close came meanwhile, and finishes it next
	}
}

// Close ends the session at once, and all calls of Session. done is closed when nothing is left; then Err is set.
func (k *Keeper[S]) Close() (done <-chan struct{}) {
	k.cancel()
	var none S
	k.mu.Lock()
	if k.current != none {
		k.End(k.current)
	}
	k.mu.Unlock()
	k.closeOnce.Do(func() {
		go func() { // ends with closed, a TTL from now at the latest
			defer close(k.closed)
			k.granting <- struct{}{}       // a grant under way ends with k.ctx
			if s := k.current; s != none { // beside what was left behind, which may take its time
				k.finishing.Go(func() { k.err = k.Finish(s) })
			}
			k.finishing.Wait()
		}()
	})
	return k.closed
}

// Closing is closed when Close was called. It is for tests.
func (k *Keeper[S]) Closing() <-chan struct{} { return k.ctx.Done() }

// Err is what the last session was finished with.
func (k *Keeper[S]) Err() error { return k.err }
