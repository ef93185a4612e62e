//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// These tests run the command, as users do: built in full, and else as this test binary under another name.

// commandName is the name of the command's file.
const commandName = "etcdlock"

var (
	buildFlags []string // -race, if the tests have it
	binary     string
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == commandName {
		main()
	}
	os.Exit(runMain(m))
}

func runMain(m *testing.M) int {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) { // as in the background of a script; the commands would inherit that
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	if err := harness.Parallel(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "etcdlock-command-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, commandName)
	if err := makeBinary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// makeBinary builds the command in full. To build it takes as long as some of the tests, so the quick run gives its own
// binary, which has all of the command, the command's name: see TestMain.
func makeBinary() error {
	if sample.Full() {
		build := exec.Command("go", append(append([]string{"build", "-o", binary}, buildFlags...), ".")...)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
		return nil
	}
	own, err := os.Executable()
	if err == nil {
		err = os.Link(own, binary)
	}
	if err == nil {
		return nil
	}
	image, err := os.ReadFile(own) // it is on another file system
	if err == nil {
		err = os.WriteFile(binary, image, 0o755)
	}
	return err
}

// hang is a generous bound on anything that must not hang.
const hang = 60 * time.Second

// An invocation is a run of the command.
type invocation struct {
	cmd    *exec.Cmd
	tmp    string // its directory for temporary files
	stderr bytes.Buffer
	lines  []string // of standard output
	more   chan string
	read   error // the error of reading; set before more is closed
}

// start runs the command without a terminal.
func start(t *testing.T, env []string, args ...string) *invocation {
	t.Helper()
	r := command(t, env, args...)
	r.launch(t)
	return r
}

// merged runs the command with its standard error in its standard output, so that
// until can wait for its lines.
func merged(t *testing.T, env []string, args ...string) *invocation {
	t.Helper()
	r := command(t, env)
	r.cmd.Path = "/bin/sh"
	r.cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" 2>&1`, binary}, args...)
	r.launch(t)
	return r
}

// launch starts it and begins to read its output.
func (r *invocation) launch(t *testing.T) {
	t.Helper()
	if r.cmd.Stderr == nil {
		r.cmd.Stderr = &r.stderr
	}
	out, err := r.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, r.cmd.Start())
	go func() { // ends with the command's output
		defer close(r.more)
		s := bufio.NewScanner(out)
		for s.Scan() {
			r.more <- s.Text()
		}
		r.read = s.Err()
	}()
}

func command(t *testing.T, env []string, args ...string) *invocation {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	r := &invocation{cmd: exec.CommandContext(ctx, binary, args...), tmp: t.TempDir(), more: make(chan string)}
	r.cmd.Env = append(os.Environ(), "TMPDIR="+r.tmp, "ETCDCTL_ENDPOINTS=", "TERM=xterm-256color", "NO_COLOR=",
		"GORACE=atexit_sleep_ms=100") // the default makes each process take a second to end
	r.cmd.Env = append(r.cmd.Env, env...)
	return r
}

// A signal while etcd is asked ends each command that looks at locks with the signal's status, and says nothing of etcd.
func TestSignalWhileEtcdIsAsked(t *testing.T) {
	t.Parallel()
	asked, end := make(chan string, 10), make(chan struct{})
	cluster := etcdtest.Start(t, intercepted(func(_ context.Context, req any) {
		if r := harness.RangesOf(req); len(r) > 0 && strings.HasPrefix(string(r[0].Key), "x") {
			asked <- string(r[0].Key)
			<-end
		}
	}))
	defer close(end)
	for i, args := range [][]string{{"ls"}, {"show"}, {"show", "--watch"}, {"doctor"}, {"break", "key@7"}} {
		name := fmt.Sprint("x", i)
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, slices.Insert(args, 1, name)...)
		for !strings.HasPrefix(<-asked, name) {
		}
		sig := []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT}[i%2] // Go itself ends a program with 2 at SIGQUIT
		require.NoError(t, r.cmd.Process.Signal(sig))
		require.Equal(t, statusSignal+int(sig), r.wait(t), args)
		if slices.Contains(args, "--watch") { // nothing else ends it
			require.Empty(t, r.stderr.String())
			continue
		}
		require.Regexp(t, `^etcdlock: ((inspect|watch|list)[^\n]*: context canceled: )?ended by signal: `+sig.String()+`\n$`, r.stderr.String(), args)
	}
}

