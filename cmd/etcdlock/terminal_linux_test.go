package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A program may check that it is in the foreground before it reads.
func TestTerminal_Foreground(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := onConsole(t, cluster.Endpoints(), binary, "run", "x", "--", "sh", "-c",
		`group=a; while [ $group != "$front" ]; do sleep 0.01; read -r pid name state parent group session tty front rest </proc/$$/stat; done; echo in front`)
	s.until(t, "in front")
	require.Zero(t, s.ends(t).ExitStatus())
}

// Ctrl-Z, fg and bg work as for any job of a shell.
func TestTerminal_JobControl(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; cat; echo out'\r")
	s.until(t, `\nin`)
	s.echoes(t, "at first")
	s.types(t, ctrlZ)
	m := s.until(t, `etcdlock: x: stopped; unless it continues within \d+(?:\.\d)?s, the lock is lost and process group (\d+) is killed`)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	groupStopped(t, m[1])
	s.types(t, "fg\r")
	s.echoes(t, "hello")
	s.types(t, ctrlZ)
	s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
	groupStopped(t, m[1])
	s.types(t, "bg\r") // cat stops again, because it reads
	s.until(t, `etcdlock: x: stopped`)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.echoes(t, "again")
	s.types(t, ctrlD)
	s.until(t, `out\r`)
	s.until(t, `ready> `)
	s.types(t, "echo status $?\r")
	s.until(t, "status 0")
	noKeys(t, client)

	// In the background from the start, it gets the terminal with fg.
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; read a; echo got $a' &\r")
	s.until(t, `etcdlock: x: stopped`)
	s.untilStopped(t)
	s.types(t, "fg\r")
	s.types(t, "hello\r")
	s.until(t, `got`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
	noKeys(t, client)
}

// groupStopped waits until every process of the group is stopped. The shell continues
// after the first one. Another one that has not seen its signal yet would still read
// the next line.
func groupStopped(t *testing.T, group string) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/stat")
		require.NoError(t, err)
		found := false
		for _, f := range files {
			stat, err := os.ReadFile(f)
			if err != nil {
				continue // the process has ended
			}
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // state, parent, group
			if fields[2] == group {
				if found = true; fields[0] != "T" {
					return false
				}
			}
		}
		return found
	}, hang, 5*time.Millisecond)
}

// Ctrl-Z comes as soon as the command continues. The signal that wakes etcdlock must not
// be passed on so late that it wakes the command from its next stop.
func TestTerminal_StoppedAtOnce(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	s := shell(t, cluster.Endpoints())
	s.types(t, "$L run x --ttl 30s -- sh -c 'echo in; cat; echo out'\r")
	s.until(t, `\nin`)
	s.echoes(t, "at first")
	for i := range 10 {
		s.types(t, ctrlZ)
		m := s.until(t, `etcdlock: x: stopped; [^\n]* group (\d+) is killed`)
		s.until(t, `Stopped.*\r\n(.*\n)*ready> `)
		groupStopped(t, m[1])
		s.types(t, "fg\r")
		s.echoes(t, fmt.Sprint("line ", i))
	}
	s.types(t, ctrlD)
	s.until(t, `out\r`)
	s.until(t, `ready> `)
	s.types(t, "exit\r")
	require.Zero(t, s.ends(t).ExitStatus())
}
