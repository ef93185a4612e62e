package layout

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module    = "github.com/etcdlock/etcdlock"
	maxLines  = 300  // of a file: one concept a file
	rootLines = 4800 // of the root package; 4000 once the waitlist has replaced share.go and crowd.go
)

// may says what each layer of the library imports from this module. A package of the library that is
// not in here, or an import that is not, fails the test: arrows point down only.
var may = map[string][]string{
	"":                   {"/internal/etcd", "/internal/keyspace", "/internal/queue"},
	"/internal/etcd":     {},
	"/internal/queue":    {"/internal/keyspace"},
	"/internal/keyspace": {},
}

// requestless are the layers that make no requests: they may not import etcd's client.
var requestless = []string{"/internal/queue", "/internal/keyspace"}

// outside is what a service that imports the library gets with it.
var outside = []string{"go.etcd.io/etcd/api/v3/", "go.etcd.io/etcd/client/v3", "golang.org/x/"}

func library(t *testing.T) []Package {
	t.Helper()
	packages, err := Library("../..")
	require.NoError(t, err)
	return packages
}

func TestArrowsPointDown(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range library(t) {
		layer := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := may[layer]
		require.True(t, known, "%s is in no layer: say in this test what it may import", p.ImportPath)
		seen[layer] = true
		for _, path := range p.Imports {
			below, own := strings.CutPrefix(path, module)
			switch {
			case own:
				require.Contains(t, allowed, below, "%s imports %s", p.ImportPath, path)
			case !strings.Contains(strings.Split(path, "/")[0], "."): // std
			default:
				require.True(t, slices.ContainsFunc(outside, func(o string) bool { return path+"/" == o || strings.HasPrefix(path, o) }),
					"%s imports %s: the library brings nothing but etcd's api and client, and golang.org/x", p.ImportPath, path)
				if slices.Contains(requestless, layer) {
					require.NotContains(t, path, "etcd/client", "%s makes no requests", p.ImportPath)
				}
			}
		}
	}
	for layer := range may {
		require.True(t, seen[layer], "there is no %s in the library any more", module+layer)
	}
}

// lines counts the lines of a file.
func lines(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return bytes.Count(b, []byte("\n"))
}

// No file of the repository's code is over 300 lines, wherever it stands. Tests may be longer.
func TestFilesAreShort(t *testing.T) {
	checked := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		checked++
		if n := lines(t, path); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: one concept a file", path, n, maxLines)
		}
		return nil
	}))
	require.Greater(t, checked, 100, "files were not found")
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
}

// The library has no package-level state: what is guarded by a mutex belongs to a session or a client.
func TestNoPackageLevelState(t *testing.T) {
	for _, p := range library(t) {
		for _, file := range p.Files() {
			if filepath.Base(file) == "share.go" {
				continue // its state goes with it, when the waitlist replaces it
			}
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
