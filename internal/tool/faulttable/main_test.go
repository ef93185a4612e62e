package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryRowHasATest(t *testing.T) {
	require.NoError(t, check("../../.."))
}

func TestTable(t *testing.T) {
	out := `{"Action":"start","Package":"p"}
{"Action":"output","Test":"TestFault_C3_C4_Both","Output":"    x_test.go:7: shown: told within 3ms\n"}
{"Action":"output","Test":"TestFault_C3_C4_Both/sub","Output":"        x_test.go:8: shown: and\n"}
{"Action":"pass","Test":"TestFault_C3_C4_Both/sub"}
{"Action":"pass","Test":"TestFault_C3_C4_Both"}
{"Action":"pass","Test":"TestFault_C30_Other"}
{"Action":"output","Test":"TestControl_C4_It","Output":"    x_test.go:9: seen: it spins\n"}
{"Action":"pass","Test":"TestControl_C4_It"}
{"Action":"output","Test":"TestDropIn_C4_It","Output":"    x_test.go:9: shown: it does not spin\n"}
{"Action":"pass","Test":"TestDropIn_C4_It"}
`
	tests, failed, err := read(strings.NewReader(out))
	require.NoError(t, err)
	require.Empty(t, failed)
	table := render(tests)
	require.Contains(t, table, "| C3 | compaction between the read and the watch | not tried | not tried | passes: told within 3ms; and (`TestFault_C3_C4_Both`) |\n")
	require.Contains(t, table, "| C4 | compaction makes a waiter spin | fails: it spins (`TestControl_C4_It`) | it does not spin (`TestDropIn_C4_It`) | passes: told within 3ms; and (`TestFault_C3_C4_Both`) |\n")

	require.True(t, tests[2].passed)
	_, err = renderGuarantees(tests)
	require.ErrorContains(t, err, "has not passed in this run")
	for _, name := range guarding() {
		tests = append(tests, &result{name: name, passed: true})
	}
	table, err = renderGuarantees(tests)
	require.NoError(t, err)
	require.Contains(t, table, "| A holder learns of its loss. | `TestFault_F3_RevokedByAnother`, `TestFault_F5_KeyDeleted`, ")

	for _, action := range []string{"fail", "skip"} {
		_, failed, err = read(strings.NewReader(`{"Action":"output","Test":"TestFault_A1_It","Output":"why"}` + "\n" + `{"Action":"` + action + `","Test":"TestFault_A1_It"}`))
		require.NoError(t, err)
		require.Equal(t, []string{"why", ""}, failed)
	}

	_, failed, err = read(strings.NewReader(`{"Action":"output","Package":"p","Output":"leaks"}` + "\n" + `{"Action":"fail","Package":"p"}`))
	require.NoError(t, err)
	require.Equal(t, []string{"leaks", ""}, failed)
}

func TestGuarantees(t *testing.T) {
	doc := "package x\n//\n// # What it guarantees\n//\n//   - One [Held.Context] of\n//     two. Two.\n//   - Three: 3.5 of it.\n//\n// # Next\n"
	require.Equal(t, []string{"One [Held.Context] of two.", "Two.", "Three: 3.5 of it."}, sentences(doc))

	real, err := os.ReadFile("../../../doc.go")
	require.NoError(t, err)
	dir := t.TempDir()
	for was, is := range map[string]string{
		"A holder learns of its loss.":         "A holder may learn of its loss.",
		"Nobody passes anybody":                "Nobody passes the next one",
		"cost time\n//     and not the place":  "cost time\n//     and the place",
		"\n//\n// # What no lock service":      " And more.\n//\n// # What no lock service",
		"within milliseconds":                  "within seconds",
		" A holder learns of its loss. [Held.": " [Held.",
	} {
		require.Contains(t, string(real), was)
		changed := strings.Replace(string(real), was, is, 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "doc.go"), []byte(changed), 0o600))
		require.ErrorContains(t, checkGuarantees(dir, guarding()), "guarantee", is)
	}
	require.NoError(t, checkGuarantees("../../..", guarding()))
	require.ErrorContains(t, checkGuarantees("../../..", guarding()[1:]), "there is no "+guarding()[0])
}
