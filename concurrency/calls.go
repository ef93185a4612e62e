// The calls of a session that wait in a queue.

package concurrency

import (
	"context"
	"maps"
	"time"
)

// moment is how long the end of a session waits for the ctxs that end together with its own.
const moment = 100 * time.Millisecond

// inQueue takes note of a call that may have an entry in a queue, until out is called.
func (s *Session) inQueue(ctx context.Context) (out func()) {
	returned := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[returned] = ctx
	return func() {
		close(returned)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, returned)
	}
}

// abandon ends the session since the ctx of WithContext has ended. A program may have one ctx for the session and for its calls. Such
// calls withdraw their entries first: Orphan leaves what is in a queue.
func (s *Session) abandon() {
	s.mu.Lock()
	calls := maps.Clone(s.calls)
	s.mu.Unlock()
	soon, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	for returned, ctx := range calls {
		select {
		case <-ctx.Done():
		case <-returned:
		case <-soon.Done():
		}
		if ctx.Err() != nil {
			<-returned // it does, within milliseconds
		}
	}
	s.inner.Orphan()
}
