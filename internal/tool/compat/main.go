//go:build unix

// Compat runs the tests of this module that need a server, and only one, against real etcd processes of several
// versions, and prints the results. Each version runs as a single member, as
// a cluster of three, and as a single member behind its own `etcd grpc-proxy`.
//
//	go run ./internal/tool/compat [-write docs/compat.md | -few] [-modfile go.mod,go.latest.mod] [server ...]
//
// The tests are built with the client of each of these go.mod files. With -few, each server runs as a single member, only
// the first one in the other two ways too, and the tests repeat as little as in go test ./...: for every change.
//
// A server is a minor version such as v3.5, which stands for its newest patch release; or
// an exact version such as v3.5.21; or debian, for the package etcd-server of this
// machine's Debian release. The default is debian v3.5 v3.6 v3.7. Versions are built from
// the Go module, and packages are unpacked without being installed. The servers are kept in
// the user's cache folder.
//
// It leaves out the tests that own.txt names. It fails if a test fails or does not run.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/etcdlock/etcdlock/internal/tool/layout"
)

const (
	// limit bounds the whole program, and testLimit one run of the tests.
	limit     = 40 * time.Minute
	testLimit = 5 * time.Minute

	module = "go.etcd.io/etcd/server/v3"

	// endpointsVar is the variable with which internal/test/harness has tests use these servers.
	endpointsVar = "ETCDLOCK_TEST_ENDPOINTS"
)

func main() {
	file := flag.String("write", "", "write the table to this `file`, too")
	few := flag.Bool("few", false, "run the first server alone in each way, and fewer rounds of the tests")
	modfiles := flag.String("modfile", "go.mod,go.latest.mod", "the go.mod `files` that the tests are built with")
	flag.Parse()
	servers := flag.Args()
	if len(servers) == 0 {
		servers = []string{"debian", "v3.5", "v3.6", "v3.7"}
	}
	if *few && *file != "" {
		fmt.Fprintln(os.Stderr, "compat: -few leaves out results that the table of -write needs")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := run(ctx, servers, strings.Split(*modfiles, ","), *few, *file); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, servers, modfiles []string, few bool, file string) (err error) {
	dir, err := os.MkdirTemp("", "etcdlock-compat-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var builds []build
	for _, s := range servers {
		began := time.Now()
		b, err := obtain(ctx, s, filepath.Join(dir, s))
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		fmt.Printf("%s is %s (%v)\n", s, b.name, time.Since(began).Round(time.Second))
		builds = append(builds, b)
	}
	var trials []trial
	for _, m := range modfiles {
		c, err := buildTests(ctx, m, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		for i, b := range builds {
			for _, s := range shapesOf(i, few) {
				trials = append(trials, trial{c, b, s, !few})
			}
		}
	}
	results, errs := make([]result, len(trials)), make([]error, len(trials))
	var running errgroup.Group
	running.SetLimit(atOnce)
	for i, t := range trials {
		running.Go(func() error {
			r, err := t.run(ctx, filepath.Join(dir, fmt.Sprint("trial-", i)))
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", t, err)
				fmt.Printf("%s: FAILED\n", t)
				return nil // the others go on
			}
			results[i] = r
			fmt.Printf("%s: %d tests passed in %v\n", t, r.passed, r.took.Round(time.Second))
			return nil
		})
	}
	_ = running.Wait() // see errs
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := errors.Join(errs...); err != nil || file == "" {
		return err
	}
	commit, err := layout.Commit()
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(document(commit, servers, results)), 0o644)
}

// atOnce is how many runs of the tests there are at the same time: they wait more than they compute.
const atOnce = 2

// A shape is how the servers stand that a build is tested with.
type shape struct {
	members int
	proxied bool // the tests reach the members by a grpc-proxy of the same build
}

func (s shape) String() string {
	if s.proxied {
		return "behind a grpc-proxy"
	}
	return fmt.Sprintf("members: %d", s.members)
}

var shapes = []shape{{1, false}, {3, false}, {1, true}}

// shapesOf returns the shapes in which the server with index i of the command line runs.
func shapesOf(i int, few bool) []shape {
	if few && i > 0 {
		return shapes[:1]
	}
	return shapes
}

// suited returns the tests that can run with servers of that shape. With several members it
// omits tests that count requests, because a read that meets a lagging member costs one
// more request. It also omits tests that depend on exact times with a TTL of 2 s, because
// three servers make the machine too slow for them; leases end by the leader's clock alone,
// so testing them with one member is enough. A proxy delays requests as well, and answers
// renewals at times of its own, up to half a second and a third of the TTL late: a session with a TTL of 2 or 3 s
// outlives neither an outage there nor a machine that stalls, and no session is sure to outlive one that is logged, for
// more than half of the TTL.
func suited(names []string, s shape) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return s != shape{members: 1} && oneMember.MatchString(n) || s.proxied && slices.Contains(notProxied, n)
	})
}

