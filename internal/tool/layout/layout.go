// Package layout finds the packages of this module, and among them those of the library: the root
// package and all packages that it imports. Checks use it instead of a list of paths, so that they
// still cover code and tests after these have moved.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A Package is one package of the library, or one that it depends on.
type Package struct {
	ImportPath string
	Dir        string
	Standard   bool
	Module     *struct {
		Path string
		Main bool
	}
	GoFiles      []string // without tests
	TestGoFiles  []string // of the package itself
	XTestGoFiles []string // of its external test package
	Imports      []string
}

// Library returns the packages of the library, the root package last. dir is the repository's root.
func Library(dir string) ([]Package, error) {
	all, err := Dependencies(dir)
	if err != nil {
		return nil, err
	}
	var library []Package
	for _, p := range all {
		if p.Module != nil && p.Module.Main {
			library = append(library, p)
		}
	}
	if len(library) < 2 {
		return nil, errors.New("the library has no layers: is this the repository's root?")
	}
	return library, nil
}

// Dependencies returns all packages that the root package depends on, followed by the root
// package.
func Dependencies(dir string) ([]Package, error) { return list(dir, "-deps", ".") }

// Commit is the commit that is checked out, for a page that is generated from a run: its tag, or what tells it from its last tag.
func Commit() (string, error) {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--tags").Output()
	return strings.TrimSpace(string(out)), err
}

// Module returns all packages of the module.
func Module(dir string) ([]Package, error) { return list(dir, "./...") }

func list(dir string, args ...string) (all []Package, err error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Standard,Module,GoFiles,TestGoFiles,XTestGoFiles,Imports"}, args...)...)
	cmd.Dir = dir
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, stderr.Bytes())
	}
	for d := json.NewDecoder(&out); ; {
		var p Package
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}

// Tests returns the names of the package's tests.
func (p Package) Tests() (names []string, err error) {
	for _, file := range p.TestFiles() {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names, nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// Files returns the paths of the package's files, without tests.
func (p Package) Files() []string { return p.paths(p.GoFiles) }

// TestFiles returns the paths of the package's test files.
func (p Package) TestFiles() []string { return p.paths(append(p.TestGoFiles, p.XTestGoFiles...)) }

func (p Package) paths(names []string) (paths []string) {
	for _, name := range names {
		paths = append(paths, filepath.Join(p.Dir, name))
	}
	return paths
}
