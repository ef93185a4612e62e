package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryRowHasATest(t *testing.T) {
	require.NoError(t, check("../.."))
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
`
	tests, failed, err := read(strings.NewReader(out))
	require.NoError(t, err)
	require.Empty(t, failed)
	table := render(tests)
	require.Contains(t, table, "| C3 | compaction between the read and the watch | not tried | passes: told within 3ms; and (`TestFault_C3_C4_Both`) |\n")
	require.Contains(t, table, "| C4 | compaction makes a waiter spin | fails: it spins (`TestControl_C4_It`) | passes: told within 3ms; and (`TestFault_C3_C4_Both`) |\n")

	for _, action := range []string{"fail", "skip"} {
		_, failed, err = read(strings.NewReader(`{"Action":"output","Test":"TestFault_A1_It","Output":"why"}` + "\n" + `{"Action":"` + action + `","Test":"TestFault_A1_It"}`))
		require.NoError(t, err)
		require.Equal(t, []string{"why", ""}, failed)
	}

	_, failed, err = read(strings.NewReader(`{"Action":"output","Package":"p","Output":"leaks"}` + "\n" + `{"Action":"fail","Package":"p"}`))
	require.NoError(t, err)
	require.Equal(t, []string{"leaks", ""}, failed)
}
