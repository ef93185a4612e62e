package etcdlock

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/layout"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// The README's snippet is the text of an Example, which runs as a test.
func TestDocs_ReadmeSnippetIsAnExample(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, ok)
	snippet, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	require.LessOrEqual(t, strings.Count(snippet, "\n"), 12)
	indented := "\t" + strings.TrimSuffix(strings.ReplaceAll(snippet, "\n", "\n\t"), "\t")
	require.Contains(t, read(t, "example_test.go"), indented)
}

// Each invariant of doc.go is mentioned by the code that keeps it, and in the name of a test.
func TestDocs_Invariants(t *testing.T) {
	stated := regexp.MustCompile(`(?m)^//\t(I\d) `).FindAllStringSubmatch(read(t, "doc.go"), -1)
	require.NotEmpty(t, stated)
	var code, tests strings.Builder
	for _, file := range libraryFiles(t) {
		switch {
		case strings.HasSuffix(file, "_test.go"):
			tests.WriteString(read(t, file))
		case filepath.Base(file) != "doc.go":
			code.WriteString(read(t, file))
		}
	}
	for _, m := range stated {
		require.True(t, strings.Contains(code.String(), "("+m[1]+")"), "no comment in the code says that it keeps %s", m[1])
		require.True(t, regexp.MustCompile(`func Test\w*`+m[1]).MatchString(tests.String()), "no test tries to break %s", m[1])
	}
}

// libraryFiles returns the Go files of the library: those of the root package and of all packages that
// it imports from this module.
func libraryFiles(t *testing.T) (files []string) {
	t.Helper()
	library, err := layout.Library(".")
	require.NoError(t, err)
	for _, p := range library {
		files = append(files, append(p.Files(), p.TestFiles()...)...)
	}
	return files
}
