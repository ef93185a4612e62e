package history

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unseen are the mutants of the model whose trails a history does not show: a write that comes late, which is
// removed later (1, 2, 22), a session that ends later than its lease (11, 12; CheckValid sees it), and a
// successor whose entry somebody else has removed (16).
var unseen = []string{"1", "2", "11", "12", "16", "22"}

// TestModelTrails: what goes wrong without a line of the model of one name, CheckTrace refuses too.
func TestModelTrails(t *testing.T) {
	readme, err := os.ReadFile("../../../model/README.md")
	require.NoError(t, err)
	trails := regexp.MustCompile("(?s)### (\\d+)\\. [^\n]*\n\n[^\n]*\n\n```\n([^`]*)\n```\nNot so: ([\\w, ]+?) \\(`").FindAllStringSubmatch(string(readme), -1)
	require.Greater(t, len(trails), 20)
	for _, m := range trails {
		log, steps, claims, err := FromModel(strings.Split(m[2], "\n"))
		require.NoError(t, err, "mutant %s", m[1])
		problems := log.CheckTrace(steps, claims)
		if m[3] != "served" && m[3] != "cleared" { // whose trail is a whole run
			problems = slices.DeleteFunc(problems, func(p string) bool { return strings.Contains(p, "in the end") })
		}
		if slices.Contains(unseen, m[1]) {
			require.Empty(t, problems, "mutant %s is seen", m[1])
		} else {
			require.NotEmpty(t, problems, "mutant %s is not noticed", m[1])
		}
	}
}
