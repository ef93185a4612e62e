// Command etcdlock shows the locks of github.com/etcdlock/etcdlock at work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc/grpclog"
)

func main() {
	// What gRPC has to say comes back as errors too, and its lines would tear
	// up the screen.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(run())
}

// run returns the exit status: 0, 1 after an error, 128 and the signal's number
// after a signal, as shells have it.
func run() int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "etcdlock:", err)
	var by signalled
	if errors.As(err, &by) {
		if n, ok := by.Signal.(syscall.Signal); ok {
			return 128 + int(n)
		}
	}
	return 1
}

// signalled is the cause with which a signal ends ctx.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.String() }

// withSignals returns a ctx that ends at the first signal that asks the process
// to end. The second one ends it at once, in case cleaning up hangs.
func withSignals(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A closed standard output (`| head`) shall be an error of the write and
	// not the end of the process: there are others to clean up.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	go func() {
		select {
		case s := <-c:
			signal.Stop(c)
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
