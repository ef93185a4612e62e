// Package layout finds the packages of the library: the root package and all packages that it
// imports from this module. Checks use it instead of a list of paths, so that they still cover
// the library after code has moved.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
)

// A Package is one package of the library, or one that it depends on.
type Package struct {
	ImportPath   string
	Dir          string
	Standard     bool
	Module       *struct{ Main bool }
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
func Dependencies(dir string) (all []Package, err error) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module,GoFiles,TestGoFiles,XTestGoFiles,Imports", ".")
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
