//go:build unix

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// packages are those whose tests share a cluster; see internal/test/harness.
var packages = []string{".", "./internal/test/faults"}

// own.txt names the tests that start servers of their own, or need none: other servers don't matter to them. A new test
// that is missing there runs once more than it must.
//
//go:embed own.txt
var ownText string

// A suite is a package whose tests share a cluster.
type suite struct {
	dir, binary string
	tests       []string // all but those in own.txt, and the controls (TestControl_), which test etcd's own packages
}

// buildSuites builds the tests of all packages into dir.
func buildSuites(ctx context.Context, dir string) (suites []suite, err error) {
	for i, p := range packages {
		s := suite{dir: p, binary: filepath.Join(dir, fmt.Sprint("suite-", i, ".test"))}
		if _, err := output(ctx, "", "go", "test", "-c", "-o", s.binary, p); err != nil {
			return nil, err
		}
		list := command(ctx, s.binary, "-test.list=^Test")
		list.Env = append(os.Environ(), endpointsVar+"=127.0.0.1:1") // which a list does not use
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: list of tests: %w", p, err)
		}
		s.tests = shared(strings.Fields(string(out)), strings.Fields(ownText))
		suites = append(suites, s)
	}
	return suites, nil
}

// shared returns the tests but for the package's own and the controls, in order.
func shared(tests, own []string) []string {
	tests = slices.DeleteFunc(slices.Clone(tests), func(t string) bool {
		return strings.HasPrefix(t, "TestControl_") || slices.Contains(own, t)
	})
	slices.Sort(tests)
	return tests
}
