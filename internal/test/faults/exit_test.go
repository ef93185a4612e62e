//go:build unix

package faults

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// Row I12: a process that is told to end leaves nothing in etcd.

var signals = flag.Int("signals", 2, "how many processes TestFault_I12 ends in each state, in full")

// signalledProcess does what a.What says until SIGTERM, and ends as the README's snippet does.
func signalledProcess(ctx context.Context, a lockerArg, c *clientv3.Client, _ *bufio.Reader) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	locks := etcdlock.New(c, etcdlock.WithTTL(time.Minute))
	defer locks.Close()
	say := sync.OnceFunc(func() { fmt.Println(`"now"`) })
	m := locks.Mutex(a.Name)
	switch a.What {
	case "starting":
		say()
		err = m.Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error { <-ctx.Done(); return ctx.Err() })
	case "holding":
		err = m.Do(ctx, func(ctx context.Context, _ *etcdlock.Held) error { say(); <-ctx.Done(); return ctx.Err() })
	case "waiting":
		_, err = locks.Session(ctx)
		time.AfterFunc(10*time.Millisecond, say)
		if err == nil {
			_, err = m.Lock(ctx)
		}
	case "leading":
		err = locks.Elector(a.Name).Run(ctx, func(ctx context.Context, _ *etcdlock.Held) error { say(); <-ctx.Done(); return ctx.Err() })
	case "releasing":
		for err == nil {
			var h *etcdlock.Held
			if h, err = m.Lock(ctx); err == nil {
				say()
				err = h.Unlock(ctx)
			}
		}
	case "closing":
		// The signal that the test sends may find the process anywhere between its first signal and its end.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
		_, err = m.Lock(ctx)
		go func() { <-ctx.Done(); say() }()
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM) // and the test sends another one
		<-ctx.Done()
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Whatever it does when SIGTERM comes, neither an entry nor a lease of it is left when it has ended.
func TestFault_I12_SIGTERM(t *testing.T) {
	t.Parallel()
	own := etcdtest.Start(t)
	c := own.Client(t)
	name := harness.LockName(t)
	other := newSession(t, c, etcdlock.WithTTL(time.Minute))
	left, n := 0, sample.Rounds(t, 1, *signals)
	for _, state := range []string{"starting", "holding", "waiting", "leading", "releasing", "closing"} {
		for range n {
			var before *etcdlock.Held
			if state == "waiting" {
				before = mustLock(t, other, name)
			}
			p := startHelper(t, "signalled", lockerArg{Endpoints: own.Endpoints(), Name: name, What: state})
			var said string
			p.read(t, &said)
			p.signal(t, syscall.SIGTERM)
			require.NoError(t, p.cmd.Wait(), state)
			keys := harness.Entries(t, c, name)
			if before != nil {
				require.NotEmpty(t, keys)
				keys = keys[1:]
				require.NoError(t, before.Unlock(harness.Ctx(t)))
			}
			left += len(keys)
			require.Empty(t, keys, state)
			require.Len(t, harness.Leases(t, c), 1, "%s: only that of the test", state)
		}
	}
	t.Logf("%d processes in each state: %d entries left", n, left)
}

// The README's snippets, as they are, in a process that is told to end while it holds and while it waits.
func TestFault_I12_TheReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	snippet, rest, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	_, rest, _ = strings.Cut(rest, "```go\n")
	setup, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	const endpoints = `[]string{"127.0.0.1:2379"}`
	require.Contains(t, setup, endpoints)
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "service")
	// What it prints shows that it is in its section, which lasts until SIGTERM.
	require.NoError(t, os.WriteFile(source, []byte(`package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
)

var fmt section

type section struct{ until context.Context }

func (s section) Println(text string) {
	_, _ = os.Stdout.WriteString(text + "\n")
	<-s.until.Done()
}

func run(ctx context.Context, client *clientv3.Client) error {
`+snippet+`
	return err
}

func main() {
`+strings.Replace(setup, endpoints, "os.Args[1:]", 1)+`
	if err != nil {
		log.Fatal(err)
	}
	fmt.until = ctx
	log.Print(run(ctx, client))
}
`), 0o600))
	build := []string{"build", "-o", program}
	if harness.Race { // as the packages that go test has built: to build all of them anew takes minutes on a busy machine
		build = append(build, "-race")
	}
	out, err := exec.Command("go", append(build, source)...).CombinedOutput()
	require.NoError(t, err, string(out))

	own := etcdtest.Start(t)
	c := own.Client(t)
	start := func() (*exec.Cmd, *bufio.Reader) {
		cmd := exec.Command(program, own.Endpoints()...)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, bufio.NewReader(out)
	}
	end := func(cmd *exec.Cmd, left int) {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
		require.Len(t, harness.Entries(t, c, "jobs/report"), left)
		require.Len(t, harness.Leases(t, c), left)
	}
	holder, in := start()
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	waiter, _ := start()
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, "jobs/report")) == 2 }, harness.Hang, harness.Tick)
	end(waiter, 1)
	next, in := start()
	require.Eventually(t, func() bool { return len(harness.Entries(t, c, "jobs/report")) == 2 }, harness.Hang, harness.Tick)
	end(holder, 1)
	_, err = in.ReadString('\n')
	require.NoError(t, err, "the next one is in")
	end(next, 0)
}
