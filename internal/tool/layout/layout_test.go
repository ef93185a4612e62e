package layout

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module     = "github.com/etcdlock/etcdlock"
	maxLines   = 300  // of a file; a longer file has more than one concept
	rootLines  = 3600 // of the root package: what is more goes into a layer
	rootFiles  = 24
	rootClimbs = 7  // arrows between files of the root package that run back up
	rootTests  = 25 // test files of the root package: of its API, not of faults or layers
)

// may lists what each layer of the library may import from this module. The test fails for a package
// or an import that is not listed, so no layer can import a layer above it.
var may = map[string][]string{
	"":                    {"/internal/etcd", "/internal/holdwatch", "/internal/inspect", "/internal/keep", "/internal/keyspace", "/internal/lead", "/internal/lease", "/internal/loan", "/internal/outage", "/internal/outbox", "/internal/queue", "/internal/removal", "/internal/sender", "/internal/settle", "/internal/wait", "/internal/waitlist", "/internal/blockers"},
	"/internal/etcd":      {},
	"/internal/holdwatch": {"/internal/etcd", "/internal/keyspace", "/internal/outage"},
	"/internal/keep":      {"/internal/etcd"},
	"/internal/lead":      {"/internal/etcd"},
	"/internal/lease":     {"/internal/etcd", "/internal/outage"},
	"/internal/outage":    {"/internal/etcd"},
	"/internal/outbox":    {},
	"/internal/inspect":   {"/internal/etcd", "/internal/keyspace", "/internal/queue"},
	"/internal/sender":    {"/internal/etcd"},
	"/internal/removal":   {"/internal/etcd", "/internal/keyspace", "/internal/queue", "/internal/sender"},
	"/internal/settle":    {"/internal/etcd", "/internal/keyspace", "/internal/queue", "/internal/removal", "/internal/sender"},
	"/internal/wait":      {"/internal/etcd", "/internal/outage", "/internal/queue", "/internal/waitlist"},
	"/internal/waitlist":  {"/internal/keyspace", "/internal/queue"},
	"/internal/queue":     {"/internal/keyspace"},
	"/internal/keyspace":  {},
	"/internal/loan":      {},
	"/internal/blockers":  {"/internal/keyspace", "/internal/queue"},
}

// requestless lists the layers that make no requests and may not import etcd's client.
var requestless = []string{"/internal/loan", "/internal/waitlist", "/internal/queue", "/internal/keyspace"}

// outside lists the prefixes of all packages outside the standard library that the library may import.
var outside = []string{"go.etcd.io/etcd/api/v3/", "go.etcd.io/etcd/client/v3", "golang.org/x/"}

// listed runs the go command once for all tests.
var listed = sync.OnceValues(func() ([]Package, error) { return Library("../../..") })

func library(t *testing.T) []Package {
	t.Helper()
	packages, err := listed()
	require.NoError(t, err)
	return packages
}

func TestArrowsPointDown(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range library(t) {
		layer := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := may[layer]
		require.True(t, known, "%s is not in the table of layers: add it with the packages that it may import", p.ImportPath)
		seen[layer] = true
		for _, path := range p.Imports {
			below, own := strings.CutPrefix(path, module)
			switch {
			case own:
				require.Contains(t, allowed, below, "%s imports %s", p.ImportPath, path)
			case !strings.Contains(strings.Split(path, "/")[0], "."): // std
			default:
				require.True(t, slices.ContainsFunc(outside, func(o string) bool { return path+"/" == o || strings.HasPrefix(path, o) }),
					"%s imports %s: the library may import only the standard library, etcd's api and client, and golang.org/x", p.ImportPath, path)
				if slices.Contains(requestless, layer) {
					require.NotContains(t, path, "etcd/client", "%s must make no requests", p.ImportPath)
				}
			}
		}
	}
	for layer := range may {
		require.True(t, seen[layer], "the library does not have %s: remove it from the table", module+layer)
	}
}

// lines counts the lines of a file.
func lines(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return bytes.Count(b, []byte("\n"))
}

// goFiles are the Go files of the repository, those of its other modules too: the tests, or the others.
func goFiles(t *testing.T, tests bool) (paths []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".go") && strings.HasSuffix(path, "_test.go") == tests {
			paths = append(paths, path)
		}
		return err
	}))
	require.Greater(t, len(paths), 100, "the test must find the repository's files")
	return paths
}

// No Go file of the repository is longer than 300 lines, except tests.
func TestFilesAreShort(t *testing.T) {
	for _, path := range goFiles(t, false) {
		if n := lines(t, path); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it by concepts", path, n, maxLines)
		}
	}
}

// A test waits for the event itself.
func TestNoTestSleeps(t *testing.T) {
	for _, path := range goFiles(t, true) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		for i, line := range strings.Split(string(b), "\n") {
			if strings.Contains(line, "time"+".Sleep") {
				t.Errorf("%s:%d: a test must not sleep: wait for the event itself", path, i+1)
			}
		}
	}
}

