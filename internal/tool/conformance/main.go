// Conformance has etcd's own tests of its package concurrency judge the drop-in. It is a module of its own, since the
// tests are one of etcd's modules, whose version is pinned here.
//
//	go -C internal/tool/conformance run .          with the drop-in
//	go -C internal/tool/conformance run . -etcd    with etcd's own package: shows that the tests run as they are
//
// In a temporary directory it copies etcd's client, puts aliases for the types of the drop-in in the place of
// concurrency's, and runs the tests of that package, of the recipes that use it and of the server's integration. Each
// test runs in a process of its own: some hang where they fail. STM is etcd's, whoever runs the tests.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// suites are the packages of etcd's tests module, which of their tests run, and how many those are.
var suites = []struct {
	dir, run string
	count    int
}{
	{"integration/clientv3/concurrency", `^(Test|Example)`, 10},
	{"integration/clientv3/experimental/recipes", `^(Test.*Mutex|TestDoubleBarrier|BenchmarkMutex)`, 12},
	{"integration", `^Test(Election|STM)`, 14},
}

// fails are the tests that the drop-in may fail, and why.
var fails = map[string]string{
	"TestElectionWithAuthEnabled": "it campaigns in a session that it has orphaned",
}

const (
	limit  = 2 * time.Minute // of a test
	beside = 2               // tests run at a time
)

func main() {
	own := flag.Bool("etcd", false, "run the tests with etcd's own package")
	flag.Parse()
	if err := run(*own); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(own bool) error {
	tmp, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	args, err := prepare(tmp, own)
	if err != nil {
		return err
	}
	var bad []string
	var all sync.WaitGroup
	var mu sync.Mutex // guards bad, and the output
	turns := make(chan struct{}, beside)
	for i, s := range suites {
		binary := filepath.Join(tmp, fmt.Sprintf("suite%d.test", i))
		if _, err := command(filepath.Join(tmp, "tests"), "go", append(args, "-o", binary, "./"+s.dir)...); err != nil {
			return err
		}
		dir := filepath.Join(tmp, "tests", s.dir)
		out, err := command(dir, binary, "-test.list", s.run)
		if err != nil {
			return err
		}
		tests := slices.DeleteFunc(strings.Fields(out), func(name string) bool { return !regexp.MustCompile(s.run).MatchString(name) })
		if len(tests) != s.count {
			return fmt.Errorf("%s has %d tests, not %d: %v", s.dir, len(tests), s.count, tests)
		}
		for _, test := range tests {
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				began := time.Now()
				out, err := command(dir, binary, only(test)...)
				mu.Lock()
				defer mu.Unlock()
				why, excepted := fails[test]
				switch {
				case err == nil:
					fmt.Printf("ok    %6.1fs  %s\n", time.Since(began).Seconds(), test)
				case excepted && !own:
					fmt.Printf("FAIL  %6.1fs  %s, which may fail: %s\n", time.Since(began).Seconds(), test, why)
				default:
					fmt.Printf("FAIL  %6.1fs  %s: %v\n%s\n", time.Since(began).Seconds(), test, err, out)
					bad = append(bad, test)
				}
			})
		}
	}
	all.Wait()
	if len(bad) > 0 {
		return fmt.Errorf("%d tests failed: %s", len(bad), strings.Join(bad, ", "))
	}
	return nil
}

// only are the flags that run one test, example or benchmark.
func only(test string) []string {
	if strings.HasPrefix(test, "Benchmark") {
		return []string{"-test.run", "^$", "-test.bench", "^" + test + "$", "-test.benchtime", "1x"}
	}
	return []string{"-test.run", "^" + test + "$"}
}

