//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// The shell completes names of locks, and entries for break.
func TestCompletion(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	enqueued(t, client, "ann", "jobs/a")
	enqueued(t, client, "bob", "jobs/b")
	enqueued(t, client, "cyd", "other")
	lines := func(args ...string) []string {
		_, out, _ := ask(t, cluster, append([]string{"__complete"}, args...)...)
		return strings.Split(out, "\n")
	}
	for _, command := range []string{"run", "elect", "show", "ls", "break", "doctor"} {
		require.Equal(t, []string{"jobs/a", "jobs/b", ":4"}, lines(command, "jo"), command)
	}
	require.Regexp(t, `^jobs/b/[0-9a-f]+@\d+\tbob, holds\n:36$`, strings.Join(lines("break", "jobs/b", ""), "\n"))
	require.Equal(t, []string{":0"}, lines("run", "jobs/b", "--", ""))
	require.Equal(t, []string{"table", "json", ":4"}, lines("show", "-o", ""))
	require.Equal(t, []string{":4"}, lines("show", "--endpoints=127.0.0.1:1", "jo"), "no error disturbs somebody who types")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, out, _ := ask(t, cluster, "completion", shell)
		require.Zero(t, status)
		require.Contains(t, out, "etcdlock")
	}
}
