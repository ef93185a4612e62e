//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(`package etcdlock

import (
	"testing"

	"example.com/etcdtest"
	"example.com/harness"
)

var cluster *etcdtest.Cluster

type user struct{}

func (user) use(t *testing.T) { cluster.Client(t) }
func own(t *testing.T)        { etcdtest.Start(t) }

var start, other = harness.StartWithAuth, harness.Ctx

func TestShared(t *testing.T)  { user{}.use(t) }
func TestOwn(t *testing.T)     { own(t) }
func TestBoth(t *testing.T)    { user{}.use(t); own(t) }
func TestWithAuth(t *testing.T) { user{}.use(t); start(t) }
func TestVar(t *testing.T)     { own := 1; user{}.use(t); _ = own }
func TestLocal(t *testing.T)   { cluster := 1; _ = cluster }
func TestNeither(t *testing.T) {}
`), 0o600))
	names, err := portable(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"TestShared", "TestVar"}, names)
}

func TestPortableHere(t *testing.T) {
	suites, err := findSuites("../../..")
	require.NoError(t, err)
	var names []string
	for _, s := range suites {
		require.IsIncreasing(t, s.tests)
		names = append(names, s.tests...)
	}
	for _, name := range []string{
		"TestSmoke",
		"TestFault_F4_HolderPaused",            // a helper process uses the cluster
		"TestFault_F1_DeadlineCountedFromSend", // uses it through nested functions
		"TestFault_C7_DelayedEvents",           // has variables named like functions that start one
		"TestRequests_Uncontended", "TestFault_D6_Guards",
	} {
		require.Contains(t, names, name)
	}
	for _, name := range []string{
		"TestFault_C1_IsolatedMember", // starts a cluster
		"TestFault_F13_RolesChange",   // starts one in a function
		"TestFault_F12_MemberPaused",  // starts processes
		"TestKeyGrammar",              // needs no cluster
		"TestInterleavings_I1_I3",     // needs no cluster
		"TestInspectionErrors",        // starts one in a function of internal/test/harness
		"TestControl_A2_StaleUnlock", "TestMain",
	} {
		require.NotContains(t, names, name)
	}
}

func TestSuited(t *testing.T) {
	names := []string{"TestFault_F1_It", "TestFault_F15_It", "TestRequests_It", "TestSmoke"}
	require.Equal(t, names, suited(names, shape{members: 1}))
	require.Equal(t, []string{"TestFault_F15_It", "TestSmoke"}, suited(names, shape{members: 3}))
	require.Equal(t, []string{"TestFault_F15_It", "TestSmoke"}, suited(append(slices.Clone(names), notProxied...), shape{members: 1, proxied: true}))
}

func TestSuites(t *testing.T) {
	suites, err := findSuites("../../..")
	require.NoError(t, err)
	var paths []string
	for _, s := range suites {
		paths = append(paths, s.path)
	}
	require.Equal(t, []string{"github.com/etcdlock/etcdlock", "github.com/etcdlock/etcdlock/internal/test/faults"}, paths)
}
