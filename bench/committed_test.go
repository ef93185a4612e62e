package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/bench/report"
)

// The pages are those of the committed results: no figure in them was written by hand.
func TestCommittedPages(t *testing.T) {
	r, err := report.Read("results.json", "scale.json", "names.json")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, r.WriteReadme(dir))
	require.NoError(t, r.WriteCapacity(filepath.Join(dir, "capacity.md")))
	for written, committed := range map[string]string{"README.md": "README.md", "goals.md": "goals.md", "capacity.md": "../docs/capacity.md"} {
		want, err := os.ReadFile(filepath.Join(dir, written))
		require.NoError(t, err)
		got, err := os.ReadFile(committed)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s is not what `go run . report` writes", committed)
	}
}
