package layout

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A Snippet is Go code of a page: statements, or an expression.
type Snippet struct {
	Page string // its path
	Line int    // at which the code begins
	Code string
}

// Blocks returns the blocks of Go in a page's text.
func Blocks(page, text string) (all []Snippet) {
	for _, at := range block.FindAllStringSubmatchIndex(text, -1) {
		all = append(all, Snippet{page, 1 + strings.Count(text[:at[2]], "\n"), text[at[2]:at[3]]})
	}
	return all
}

var block = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// Compile compiles snippets in the module of dir, each in a function with these parameters, and returns what is wrong
// with them. A variable that a snippet does not use is not wrong.
func Compile(dir, imports, parameters string, snippets []Snippet) (wrong []string, err error) {
	tmp, err := os.MkdirTemp("", "snippets")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	source := "package snippets\n\nimport (\n" + imports + "\n)\n"
	for _, s := range snippets {
		source += fmt.Sprintf("\nfunc _(%s) {\n{\n//line %s:%d\n%s\n}\n}\n", parameters, s.Page, s.Line, s.Code)
	}
	file := filepath.Join(tmp, "snippets.go")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-gcflags=-e", "-o", os.DevNull, file)
	build.Dir = dir
	out, err := build.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "declared and not used") {
			wrong = append(wrong, strings.TrimSpace(line))
		}
	}
	if err != nil && len(out) == 0 {
		return nil, err
	}
	return wrong, nil
}
