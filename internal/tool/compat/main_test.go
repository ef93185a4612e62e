//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShared(t *testing.T) {
	require.Equal(t, []string{"TestA", "TestC"}, shared([]string{"TestC", "TestControl_A1_It", "TestB", "TestA"}, []string{"TestB"}))
}

// own.txt names no test that has been renamed or deleted.
func TestOwn(t *testing.T) {
	own := strings.Fields(ownText)
	require.IsIncreasing(t, own)
	var exist []string
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join("../../..", p, "*_test.go"))
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				exist = append(exist, m[1])
			}
		}
	}
	require.Subset(t, exist, own)
}

// The document has a row for each kind of wrapped client that is tested.
func TestDocument_Clients(t *testing.T) {
	source, err := os.ReadFile("../../test/faults/wrapped_test.go")
	require.NoError(t, err)
	var tested []string
	for _, kind := range regexp.MustCompile(`(?m)^\t"(.+)": func\(`).FindAllSubmatch(source, -1) {
		tested = append(tested, "TestFault_D4_WrappedClient/"+string(kind[1]))
	}
	document := document("", nil, nil)
	require.ElementsMatch(t, tested, regexp.MustCompile(`TestFault_D4_[\w/-]+`).FindAllString(document, -1))
	written, err := os.ReadFile("../../../docs/compat.md")
	require.NoError(t, err)
	require.Contains(t, string(written), clientsText)
}

func TestSuited(t *testing.T) {
	names := []string{"TestFault_F1_It", "TestFault_F15_It", "TestRequests_It", "TestSmoke"}
	require.Equal(t, names, suited(names, shape{members: 1}))
	require.Equal(t, []string{"TestFault_F15_It", "TestSmoke"}, suited(names, shape{members: 3}))
	require.Equal(t, []string{"TestFault_F15_It", "TestSmoke"}, suited(append(slices.Clone(names), notProxied...), shape{members: 1, proxied: true}))
}

// With -few, each server runs on one member, and the first in every shape.
func TestShapesOf(t *testing.T) {
	require.Equal(t, shapes, shapesOf(0, true))
	require.Equal(t, []shape{{members: 1}}, shapesOf(1, true))
	require.Equal(t, shapes, shapesOf(1, false))
}
