package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// signalled is the cause with which a signal ends ctx.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.String() }

// status is 128 and the signal's number, as shells have it.
func (s signalled) status() int {
	if n, ok := s.Signal.(syscall.Signal); ok {
		return statusSignal + int(n)
	}
	return statusFailed
}

// interruptible gives f a ctx that ends at the first signal that asks the process
// to end. The second one ends it at once, in case cleaning up hangs.
func interruptible(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancelCause(cmd.Context())
		defer cancel(nil)
		c := make(chan os.Signal, 1)
		supervise.NotifyUnlessIgnored(c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		pipesBreak()
		go func() {
			select {
			case s := <-c:
				signal.Stop(c)
				cancel(signalled{s})
			case <-ctx.Done():
			}
		}()
		cmd.SetContext(ctx)
		return f(cmd, args)
	}
}

// pipesBreak makes a closed standard output or error (`| head`) an error of the
// write and not the end of the process: there may be others to clean up.
func pipesBreak() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
