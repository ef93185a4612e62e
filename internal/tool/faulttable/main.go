// Faulttable runs the fault tests and writes docs/faults.md from their results: for each
// row, whether etcd's own packages were seen to fail (tests named TestControl_), what the drop-in does
// (tests named TestDropIn_) and whether this package passes (tests named TestFault_). Below that, it lists the tests of each sentence that doc.go
// guarantees; see guarantees.go.
//
//	go run ./internal/tool/faulttable
//
// It fails, and writes nothing, if a test fails, if a row has no test, or if doc.go guarantees something else.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/tool/layout"
)

func main() {
	if err := run("docs/faults.md"); err != nil {
		fmt.Fprintln(os.Stderr, "faulttable:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	if err := check("."); err != nil {
		return err
	}
	module, err := layout.Module(".")
	if err != nil {
		return err
	}
	args := []string{"-json", "-count=1", "-run", "^(Test(Fault|Control|DropIn)_.*|" + strings.Join(guarding(), "|") + ")$"}
	for _, p := range module {
		names, err := p.Tests()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(names, func(name string) bool {
			return strings.HasPrefix(name, "TestFault_") || slices.Contains(guarding(), name)
		}) {
			args = append(args, p.ImportPath)
		}
	}
	tests, err := test(args)
	if err != nil {
		return err
	}
	head, err := header()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	guaranteed, err := renderGuarantees(tests)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(head+render(tests)+guaranteed), 0o644)
}

// check returns an error if a row or a guarantee has no test in the module. dir is the repository's root.
func check(dir string) error {
	module, err := layout.Module(dir)
	if err != nil {
		return err
	}
	var tests []*result
	var all []string
	for _, p := range module {
		names, err := p.Tests()
		if err != nil {
			return err
		}
		all = append(all, names...)
		for _, name := range names {
			tests = append(tests, &result{name: name})
		}
	}
	for _, r := range rows {
		if len(of(tests, "TestFault_", r.id)) == 0 {
			return fmt.Errorf("row %s: there is no test whose name begins with TestFault_%s_", r.id, r.id)
		}
	}
	return checkGuarantees(dir, all)
}

// A result is a test and the notes that it logged for the table.
type result struct {
	name   string
	notes  []string
	passed bool
}

var note = regexp.MustCompile(`: (?:seen|shown): (.*)\n$`)

// newest has the table speak of the newest etcd.
const newest = "-modfile=go.latest.mod"

// test runs go test and returns the results of the tests, in the order of their names.
func test(args []string) ([]*result, error) {
	cmd := exec.Command("go", append([]string{"test", newest}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDLOCK_FULL=1") // the controls too
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	tests, failed, err := read(out)
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err != nil || len(failed) > 0 {
		return nil, fmt.Errorf("go test failed: %w\n%s", cmp.Or(err, errors.New("see below")), strings.Join(failed, ""))
	}
	return tests, nil
}

// read reads the events of go test. failed has the output of each test and package that failed.
func read(out io.Reader) (tests []*result, failed []string, err error) {
	byName, output := map[string]*result{}, map[string][]string{}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct{ Action, Package, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, nil, err
		}
		name, _, sub := strings.Cut(event.Test, "/") // a subtest's notes belong to its test
		if name == "" {                              // of the package as a whole, whose TestMain may fail after its tests
			if output[event.Package] = append(output[event.Package], event.Output); event.Action == "fail" {
				failed = append(failed, output[event.Package]...)
			}
			continue
		}
		r := byName[name]
		if r == nil {
			r = &result{name: name}
			byName[name], tests = r, append(tests, r)
		}
		output[name] = append(output[name], event.Output)
		if m := note.FindStringSubmatch(event.Output); m != nil {
			r.notes = append(r.notes, m[1])
		}
		r.passed = r.passed || !sub && event.Action == "pass"
		if !sub && (event.Action == "fail" || event.Action == "skip") {
			failed = append(failed, output[name]...)
		}
	}
	slices.SortFunc(tests, func(a, b *result) int { return cmp.Compare(a.name, b.name) })
	return tests, failed, lines.Err()
}

// of returns the tests of a row: those whose name begins with kind and contains the row's
// id, such as TestFault_C3_C4_Compaction.
func of(tests []*result, kind, id string) (its []*result) {
	for _, t := range tests {
		rest, is := strings.CutPrefix(t.name, kind)
		if is && slices.Contains(strings.Split(rest, "_"), id) {
			its = append(its, t)
		}
	}
	return its
}

func render(tests []*result) string {
	var b strings.Builder
	b.WriteString("| row | what happens | etcd's own packages | the drop-in | this package |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		control, dropIn, fault := of(tests, "TestControl_", r.id), of(tests, "TestDropIn_", r.id), of(tests, "TestFault_", r.id)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.id, r.what, cell("fails", control), cell("", dropIn), cell("passes", fault))
	}
	return b.String()
}

func cell(verdict string, tests []*result) string {
	if len(tests) == 0 {
		return "not tried"
	}
	var names, notes []string
	for _, t := range tests {
		names = append(names, "`"+t.name+"`")
		notes = append(notes, t.notes...)
	}
	if text := strings.Join(notes, "; "); verdict == "" {
		verdict = text
	} else if text != "" {
		verdict += ": " + text
	}
	return verdict + " (" + strings.Join(names, ", ") + ")"
}

func header() (string, error) {
	version := func(module string) (string, error) {
		out, err := exec.Command("go", "list", newest, "-m", "-f", "{{.Version}}", module).Output()
		return strings.TrimSpace(string(out)), err
	}
	server, err := version("go.etcd.io/etcd/server/v3")
	if err != nil {
		return "", err
	}
	client, err := version("go.etcd.io/etcd/client/v3")
	if err != nil {
		return "", err
	}
	commit, err := layout.Commit()
	if err != nil {
		return "", err
	}
	command := "go run ./internal/tool/faulttable"
	for _, name := range []string{"ETCDLOCK_TTLS", "ETCDLOCK_RUNS", "ETCDLOCK_SECONDS"} {
		if v := os.Getenv(name); v != "" {
			command = name + "=" + v + " " + command
		}
	}
	return fmt.Sprintf(`# What goes wrong with locks on etcd

Each row is a situation that users of locks on etcd meet. The third column says what etcd's own `+"`concurrency`"+` and
`+"`experimental/recipes`"+` did in this run: "fails" means that a control test took them through the same steps and saw them fail in the
way described. The fourth column says what the drop-in `+"`etcdlock/concurrency`"+` did in the same steps: what changes with the import path
alone. The last column says what this package did in the test with the row's name. "Not tried" means that there is no such test.

Generated at commit %s on %s by `+"`%s`"+` from a run on etcd server %s, client %s, %s, %s/%s, %d cores. Don't edit.

`, commit, time.Now().UTC().Format("2 January 2006"), command, server, client, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), nil
}