var oneMember = regexp.MustCompile(`^Test((Requests|Fault_F1|Fault_F2)_|TryLock_OvertakenBesideNestedNames$)`)

// notProxied are tests that count renewals, and the messages of watches, that have a short TTL, that outlive a logged
// outage, that put one proxy before another, or whose session sends nothing twice: a proxy's watch may be silent where etcd's
// ends, and such a session does not ask.
var notProxied = []string{"TestContended_WatchEnds", "TestFault_D4_WrappedClient", "TestFault_F11_RenewalsAreFew", "TestFault_I13_LogOfARenewal",
	"TestFault_I13_LogOfNoRenewal", "TestFault_J12_HooksBlock", "TestFault_J12_LogBlocks", "TestHoldWatch_OnTheWire",
	"TestHooks_Session", "TestLog_OutageConcernsNobody", "TestMulti_WaitLosesAPart"}

// A trial is one run of the tests.
type trial struct {
	client
	build
	shape
	full bool // all rounds of the tests
}

func (t trial) String() string {
	return fmt.Sprintf("client %s, %s, %s", t.client.version, t.name, t.shape)
}

// A result is what a trial has shown.
type result struct {
	trial
	version string // as reported by the servers
	passed  int
	took    time.Duration
}

var (
	verdict    = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`)
	uneventful = regexp.MustCompile(`(?m)^(===| *--- PASS).*\n`)
)

// run starts a cluster and runs the suites against it, one after the other.
func (t trial) run(ctx context.Context, dir string) (result, error) {
	c, err := startCluster(ctx, t.file, dir, t.shape)
	if err != nil {
		return result{}, err
	}
	defer c.stop()
	began, passed := time.Now(), 0
	for _, s := range t.suites {
		names := suited(s.tests, t.shape)
		if err := s.run(ctx, names, c.endpoints, dir, t.full); err != nil {
			return result{}, fmt.Errorf("%w\n%s", err, c.logs())
		}
		passed += len(names)
	}
	return result{t, c.version, passed, time.Since(began)}, nil
}

// run runs the tests of the suite that are named.
func (s suite) run(ctx context.Context, names, endpoints []string, dir string, full bool) error {
	cmd := command(ctx, s.binary, "-test.v", "-test.timeout="+testLimit.String(), "-test.run=^("+strings.Join(names, "|")+")$")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), endpointsVar+"="+strings.Join(endpoints, ","), "TMPDIR="+dir)
	if full {
		cmd.Env = append(cmd.Env, "ETCDLOCK_FULL=1")
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		_ = cmd.Cancel() // end the processes that the tests started but did not end
	}
	var passed []string
	for _, m := range verdict.FindAllStringSubmatch(out.String(), -1) {
		if m[1] == "PASS" {
			passed = append(passed, m[2])
		}
	}
	slices.Sort(passed)
	if err == nil && !slices.Equal(passed, names) {
		err = errors.New("not all tests have run")
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", s.dir, err, uneventful.ReplaceAll(out.Bytes(), nil))
	}
	return nil
}

// command is like exec.CommandContext, but runs the command in its own process group and
// kills the whole group when ctx ends, because tests start and stop processes too.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// output runs a command in dir and returns its output. Its error contains the output too.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := command(ctx, name, args...)
	cmd.Dir = dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.Bytes(), errs.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

func document(commit string, servers []string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# The servers and clients it is tested with

The tests of this package that need only the address of a server ran against real etcd processes with etcd's default
settings, except fsync. They include all tests of its behaviour and of faults between client and server. Two kinds of
tests run with one member that is reached directly only: tests that count requests, because a read that meets a lagging member costs one more
request, and tests that cut off the client to measure when a lease ends, because only the leader decides that.

Generated at commit %s on %s by `+"`go run ./internal/tool/compat -write docs/compat.md %s`"+` with %s, %s/%s. Don't edit.

| client | etcd | from | tests passed on one member | on three | on one behind its `+"`etcd grpc-proxy`"+` |
|---|---|---|---|---|---|
`, commit, time.Now().UTC().Format("2 January 2006"), strings.Join(servers, " "), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for of := range slices.Chunk(results, len(shapes)) {
		fmt.Fprintf(&b, "| %s | %s | %s |", of[0].client.version, of[0].version, of[0].from)
		for _, r := range of {
			fmt.Fprintf(&b, " %d |", r.passed)
		}
		b.WriteString("\n")
	}
	return b.String() + "\n" + clientsText
}
