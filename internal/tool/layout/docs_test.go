package layout

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// read returns the text of a file of the repository.
func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
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
	require.Contains(t, snippet, "WithLogger", "the client of the other snippet logs nothing: a wrong endpoint would hang in silence")
	indented := "\t" + strings.TrimSuffix(strings.ReplaceAll(snippet, "\n", "\n\t"), "\t")
	require.Contains(t, read(t, "example_test.go"), indented)
}

// The README's measurements, which are set in bold, are those of the committed run.
func TestDocs_ReadmeNumbersAreMeasured(t *testing.T) {
	report := read(t, "bench/README.md")
	median := func(section, peer string) string {
		_, rest, ok := strings.Cut(report, "\n## "+section+"\n")
		require.True(t, ok, section)
		_, rest, ok = strings.Cut(rest, "\n| "+peer+" | ")
		require.True(t, ok, peer)
		first, _, _ := strings.Cut(rest, " <sub>")
		return first
	}
	var quoted []string
	for _, m := range regexp.MustCompile(`\*\*([\d.,]+ [µm]s)\*\*`).FindAllStringSubmatch(read(t, "README.md"), -1) {
		quoted = append(quoted, m[1])
	}
	require.Equal(t, []string{
		median("Hand-over", "etcdlock"), median("Hand-over", "concurrency"), median("Hand-over", "floor"),
		median("An uncontended lock", "etcdlock"), median("An uncontended lock", "concurrency"),
	}, quoted)
}

// Each invariant of docs/protocol.md is mentioned by the code that keeps it, and in the name of a test.
func TestDocs_Invariants(t *testing.T) {
	stated := regexp.MustCompile(`(?m)^\| (I\d) \|`).FindAllStringSubmatch(read(t, "docs/protocol.md"), -1)
	require.NotEmpty(t, stated)
	var code strings.Builder
	for _, p := range library(t) {
		for _, file := range p.Files() {
			if filepath.Base(file) != "doc.go" {
				b, err := os.ReadFile(file)
				require.NoError(t, err)
				code.Write(b)
			}
		}
	}
	module, err := Module(root)
	require.NoError(t, err)
	var tests []string
	for _, p := range module {
		names, err := p.Tests()
		require.NoError(t, err)
		tests = append(tests, names...)
	}
	for _, m := range stated {
		require.True(t, strings.Contains(code.String(), "("+m[1]+")"), "no comment in the code says that it keeps %s", m[1])
		require.True(t, slices.ContainsFunc(tests, func(name string) bool { return strings.Contains(name, m[1]) }), "no test tries to break %s", m[1])
	}
}

// The README's badge of the coverage is the file that CI writes.
func TestDocs_CoverageBadge(t *testing.T) {
	workflow := read(t, ".github/workflows/ci.yml")
	require.Contains(t, read(t, "README.md"), "/etcdlock/badges/coverage.svg")
	require.Contains(t, workflow, `blob %s\tcoverage.svg\n`)
	require.Contains(t, workflow, "refs/heads/badges")
	for percent, colour := range map[string]string{"91.4": "#4c1", "80.0": "#dfb317", "7.5": "#e05d44"} {
		badge, err := exec.Command("bash", filepath.Join(root, ".github/badge.sh"), percent).Output()
		require.NoError(t, err)
		require.NoError(t, xml.Unmarshal(badge, new(struct{})))
		require.Contains(t, string(badge), ">"+percent+" %</text>")
		require.Contains(t, string(badge), `fill="`+colour+`"`)
	}
	require.Error(t, exec.Command("bash", filepath.Join(root, ".github/badge.sh"), "").Run(), "it must not show a coverage that is not known")
}
