package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the snippets of the pages may use, under the names that the pages give it.
const (
	imports = `"context"; "errors"; "fmt"; "hash/crc32"; "log"; "log/slog"; "os"; "os/signal"; "syscall"; "time"
		clientv3 "go.etcd.io/etcd/client/v3"; "go.uber.org/zap"; "google.golang.org/grpc"; "google.golang.org/grpc/backoff"
		"github.com/etcdlock/etcdlock"; . "github.com/etcdlock/etcdlock"`
	parameters = `ctx context.Context, client *clientv3.Client, locks, Client *Client, clients []*etcdlock.Client, s, session, Session *Session,
		m, Mutex *Mutex, RWMutex *RWMutex, e, Elector *Elector, h, term, Held *Held, Ticket *Ticket, id, name, value, data string, d time.Duration,
		ops []clientv3.Op, lead func(context.Context, *Held) error`
	// All imports are used once, so that none is an error.
	uses = "_, _, _, _, _, _, _ = context.TODO, errors.New, fmt.Sprint, crc32.ChecksumIEEE, log.Print, slog.Default, os.Exit\n" +
		"_, _, _, _, _, _, _ = signal.Stop, syscall.SIGTERM, time.Now, zap.NewNop, grpc.NewClient, backoff.DefaultConfig, etcdlock.New"
)

// The blocks of Go in the pages compile, but for those of docs/integrations.md, which a test there compiles, and for the import
// of coming-from.md. So do the calls in the tables that say which one to make.
func TestDocs_SnippetsCompile(t *testing.T) {
	api := declared(t)
	snippets := []Snippet{{"snippets_test.go", 1, uses}}
	for _, page := range []string{"README.md", "docs/operations.md", "docs/capacity.md"} {
		blocks := Blocks(page, read(t, page))
		require.NotEmpty(t, blocks, page)
		for _, s := range blocks {
			if page == "docs/operations.md" { // fields of the client's configuration
				s.Code = "_ = clientv3.Config{\n" + s.Code + "}"
				s.Line--
			}
			snippets = append(snippets, s)
		}
	}
	calls := 0
	for _, page := range []string{"README.md", "docs/coming-from.md"} {
		for _, s := range tableCalls(page, read(t, page)) {
			calls++
			if bare := bareName.FindStringSubmatch(s.Code); bare != nil {
				require.True(t, slices.Contains(api, bare[1]), "%s:%d: there is no %s", s.Page, s.Line, bare[1]) // a method, without its type
				continue
			}
			s.Code = strings.ReplaceAll(s.Code, "(...)", "()") // of any arguments
			if _, err := parser.ParseExpr(s.Code); err == nil && !strings.HasSuffix(s.Code, ")") {
				s.Code = "_ = " + s.Code
			}
			snippets = append(snippets, s)
		}
	}
	require.Greater(t, calls, 80, "the test must find the tables")
	wrong, err := Compile(root, imports, parameters, snippets)
	require.NoError(t, err)
	require.Empty(t, wrong)
}

// bareName is an exported name, or a call of it: of a method whose type the sentence has.
var bareName = regexp.MustCompile(`^\*?([A-Z]\w*)(\(ctx\))?$`)

// tableCalls returns what stands in backquotes in the column of a table that has this package's calls.
func tableCalls(page, text string) (all []Snippet) {
	column := -1
	inTable := false
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			inTable = false
			continue
		}
		cells := strings.Split(line, "|")
		if !inTable {
			inTable = true
			column = slices.IndexFunc(cells, func(c string) bool {
				return slices.Contains([]string{"here", "etcdlock", "the call"}, strings.TrimSpace(c))
			})
			continue
		}
		if column < 0 || column >= len(cells) || strings.Contains(cells[column], "promlock") { // another module's, with Examples of its own
			continue
		}
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[column], -1) {
			if code[1] != "ctx" && code[1] != "error" && code[1] != "lead" { // words for what a call takes or returns
				all = append(all, Snippet{page, i + 1, code[1]})
			}
		}
	}
	return all
}

// declared returns the names that the root package declares, those of methods among them.
func declared(t *testing.T) (names []string) {
	packages := library(t)
	for _, file := range packages[len(packages)-1].Files() {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names = append(names, n.Name.Name)
				return false
			case *ast.TypeSpec:
				names = append(names, n.Name.Name)
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names = append(names, name.Name)
				}
			}
			return true
		})
	}
	return names
}

// The paths of packages that the pages name are those of folders, and their links lead to files.
func TestDocs_PathsAndLinks(t *testing.T) {
	path := regexp.MustCompile(`github\.com/etcdlock/etcdlock((?:/[\w-]+)*)`)
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	paths, links := 0, 0
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range path.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "/actions") || strings.HasPrefix(m[1], "/security") {
				continue // of the site, not of the repository
			}
			paths++
			require.DirExists(t, filepath.Join(root, m[1]), "%s names %s", page, m[0])
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			links++
			_, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1]))
			require.NoError(t, err, "%s links to %s", page, m[1])
		}
	}
	require.Greater(t, paths, 10)
	require.Greater(t, links, 50)
}

// pages returns the paths of the repository's pages.
func pages(t *testing.T) (all []string) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != ".":
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			all = append(all, name)
		}
		return nil
	}))
	return all
}