// prepare makes the modules in tmp, and returns the arguments of the go command that builds a test.
func prepare(tmp string, own bool) (args []string, err error) {
	repo, err := filepath.Abs("../../..")
	if err != nil {
		return nil, err
	}
	client, err := module("go.etcd.io/etcd/client/v3")
	if err != nil {
		return nil, err
	}
	tests, err := module("go.etcd.io/etcd/tests/v3")
	if err != nil {
		return nil, err
	}
	for to, from := range map[string]string{"client": client, "tests": tests} {
		if err := os.CopyFS(filepath.Join(tmp, to), os.DirFS(from)); err != nil {
			return nil, err
		}
	}
	if _, err := command(tmp, "chmod", "-R", "u+w", "."); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(tmp, "tests/integration/cache_test.go")); err != nil {
		return nil, err
	}
	if err := edit(tmp, repo, own); err != nil {
		return nil, err
	}
	args = []string{"test", "-mod=mod", "-c"}
	if own {
		return args, nil
	}
	if err := alias(filepath.Join(tmp, "client/concurrency")); err != nil {
		return nil, err
	}
	// Without STM, which the drop-in has from etcd's package: that would import the drop-in, and so itself. Its errors are
	// others here, of the same texts.
	texts := "package concurrency\n\nimport \"errors\"\n\n"
	for name, text := range errorTexts {
		texts += fmt.Sprintf("var %s = errors.New(%q)\n", name, text)
	}
	errorsFile := filepath.Join(tmp, "errors.go")
	if err := os.WriteFile(errorsFile, []byte(texts), 0o644); err != nil {
		return nil, err
	}
	overlay := map[string]any{"Replace": map[string]string{
		filepath.Join(repo, "concurrency/stm.go"):    "",
		filepath.Join(repo, "concurrency/errors.go"): errorsFile,
	}}
	b, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(tmp, "overlay.json")
	return append(args, "-overlay", file), os.WriteFile(file, b, 0o644)
}

// edit has the tests module use the modules in tmp and the repository.
func edit(tmp, repo string, own bool) error {
	tests := filepath.Join(tmp, "tests")
	out, err := command(tests, "go", "mod", "edit", "-json")
	if err != nil {
		return err
	}
	var mod struct {
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		return err
	}
	args := []string{"mod", "edit"}
	for _, r := range mod.Replace {
		args = append(args, "-dropreplace="+r.Old.Path)
	}
	args = append(args, "-replace=go.etcd.io/etcd/cache/v3="+filepath.Join(repo, "internal/tool/conformance/cache"))
	if !own {
		args = append(args, "-replace=go.etcd.io/etcd/client/v3="+filepath.Join(tmp, "client"),
			"-replace=github.com/etcdlock/etcdlock="+repo, "-require=github.com/etcdlock/etcdlock@v0.0.0")
	}
	if _, err := command(tests, "go", args...); err != nil {
		return err
	}
	var sums []byte
	for _, file := range []string{filepath.Join(tests, "go.sum"), "go.sum", filepath.Join(repo, "go.sum")} {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sums = append(sums, b...)
	}
	return os.WriteFile(filepath.Join(tests, "go.sum"), sums, 0o644)
}

// errorTexts are the errors of etcd's package.
var errorTexts = map[string]string{
	"ErrLocked": "mutex: Locked by another session", "ErrSessionExpired": "mutex: session is expired", "ErrLockReleased": "mutex: lock has already been released",
	"ErrElectionNotLeader": "election: not leader", "ErrElectionNoLeader": "election: no leader",
}

// alias puts the drop-in in the place of what is in dir.
func alias(dir string) error {
	for _, file := range []string{"session.go", "mutex.go", "election.go", "key.go"} {
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	text := "package concurrency\n\nimport dropin \"github.com/etcdlock/etcdlock/concurrency\"\n\n"
	for _, name := range []string{"Session", "SessionOption", "Mutex", "Election"} {
		text += fmt.Sprintf("type %s = dropin.%[1]s\n", name)
	}
	functions := []string{"NewSession", "WithTTL", "WithLease", "WithContext", "NewMutex", "NewLocker", "NewElection", "ResumeElection"}
	for _, name := range slices.AppendSeq(functions, maps.Keys(errorTexts)) {
		text += fmt.Sprintf("var %s = dropin.%[1]s\n", name)
	}
	return os.WriteFile(filepath.Join(dir, "dropin.go"), []byte(text), 0o644)
}

// module returns the directory of a module that go.mod pins.
func module(path string) (dir string, err error) {
	out, err := command(".", "go", "mod", "download", "-json", path)
	if err != nil {
		return "", err
	}
	var m struct{ Dir, Error string }
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return "", err
	}
	if m.Dir == "" {
		return "", fmt.Errorf("%s can't be had: %s", path, cmp.Or(m.Error, "no reason given"))
	}
	return m.Dir, nil
}

// command runs a command, for a limited time, and returns its output.
func command(dir, name string, args ...string) (out string, err error) {
	ctx := context.Background()
	if name != "go" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.WaitDelay = time.Second
	var stdout, both bytes.Buffer
	cmd.Stdout = &both
	cmd.Stderr = &both
	if name == "go" {
		cmd.Stdout = &stdout
	}
	err = cmd.Run()
	if ctx.Err() != nil {
		err = errors.Join(fmt.Errorf("not done after %v", limit), err)
	}
	if name != "go" {
		return both.String(), err
	}
	if err != nil {
		err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, both.Bytes())
	}
	return stdout.String(), err
}
