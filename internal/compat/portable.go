//go:build unix

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"github.com/etcdlock/etcdlock/internal/layout"
)

// portable returns the tests of the package in dir that use the variable cluster, directly
// or through functions, and neither etcdtest.Start nor etcdtest.New. It omits the tests of
// etcd's own packages (TestControl_), which say nothing about these servers.
func portable(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range files {
		f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if f.Name.Name != "etcdlock_test" { // the examples, which start their own clusters
			parsed = append(parsed, f)
		}
	}
	// Imported packages are not loaded: only names that this package declares
	// have to be resolved.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := conf.Check("etcdlock", fset, parsed, info) // reports errors, because imports are missing
	uses := map[types.Object][]types.Object{}
	starts := map[types.Object]bool{}
	var tests []*types.Func
	for _, f := range parsed {
		for _, d := range f.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			o := info.Defs[fn.Name].(*types.Func)
			if fn.Recv == nil && strings.HasPrefix(o.Name(), "Test") && o.Name() != "TestMain" && !strings.HasPrefix(o.Name(), "TestControl_") {
				tests = append(tests, o)
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					if u := info.Uses[n]; u != nil && u.Pkg() == pkg {
						uses[o] = append(uses[o], u)
					}
				case *ast.SelectorExpr:
					x, _ := n.X.(*ast.Ident)
					if p, is := info.Uses[x].(*types.PkgName); is && p.Name() == "etcdtest" && (n.Sel.Name == "Start" || n.Sel.Name == "New") {
						starts[o] = true
					}
				}
				return true
			})
		}
	}
	shared := pkg.Scope().Lookup("cluster")
	if shared == nil {
		return nil, errors.New("the tests have no variable cluster")
	}
	var names []string
	for _, t := range tests {
		reached := map[types.Object]bool{}
		var reach func(o types.Object)
		reach = func(o types.Object) {
			if !reached[o] {
				reached[o] = true
				for _, u := range uses[o] {
					reach(u)
				}
			}
		}
		reach(t)
		own := false
		for o := range reached {
			own = own || starts[o]
		}
		if reached[shared] && !own {
			names = append(names, t.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// onlyRootShares returns an error if a layer below the root package has tests that share a cluster. Such
// tests would be portable, but only those of the root package are run.
func onlyRootShares(dir string) error {
	library, err := layout.Library(dir)
	if err != nil {
		return err
	}
	for _, p := range library[:len(library)-1] {
		for _, file := range p.TestFiles() {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if d, is := d.(*ast.GenDecl); is && d.Tok == token.VAR && slices.ContainsFunc(d.Specs, declaresCluster) {
					return fmt.Errorf("%s declares cluster, but only the root package's tests are run here", file)
				}
			}
		}
	}
	return nil
}

func declaresCluster(s ast.Spec) bool {
	v, is := s.(*ast.ValueSpec)
	return is && slices.ContainsFunc(v.Names, func(n *ast.Ident) bool { return n.Name == "cluster" })
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not loaded") }
