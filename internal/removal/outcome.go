// The outcome of one request that many wait for.

package removal

import (
	"context"
	"sync"
)

// An Outcome is for those who wait for a request. The request goes on if etcd refuses it, and if nobody waits any more. An
// Outcome is safe for concurrent use.
type Outcome struct {
	mu   sync.Mutex
	next *answer
}

type answer struct {
	come chan struct{} // closed behind err
	err  error
}

// NewOutcome returns the Outcome of a request that has no answer yet.
func NewOutcome() *Outcome { return &Outcome{next: &answer{come: make(chan struct{})}} }

// Wait waits for the next answer, or returns ended's error when ctx ends.
func (o *Outcome) Wait(ctx context.Context, ended func(context.Context) error) error {
	o.mu.Lock()
	a := o.next
	o.mu.Unlock()
	select {
	case <-a.come:
	default: // an answer that has come counts, also under a ctx that has ended
		select {
		case <-a.come:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
	return a.err
}

// Refused tells those who wait. Who comes later waits for the answer after this one.
func (o *Outcome) Refused(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked(err)
	o.next = &answer{come: make(chan struct{})}
}

// End is the last answer.
func (o *Outcome) End(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked(err)
}

func (o *Outcome) endLocked(err error) {
	o.next.err = err
	close(o.next.come)
}
