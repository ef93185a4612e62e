package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// signalled is the cause of a ctx that a signal has ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.String() }

// status is 128 plus the number of the signal, as in shells.
func (s signalled) status() int {
	if n, ok := s.Signal.(syscall.Signal); ok {
		return statusSignal + int(n)
	}
	return statusFailed
}

// interruptible gives f a ctx that ends with the first signal that asks the process
// to end. A second signal ends the process at once, in case the cleaning up hangs.
func interruptible(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancelCause(cmd.Context())
		defer cancel(nil)
		c := make(chan os.Signal, 1)
		supervise.NotifyUnlessIgnored(c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
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

// pipesBreak turns a write to a closed pipe (`| head`) into an error. Without it the
// process would end there, before it has cleaned up.
func pipesBreak() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
