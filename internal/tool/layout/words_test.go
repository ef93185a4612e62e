package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// refused are habits that make a sentence hard to read: a pronoun for the noun, an inverted relative, "is to be" for "must",
// and "give back" for "release". CONTRIBUTING.md says what to write instead.
var refused = regexp.MustCompile(`(?i)\b(that one([.,;:)]| is| was| has| may|$)|of which|is to be|are to be|so many|of others|gives? back|given back)`)

// TestWords reads the comments of all Go files and the pages.
func TestWords(t *testing.T) {
	read := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		comments := strings.HasSuffix(path, ".go")
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != ".":
			return filepath.SkipDir
		case d.IsDir() || !comments && !strings.HasSuffix(path, ".md"), name == filepath.Join("internal", "tool", "layout", "words_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for i, line := range strings.Split(string(b), "\n") {
			if comments {
				_, line, _ = strings.Cut(line, "//")
			}
			if found := refused.FindString(line); found != "" {
				t.Errorf("%s:%d: %q: %s", name, i+1, found, strings.TrimSpace(line))
			}
		}
		return nil
	}))
	require.Greater(t, read, 300, "the test must find the repository's files")
}
