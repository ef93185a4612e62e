package operations

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcdlock/etcdlock/internal/tool/layout"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

const document = "../../docs/operations.md"

// section is the part of the document below a heading, up to the next one.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, document), "\n"+heading+"\n")
	require.True(t, ok, heading)
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// The settings are those of the examples' client.
func TestDocument_ClientSettings(t *testing.T) {
	snippet := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(section(t, "## The client"))
	require.NotNil(t, snippet)
	require.Contains(t, read(t, "../../examples/internal/ops/client.go"), snippet[1])
}

// Each metric of promlock is explained, and none that there is not.
func TestDocument_Metrics(t *testing.T) {
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(etcdlock_\w+)(?:{[\w,]+})? +\w`).FindAllStringSubmatch(read(t, "../../promlock/doc.go"), -1) {
		want = append(want, m[1])
	}
	for row := range strings.Lines(section(t, "## Metrics")) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | "); ok {
			for _, m := range regexp.MustCompile("`(etcdlock_\\w+)`").FindAllStringSubmatch(first, -1) {
				got = append(got, m[1])
			}
		}
	}
	require.NotEmpty(t, want)
	require.ElementsMatch(t, want, got)
}

// Each line that the package logs is explained, and none that there is not.
func TestDocument_LogLines(t *testing.T) {
	packages, err := layout.Library("../..")
	require.NoError(t, err)
	var want, got []string
	for _, p := range packages {
		for _, f := range p.Files() {
			for _, m := range regexp.MustCompile(`\b(?:[lL]og(?:ger)?|l)\.(?:Debug|Info|Warn|Error)\("([^"]+)"`).FindAllStringSubmatch(read(t, f), -1) {
				want = append(want, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section(t, "## Log lines"), -1) {
		got = append(got, m[1])
	}
	require.NotEmpty(t, want)
	slices.Sort(want)
	require.ElementsMatch(t, slices.Compact(want), got)
}

// The metrics of etcd that the document names are those of this etcd.
func TestDocument_EtcdMetrics(t *testing.T) {
	start(t, func(*embed.Config) {})
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
	}
	named := regexp.MustCompile(`\betcd_\w+`).FindAllString(read(t, document), -1)
	require.NotEmpty(t, named)
	for _, name := range named {
		require.True(t, there[name], name)
	}
}

// The commands run tests that there are, and links lead to files that there are.
func TestDocument_Names(t *testing.T) {
	doc := read(t, document)
	tests := read(t, "growth_test.go") + read(t, "outage_test.go")
	commands := regexp.MustCompile(`go test ./operations -run '?(\w+)`).FindAllStringSubmatch(doc, -1)
	require.Len(t, commands, strings.Count(doc, "go test ./operations"))
	for _, c := range commands {
		require.Regexp(t, `func Test\w*`+strings.TrimPrefix(c[1], "Test")+`\(`, tests)
	}
	for _, link := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(doc, -1) {
		_, err := os.Stat(filepath.Join("../../docs", link[1]))
		require.NoError(t, err)
	}
	for _, anchor := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(doc, -1) {
		heading := regexp.MustCompile(`\n###?-` + regexp.QuoteMeta(anchor[1]) + `\n`)
		require.True(t, heading.MatchString(strings.ToLower(strings.ReplaceAll(doc, " ", "-"))), "no heading %q", anchor[1])
	}
}
