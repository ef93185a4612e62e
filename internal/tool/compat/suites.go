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
var packages = []string{".", "./internal/inspect", "./internal/test/faults"}

// own.txt names the tests that start servers of their own, or need none: other servers don't matter to them. A new test
// that is missing there runs once more than it must.
//
//go:embed own.txt
var ownText string

// clientsText is the part of the document about wrapped clients. It has a row for each test of internal/test/faults/wrapped_test.go.
//
//go:embed clients.md
var clientsText string

// A client is a version of etcd's client, and the tests that are built with it.
type client struct {
	version string
	suites  []suite
}

// A suite is a package whose tests share a cluster.
type suite struct {
	dir, binary string
	tests       []string // all but those in own.txt, and the controls (TestControl_), which test etcd's own packages
}

// buildTests builds the tests of all packages into dir, with the versions of modfile.
func buildTests(ctx context.Context, modfile, dir string) (c client, err error) {
	if c.version, err = output(ctx, "", "go", "list", "-modfile="+modfile, "-m", "-f", "{{.Version}}", "go.etcd.io/etcd/client/v3"); err != nil {
		return c, err
	}
	for i, p := range packages {
		s := suite{dir: p, binary: filepath.Join(dir, fmt.Sprint(c.version, "-", i, ".test"))}
		if _, err := output(ctx, "", "go", "test", "-modfile="+modfile, "-c", "-o", s.binary, p); err != nil {
			return c, err
		}
		list := command(ctx, s.binary, "-test.list=^Test")
		list.Env = append(os.Environ(), endpointsVar+"=127.0.0.1:1") // which a list does not use
		out, err := list.Output()
		if err != nil {
			return c, fmt.Errorf("%s: list of tests: %w", p, err)
		}
		s.tests = shared(strings.Fields(string(out)), strings.Fields(ownText))
		c.suites = append(c.suites, s)
	}
	return c, nil
}

// shared returns the tests but for the package's own and the controls, in order.
func shared(tests, own []string) []string {
	tests = slices.DeleteFunc(slices.Clone(tests), func(t string) bool {
		return strings.HasPrefix(t, "TestControl_") || slices.Contains(own, t)
	})
	slices.Sort(tests)
	return tests
}
