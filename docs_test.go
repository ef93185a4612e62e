package etcdlock

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// The README's snippet is the text of an Example, which is run.
func TestDocs_ReadmeSnippetIsAnExample(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, ok)
	snippet, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	require.LessOrEqual(t, strings.Count(snippet, "\n"), 12)
	indented := "\t" + strings.TrimSuffix(strings.ReplaceAll(snippet, "\n", "\n\t"), "\t")
	require.Contains(t, read(t, "example_test.go"), indented)
}

// Each invariant is stated in doc.go, kept somewhere that says so, and is in the
// name of a test.
func TestDocs_Invariants(t *testing.T) {
	stated := regexp.MustCompile(`(?m)^//\t(I\d) `).FindAllStringSubmatch(read(t, "doc.go"), -1)
	require.NotEmpty(t, stated)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var code, tests string
	for _, file := range files {
		switch {
		case strings.HasSuffix(file, "_test.go"):
			tests += read(t, file)
		case file != "doc.go":
			code += read(t, file)
		}
	}
	for _, m := range stated {
		require.Contains(t, code, "("+m[1]+")", "no code says that it keeps it")
		require.Regexp(t, `func Test\w*`+m[1], tests, "no test tries to break it")
	}
}
