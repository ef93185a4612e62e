package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// TestMutants: each line of the model that can be left out is a mutant, each mutant leaves out a
// line and is noticed by an assertion that is there, and README.md tells of it.
func TestMutants(t *testing.T) {
	source, readme := "", read(t, "README.md")
	for _, file := range modelFiles {
		source += read(t, file)
	}
	var lines, listed []string
	for _, m := range regexp.MustCompile(`\bok\((\d+)\)`).FindAllStringSubmatch(source, -1) {
		lines = append(lines, m[1])
	}
	for i, m := range mutants {
		require.Equal(t, i+1, m.Number)
		listed = append(listed, fmt.Sprint(m.Number))
		require.Regexp(t, `assert\(.*/\* `+m.Found+`: `, source, "an assertion of this name")
		require.Contains(t, readme, fmt.Sprintf("### %d. %s\n\n%s\n\n```\n", m.Number, m.Without, m.Why), "make model, or go run ./model -write")
	}
	slices.Sort(lines)
	slices.Sort(listed)
	require.Equal(t, listed, slices.Compact(lines))
	for _, s := range searches {
		require.Contains(t, readme, fmt.Sprintf("| %s | `%s` |", s.Name, s.Bounds))
	}
}

const found = `
pan:1: assertion violated  !(uses[r]) (at depth 148)
Warning: Search not completed
State-vector 124 byte, depth reached 148, errors: 1
     1574 states, stored
  128.390	total actual memory usage
`

func TestParse(t *testing.T) {
	r, err := parse(found)
	require.NoError(t, err)
	require.Equal(t, result{States: 1574, Depth: 148, Megabytes: 128, errors: 1}, r)
	r, err = parse(strings.NewReplacer("errors: 1", "errors: 0", "Warning: Search not completed\n", "").Replace(found))
	require.NoError(t, err)
	require.True(t, r.complete)
	_, err = parse("pan: out of memory")
	require.Error(t, err, "nothing was searched")
}

func TestStory(t *testing.T) {
	source := "skip\nassert(!alive(r)) } /* cleared: nothing is left */\nassert(x)"
	told := "A: a mutex asks for the lock\n      etcd: at 2 the entry of A is written\nspin: /x/lock.pml:2, Error: assertion violated\nspin: text of failed assertion\nA: more\n"
	property, steps := story(told, map[string]string{"lock.pml": source})
	require.Equal(t, "cleared", property)
	require.Equal(t, []string{"A: a mutex asks for the lock", "etcd: at 2 the entry of A is written"}, steps)
	property, _ = story("spin: lock.pml:3, Error: assertion violated\n", map[string]string{"lock.pml": source})
	require.Equal(t, "an assertion in line 3 of lock.pml", property)
}

func TestWriteReadme(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	jobs := []*job{
		{search: &searches[0], result: result{States: 1234567}},
		{mutant: &mutants[0], result: result{Trail: []string{"A: granted", "B: granted"}}},
	}
	require.NoError(t, writeReadme(file, jobs))
	text := read(t, file)
	require.Contains(t, text, "| assertions | 1,234,567 |")
	require.Contains(t, text, "```\nA: granted\nB: granted\n```\n")
}
