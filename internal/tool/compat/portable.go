//go:build unix

package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"github.com/etcdlock/etcdlock/internal/tool/layout"
)

// A suite is a package whose tests share a cluster.
type suite struct {
	path, dir string
	tests     []string // that are portable
	binary    string
}

// findSuites returns the packages of the module in dir that have portable tests.
func findSuites(dir string) (suites []suite, err error) {
	module, err := layout.Module(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range module {
		tests, err := portable(p.Dir)
		if err != nil {
			return nil, err
		}
		if len(tests) > 0 {
			suites = append(suites, suite{path: p.ImportPath, dir: p.Dir, tests: tests})
		}
	}
	if len(suites) == 0 {
		return nil, errors.New("no tests have a variable cluster")
	}
	return suites, nil
}

// portable returns the tests of the package in dir that use the variable cluster, directly
// or through functions, and no function of another package that starts one. There are none
// if the tests have no such variable. It omits the tests of etcd's own packages
// (TestControl_), which say nothing about these servers.
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
		if !strings.HasSuffix(f.Name.Name, "_test") { // the examples, which start their own clusters
			parsed = append(parsed, f)
		}
	}
	// Imported packages are not loaded: only names that this package declares
	// have to be resolved.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := conf.Check(dir, fset, parsed, info) // reports errors, because imports are missing
	uses := map[types.Object][]types.Object{}
	starts := map[types.Object]bool{}
	var tests []*types.Func
	// note notes what o, which n declares, refers to.
	note := func(o types.Object, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if u := info.Uses[n]; u != nil && u.Pkg() == pkg {
					uses[o] = append(uses[o], u)
				}
			case *ast.SelectorExpr:
				x, _ := n.X.(*ast.Ident)
				if p, is := info.Uses[x].(*types.PkgName); is && startsCluster(p.Name(), n.Sel.Name) {
					starts[o] = true
				}
			}
			return true
		})
	}
	for _, f := range parsed {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				o := info.Defs[d.Name].(*types.Func)
				if d.Recv == nil && strings.HasPrefix(o.Name(), "Test") && o.Name() != "TestMain" && !strings.HasPrefix(o.Name(), "TestControl_") {
					tests = append(tests, o)
				}
				note(o, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, is := spec.(*ast.ValueSpec); is { // such as start = harness.StartWithAuth
						for _, name := range v.Names {
							note(info.Defs[name], v)
						}
					}
				}
			}
		}
	}
	shared := pkg.Scope().Lookup("cluster")
	if _, is := shared.(*types.Var); !is {
		return nil, nil
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

// startsCluster reports whether a function of another package starts a cluster.
func startsCluster(pkg, name string) bool {
	return (pkg == "etcdtest" || pkg == "harness") && (strings.HasPrefix(name, "Start") || name == "New")
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not loaded") }
