package duration

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestVar(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"10": 10 * time.Second, "0": 0, "-3": -3 * time.Second, "0.5": 500 * time.Millisecond,
		"10s": 10 * time.Second, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond, "0s": 0,
	} {
		d, fs := time.Duration(0), pflag.NewFlagSet("", pflag.ContinueOnError)
		Var(fs, &d, "ttl", time.Minute, "usage")
		require.Equal(t, time.Minute, d)
		require.NoError(t, fs.Parse([]string{"--ttl", text}), text)
		require.Equal(t, want, d, text)
	}
	d, fs := time.Duration(0), pflag.NewFlagSet("", pflag.ContinueOnError)
	Var(fs, &d, "ttl", 90*time.Second, "usage")
	Var(fs, &d, "wait", 0, "usage")
	require.Equal(t, "      --ttl duration    usage (default 1m30s)\n      --wait duration   usage\n", fs.FlagUsages())
	for _, text := range []string{"", "soon", "10 s", "1h30", "NaN", "Inf", "0x10"} {
		d, fs := time.Duration(0), pflag.NewFlagSet("", pflag.ContinueOnError)
		Var(fs, &d, "ttl", time.Minute, "usage")
		require.ErrorContains(t, fs.Parse([]string{"--ttl", text}), "use a number of seconds", text)
		require.Equal(t, time.Minute, d, text)
	}
}
