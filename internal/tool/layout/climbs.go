package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Climbs returns the arrows between files of a package that run back up: from a file to one above it, which declares what
// the file uses, be it a function, a type, a value or a field. stages are the files, without ".go", from the top down.
func Climbs(p Package, stages []string) (climbs []string, err error) {
	lookup, err := exports(p.Dir)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range p.Files() {
		if !slices.Contains(stages, stage(path)) {
			return nil, fmt.Errorf("%s is not among the stages", path)
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	pkg, err := config.Check(p.ImportPath, fset, files, &info)
	if err != nil {
		return nil, err
	}
	used := map[string][]string{}
	for id, o := range info.Uses {
		from, to := stage(fset.Position(id.Pos()).Filename), stage(fset.Position(o.Pos()).Filename)
		if o.Pkg() != pkg || slices.Index(stages, to) >= slices.Index(stages, from) {
			continue
		}
		if arrow := from + " -> " + to; !slices.Contains(used[arrow], o.Name()) {
			used[arrow] = append(used[arrow], o.Name())
		}
	}
	for arrow, names := range used {
		slices.Sort(names)
		climbs = append(climbs, arrow+": "+strings.Join(names, ", "))
	}
	slices.Sort(climbs)
	return climbs, nil
}

func stage(path string) string { return strings.TrimSuffix(filepath.Base(path), ".go") }

// exports opens the compiled form of what the package of dir imports.
func exports(dir string) (importer.Lookup, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", ".")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, stderr.Bytes())
	}
	files := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }, nil
		case err != nil:
			return nil, err
		}
		files[p.ImportPath] = p.Export
	}
}
