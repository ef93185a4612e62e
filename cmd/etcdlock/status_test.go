package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of exit statuses in docs/command.md matches the code.
func TestStatus_Documented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/command.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(doc), "| status | meaning |\n|---|---|\n")
	require.True(t, ok)
	table, _, ok = strings.Cut(table, "\n\n")
	require.True(t, ok)
	var rows []string
	for _, s := range statuses {
		rows = append(rows, "| "+s.status+" | "+s.meaning+" |")
	}
	require.Equal(t, strings.Join(rows, "\n"), table)
}