// The same while etcd is asked for a token.
func TestSignalWhileATokenIsAskedFor(t *testing.T) {
	t.Parallel()
	all := make(map[string]*invocation)
	for _, command := range []string{"show", "doctor"} {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + silent.Addr().String()}, command, "x", "--user=ann:secret", "--dial-timeout=4s")
		all[command] = r
		_, err = silent.Accept()
		require.NoError(t, err)
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	}
	for command, r := range all {
		require.Equal(t, 143, r.wait(t), command)
		require.Equal(t, "etcdlock: ended by signal: terminated\n", r.stderr.String(), command)
	}
}

// unread runs the command with an output that nobody reads. The command must report
// that.
func unread(t *testing.T, env []string, args ...string) *invocation {
	t.Helper()
	r := command(t, env, args...)
	r.cmd.Stderr = &r.stderr
	r.cmd.Stdout = brokenPipe(t)
	require.NoError(t, r.cmd.Start())
	require.Error(t, r.cmd.Wait())
	require.Equal(t, 1, r.cmd.ProcessState.ExitCode())
	require.Regexp(t, `^etcdlock: can't write to standard output: .*broken pipe\n$`, r.stderr.String())
	return r
}

// brokenPipe is the writing end of a pipe without a reader.
func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, out.Close())
	t.Cleanup(func() { _ = in.Close() })
	return in
}

// until reads lines until one matches, and returns the groups of the match.
func (r *invocation) until(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for l := range r.more {
		r.lines = append(r.lines, l)
		if m := re.FindStringSubmatch(l); m != nil {
			return m
		}
	}
	require.FailNow(t, "no line matches", "%s in:\n%s\nstderr:\n%s", pattern, r.output(), r.stderr.String())
	return nil
}

func (r *invocation) output() string { return slow.ReplaceAllString(strings.Join(r.lines, "\n"), "") }

// slow is what doctor notes of a member that takes half a second to answer, as on a machine that stalls.
var slow = regexp.MustCompile(`note +etcd's member [^\n]* took [\d.]+m?s to answer\n|\{"attention":false,"what":"etcd's member [^"]* took [\d.]+m?s to answer"\},`)

// wait reads the rest and returns the exit status.
func (r *invocation) wait(t *testing.T) int {
	t.Helper()
	for l := range r.more {
		r.lines = append(r.lines, l)
	}
	require.NoError(t, r.read)
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// noTrace requires that nothing is left of the run on this machine.
func (r *invocation) noTrace(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir(r.tmp)
	require.NoError(t, err)
	require.Empty(t, files, "temporary files")
	for _, pid := range r.pids(t) {
		require.False(t, alive(pid), "process %d", pid)
	}
}

// pids are the worker processes that the run has printed.
func (r *invocation) pids(t *testing.T) (pids []int) {
	t.Helper()
	for _, l := range r.lines {
		if list, ok := strings.CutPrefix(strings.TrimSpace(l), "processes: "); ok {
			for w := range strings.SplitSeq(list, ", ") {
				_, pid, _ := strings.Cut(w, " ")
				n, err := strconv.Atoi(pid)
				require.NoError(t, err)
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// alive reports whether a process runs. A dead process that its parent has not reaped
// does not run.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
	return true
}

// noKeys requires that etcd has no key and no lease left.
func noKeys(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	all, err := client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	require.Empty(t, all.Kvs)
	require.Eventually(t, func() bool { // a member may lag behind
		leases, err := client.Leases(ctx)
		require.NoError(t, err)
		return len(leases.Leases) == 0
	}, hang, 5*time.Millisecond, "leases")
}

func TestUsage(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "--help")
	require.Zero(t, r.wait(t))
	require.Contains(t, r.output(), "demo ")
	require.NotContains(t, r.output(), "demo-worker")
	require.NotContains(t, r.output(), "default 0")
	for _, args := range [][]string{{"demonstration"}, {"demo", "x"}, {"demo", "--endpoints="}, {"demo-worker", "p1"}} {
		r := start(t, nil, args...)
		require.Equal(t, 1, r.wait(t), args)
		require.Empty(t, r.output(), args)
		require.Regexp(t, `^etcdlock: .+\n$`, r.stderr.String(), args)
	}
}

func mustInt(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
