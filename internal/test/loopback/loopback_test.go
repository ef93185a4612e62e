package loopback

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const asHelper = "ETCDLOCK_LOOPBACK_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(asHelper) == "" {
		os.Exit(m.Run())
	}
	addrs, err := FreeAddrs(100)
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString(strings.Join(addrs, " ") + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has read the output of all processes
}

// An address is not given out twice, even if nothing listens on it.
func TestFreeAddrs(t *testing.T) {
	seen := map[string]bool{}
	for range 60 {
		addrs, err := FreeAddrs(3)
		require.NoError(t, err)
		for _, addr := range addrs {
			require.False(t, seen[addr], addr)
			seen[addr] = true
		}
	}
}

// When all ports of a process are in use, it takes more of them.
func TestFreeAddrs_MoreThanABand(t *testing.T) {
	var all []string
	for range 5 {
		addrs, err := FreeAddrs(band / 2)
		require.NoError(t, err)
		t.Cleanup(Keep(addrs))
		all = append(all, addrs...)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 5*(band/2))
}

func TestKeep(t *testing.T) {
	kept, err := FreeAddrs(2)
	require.NoError(t, err)
	around := func() (all []string) { // more than all ports of the process
		for range 3 * len(ports.firsts) {
			some, err := FreeAddrs(band / 2)
			require.NoError(t, err)
			all = append(all, some...)
		}
		return all
	}
	release := Keep(kept)
	all := around()
	require.NotContains(t, all, kept[0])
	require.NotContains(t, all, kept[1])
	release()
	require.Subset(t, around(), kept)
}

func TestFreeAddrs_OtherProcesses(t *testing.T) {
	seen := map[string]bool{}
	for range 8 {
		helper := exec.CommandContext(t.Context(), os.Args[0])
		helper.Env = append(os.Environ(), asHelper+"=1")
		helper.Stderr = os.Stderr
		in, err := helper.StdinPipe()
		require.NoError(t, err)
		out, err := helper.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, helper.Start())
		t.Cleanup(func() { _ = in.Close(); _ = helper.Wait() })
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		for addr := range strings.FieldsSeq(line) {
			require.False(t, seen[addr], addr)
			seen[addr] = true
		}
	}
}