// Each file of the library begins with a sentence that says what it is for.
func TestFilesSayWhatTheyAreFor(t *testing.T) {
	for _, p := range library(t) {
		for _, file := range p.Files() {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(b), "// "), "%s does not begin with a comment", file)
		}
	}
}

func TestRootIsSmall(t *testing.T) {
	packages := library(t)
	root := packages[len(packages)-1]
	require.Equal(t, module, root.ImportPath)
	n := 0
	for _, file := range root.Files() {
		n += lines(t, file)
	}
	require.Positive(t, n)
	if n > rootLines {
		t.Errorf("the root package has %d lines, more than %d", n, rootLines)
	}
	if files := len(root.Files()); files > rootFiles {
		t.Errorf("the root package has %d files, more than %d", files, rootFiles)
	}
	tests := root.TestFiles()
	require.NotEmpty(t, tests)
	if len(tests) > rootTests {
		t.Errorf("the root package has %d test files, more than %d: tests of faults stand in internal/test/faults, those of a layer beside it", len(tests), rootTests)
	}
}

// stages are the files of the root package from the top down: who calls comes before what it calls.
var stages = strings.Fields(`doc elector inspect multi client mutex rwmutex do lock try ticket waiter txn release held enqueue session
	checks monitor notify acquisition options errors hooks`)

// The files of the root package can be read from the top down: what a file uses stands in it or below it, but for a few
// arrows. Most of these lead to the Session, which all acquisitions use.
func TestRootRunsDown(t *testing.T) {
	packages := library(t)
	climbs, err := Climbs(packages[len(packages)-1], stages)
	require.NoError(t, err)
	require.LessOrEqual(t, len(climbs), rootClimbs, "too many arrows of the root package run back up: %s", strings.Join(climbs, "\n"))
}

// The library has no package-level state: state that a mutex guards belongs to a session or a client.
func TestNoPackageLevelState(t *testing.T) {
	for _, p := range library(t) {
		for _, file := range p.Files() {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			for i, line := range strings.Split(string(b), "\n") {
				if strings.HasPrefix(line, "var ") && (strings.Contains(line, "sync.") || strings.Contains(line, "struct {")) {
					t.Errorf("%s:%d: package-level state", file, i+1)
				}
			}
		}
	}
}

// What must differ between two clones of a virtual machine, the IDs of leases and the nonces of keys, is made in these
// layers. Clones go on with the same state of math/rand, and so would draw the same.
func TestRandomOfTheSystem(t *testing.T) {
	for _, p := range library(t) {
		if slices.Contains([]string{"/internal/lease", "/internal/settle"}, strings.TrimPrefix(p.ImportPath, module)) {
			require.NotContains(t, p.Imports, "math/rand")
			require.NotContains(t, p.Imports, "math/rand/v2")
			require.Contains(t, p.Imports, "crypto/rand")
		}
	}
}

// The drop-in for etcd's package is a layer over the public API: it imports no layer below the root.
func TestDropInIsALayerAboveTheRoot(t *testing.T) {
	packages, err := list("../../..", "./concurrency")
	require.NoError(t, err)
	require.Len(t, packages, 1)
	for _, path := range packages[0].Imports {
		if below, own := strings.CutPrefix(path, module); own {
			require.Empty(t, below, "concurrency imports %s", path)
		} else if strings.Contains(strings.Split(path, "/")[0], ".") {
			require.True(t, slices.ContainsFunc(outside, func(o string) bool { return strings.HasPrefix(path, strings.TrimSuffix(o, "/")) }), "concurrency imports %s", path)
		}
	}
	for _, file := range packages[0].Files() {
		require.LessOrEqual(t, lines(t, file), maxLines)
	}
}

// A program that locks has neither Prometheus nor OpenTelemetry by the root's module. promlock and otellock are modules of
// their own, which a program may combine with another version of the root: what they import of it must be public.
func TestHooksAreModulesOfTheirOwn(t *testing.T) {
	for _, line := range strings.Split(read(t, "go.mod"), "\n") {
		if strings.Contains(line, "prometheus") || strings.Contains(line, "opentelemetry") {
			require.True(t, strings.HasSuffix(line, "// indirect"), "the root's module requires %s", line)
		}
	}
	t.Setenv("GOFLAGS", "-mod=readonly") // not the -modfile of the root's module
	for _, dir := range []string{"promlock", "otellock"} {
		packages, err := list(filepath.Join(root, dir), "./...")
		require.NoError(t, err)
		require.NotEmpty(t, packages)
		for _, p := range packages {
			require.Equal(t, module+"/"+dir, p.Module.Path)
			for _, path := range p.Imports {
				require.False(t, strings.HasPrefix(path, module+"/internal/"), "%s imports %s", p.ImportPath, path)
			}
		}
	}
}
