package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/duration"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/supervise"
)

// under are the flags that `run` and `elect` share.
type under struct {
	ttl, grace time.Duration
	owner      string
}

func (u *under) addFlags(cmd *cobra.Command) {
	duration.Var(cmd.Flags(), &u.ttl, "ttl", 10*time.Second, "how long the lock stays taken when this process dies")
	duration.Var(cmd.Flags(), &u.grace, "grace", 0, "time between SIGTERM and SIGKILL for CMD, at most a third of --ttl (default: a fifth)")
	cmd.Flags().StringVar(&u.owner, "owner", "", "name that others see in the queue (default: host, CMD and process ID)")
}

// complete sets the defaults that depend on other flags, and checks all.
func (u *under) complete(cmd *cobra.Command, program string) error {
	if u.ttl < time.Second {
		return fmt.Errorf("--ttl %v: etcd's leases last at least 1s", u.ttl)
	}
	if !cmd.Flags().Changed("grace") {
		u.grace = u.ttl / 5
	}
	switch limit := u.ttl / 3; {
	case u.grace < 0:
		return fmt.Errorf("--grace %v: it can't be negative", u.grace)
	case u.grace > limit:
		return fmt.Errorf("--grace %v is too long for --ttl %v: CMD gets SIGTERM that long before the lock can be lost, "+
			"and two thirds of the TTL must be left to renew it; use --ttl %v or more, or --grace %v or less",
			u.grace, u.ttl, 3*u.grace, limit.Truncate(time.Millisecond))
	}
	if u.owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		u.owner = fmt.Sprintf("%s %s[%d]", host, filepath.Base(program), os.Getpid())
	}
	return nil
}

// lookPath finds the program. It is called before the wait, so that a wrong name
// shows at once.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", ending{status: statusNotFound, err: fmt.Errorf("%s: command not found", program)}
	}
	return "", ending{status: statusCannotRun, err: fmt.Errorf("%s can't be executed: %w", program, err)}
}

// prepare finds the program, listens for signals, and connects.
func prepare(cmd *cobra.Command, etcd *connect.Config, program string) (path string, in *interrupts, client *clientv3.Client, err error) {
	if path, err = lookPath(program); err != nil {
		return "", nil, nil, err
	}
	pipesBreak()
	in = newInterrupts(cmd.Context(), supervise.Notify(), false)
	cmd.SetContext(in.ctx)
	client, err = open(cmd, etcd)
	return path, in, client, err
}

// sayFor is how long say waits for its line to be written before it asks whether anybody reads standard error, and
// sayAsks is how often it asks: what a line tells of must not wait for that. On a busy machine the write itself may
// be late, and then the next line, or the end of this process, must not come before it.
const (
	sayFor  = 250 * time.Millisecond
	sayAsks = 8
)

// say prints a line about a lock on standard error, now or when somebody reads.
func say(name, format string, args ...any) {
	line := fmt.Sprintf("etcdlock: %s: %s\n", shown(name), fmt.Sprintf(format, args...))
	written := make(chan struct{})
	go func() { // ends when somebody reads, or with the process
		defer close(written)
		_, _ = os.Stderr.WriteString(line)
	}()
	awaitWrite(written, stderrFull)
}

// awaitWrite returns when a line is written, or nobody reads it.
func awaitWrite(written <-chan struct{}, full func() bool) {
	for range sayAsks {
		select {
		case <-written:
			return
		case <-time.After(sayFor):
			if full() {
				return
			}
		}
	}
}

// runUnder runs a command under a hold.
func (u *under) runUnder(h *etcdlock.Held, name, path string, argv []string, sigs chan os.Signal, why func() error) (supervise.Outcome, error) {
	return supervise.Run(h, sigs, supervise.Command{
		Path: path, Args: argv, Grace: u.grace,
		Env: environ(
			nameVariable+"="+name,
			tokenVariable+"="+strconv.FormatInt(h.Token(), 10),
			keyVariable+"="+h.Key()),
		Say: func(format string, args ...any) { say(name, format, args...) },
		Why: why,
	})
}

// environ is this process's environment with vars. Each variable is there once: under
// another etcdlock run vars exist already, and some programs take the first of two.
func environ(vars ...string) []string {
	return (&exec.Cmd{Env: append(os.Environ(), vars...)}).Environ()
}

// ended is the error for the way in which a command ended. It is nil for status 0.
func ended(path string, o supervise.Outcome, err error) error {
	var start *supervise.StartError
	switch {
	case errors.As(err, &start):
		return ending{status: statusCannotRun, err: fmt.Errorf("%s can't be executed: %w", path, err)}
	case err != nil:
		return err
	case o.Status == 0:
		return nil
	}
	e := ending{status: o.Status}
	if o.Terminal && o.Signal == int(syscall.SIGINT) {
		e.raise = func() { supervise.RaiseInterrupt(o.Keyboard) }
	}
	return e
}
