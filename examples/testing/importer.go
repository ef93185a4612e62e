package main

import (
	"context"

	"github.com/etcdlock/etcdlock"
)

// Import is the code to be tested: it imports rows, of which no two processes
// may import any at a time, until there are no more.
func Import(ctx context.Context, session *etcdlock.Session, rows <-chan int) error {
	return etcdlock.NewMutex(session, "jobs/import").Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error {
		for {
			select {
			case _, more := <-rows:
				if !more {
					return nil
				}
			case <-ctx.Done(): // this line is what a test should see fail when it is missing
				return context.Cause(ctx)
			}
		}
	})
}
