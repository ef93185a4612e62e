// Command etcdlock runs commands under locks of github.com/etcdlock/etcdlock,
// and shows who holds them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc/grpclog"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

func main() {
	if supervise.IsGuard() {
		os.Exit(supervise.Guard())
	}
	// gRPC returns as errors what it logs, and its lines would break the layout of
	// the screen.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(run())
}

// line writes an error in one line: Cobra puts hints on lines of their own. It drops
// the prefix of the library's errors, which every line of this command has anyway.
func line(err error) string {
	s := ": " + strings.Join(strings.Fields(err.Error()), " ")
	return strings.TrimPrefix(strings.ReplaceAll(s, ": etcdlock: ", ": "), ": ")
}

// run returns the exit status; docs/command.md has all of them.
func run() int {
	cmd, err := newRoot().ExecuteContextC(context.Background())
	if err == nil {
		return statusOK
	}
	var ended ending
	said := errors.As(err, &ended)
	if !said || ended.err != nil {
		fmt.Fprintln(os.Stderr, "etcdlock: "+line(err))
	}
	if ended.raise != nil {
		ended.raise()
	}
	var by signalled
	switch {
	case said:
		return ended.status
	case errors.As(err, &by):
		return by.status()
	case cmd.Annotations[runsCommand] != "":
		return statusNotRun
	}
	return statusFailed
}
