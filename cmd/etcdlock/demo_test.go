//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// summary has the last lines of a demo that passes.
var summary = []string{
	`ok    order of arrival = order of grants  41 of 41`,
	`ok    overlaps seen: 0                    25 exclusive, 16 shared sections`,
	`ok    tokens strictly growing             in 24 writes, and at each grant`,
	`ok    no update lost                      81 guarded writes, counters 16 and 8`,
	`ok    readers together                    up to [2-4], in \d+ batches`,
	`ok    the killed holder's lock went on    after \d+\.\d\d s \(TTL 4 s\), to p[1-6]`,
	`ok    all rounds done                     40 by 12 processes, 1 killed`,
	`ok    queues empty at the end             no entry is left`,
	`passed in \d+\.\d\d s`,
}

func requireSummary(t *testing.T, output string) {
	t.Helper()
	for _, l := range summary {
		require.Regexp(t, l, output)
	}
	require.NotContains(t, output, "FAIL")
}

func TestDemo(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "demo")
	status := r.wait(t)
	require.Zero(t, status, r.stderr.String())
	require.Empty(t, r.stderr.String())
	out := r.output()
	requireSummary(t, out)
	require.NotContains(t, out, "\x1b", "no terminal, no sequences")
	require.Regexp(t, `etcd 3\.\S+ inside this process, with fsync; data in `+r.tmp, out)
	require.Regexp(t, `\d s  p\d +\d+ +[<\d. ]+ ms  1 p\d  2 p\d`, out, "who holds, token, hand-over, who waits")
	require.Regexp(t, `p4 is killed \(SIGKILL\); its lease lasts 4 s from its last renewal\n.*p4's lease ended [1-9]\.\d\d s after the kill`, out)
	require.Regexp(t, `r\d r\d( r\d)* (together|overlapping)`, out)
	require.Regexp(t, `w\d writes`, out)
	require.Len(t, r.pids(t), 12)
	r.noTrace(t)
}

// On a terminal there is a live view below the lines, which disappears at the end.
func TestDemoTerminal(t *testing.T) {
	t.Parallel()
	r := command(t, nil, "demo")
	tty, err := pty.StartWithSize(r.cmd, &pty.Winsize{Rows: 40, Cols: 100})
	require.NoError(t, err)
	defer func() { _ = tty.Close() }()
	var all bytes.Buffer
	if _, err := io.Copy(&all, tty); err != nil {
		require.ErrorIs(t, err, syscall.EIO) // Linux reports a closed terminal like this
	}
	require.NoError(t, r.cmd.Wait(), all.String())
	out := all.String()
	plain := strings.NewReplacer("\x1b[0m", "", "\x1b[1m", "", "\x1b[2m", "", "\x1b[1;31m", "", "\x1b[1;32m", "", "\r", "").Replace(out)
	requireSummary(t, plain)
	require.Contains(t, out, "\x1b[1;32m", "colors")
	require.Regexp(t, `queue   p\d ← p\d ← p\d`, plain)
	require.Regexp(t, `p\d  pid \d+ +[●○]{3}   holds with token \d+ for \d`, plain)
	require.Regexp(t, `p\d  pid \d+ +[●○]{3}   waits in place 2, revision \d+`, plain)
	require.Regexp(t, `killed \d\.\d\d s ago; its lease of 4 s still lasts`, plain)
	require.Regexp(t, `queue   \(r\d r\d`, plain)
	require.Equal(t, 1, strings.Count(out, "\x1b[?25l"), "the cursor goes")
	require.Equal(t, 1, strings.Count(out, "\x1b[?25h"), "and comes back")
	end := out[strings.LastIndex(out, "\x1b[?25h"):]
	require.NotContains(t, end, "pid", "the view is gone")
	require.Contains(t, end, "passed in")
}

func TestDemoRunningCluster(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.WithMembers(3))
	client := cluster.Client(t)
	r := start(t, nil, "demo", "--endpoints", strings.Join(cluster.Endpoints(), ","))
	status := r.wait(t)
	require.Zero(t, status, r.stderr.String())
	requireSummary(t, r.output())
	require.Contains(t, r.output(), "at "+strings.Join(cluster.Endpoints(), ", ")+"; keys below etcdlock-demo/")
	r.noTrace(t)
	noKeys(t, client)
}

func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	for sig, status := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "demo")
		r.until(t, `p\d +\d+ .* ms  1 p`)
		require.NoError(t, r.cmd.Process.Signal(sig))
		require.Equal(t, status, r.wait(t))
		require.Regexp(t, `^etcdlock: ended by signal: [a-z]+\n$`, r.stderr.String())
		require.Len(t, r.pids(t), 6)
		r.noTrace(t)
		noKeys(t, client)
	}
	r := start(t, nil, "demo") // it runs its own etcd
	r.until(t, `p\d +\d+ .* ms  1 p`)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, r.wait(t))
	r.noTrace(t)
}

// A demo that is killed leaves no process behind, although it can't clean up.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "demo")
	r.until(t, `p\d +\d+ .* ms  1 p`)
	require.NoError(t, r.cmd.Process.Kill())
	require.Equal(t, -1, r.wait(t))
	pids := r.pids(t)
	require.Len(t, pids, 6)
	require.Eventually(t, func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	}, hang, 10*time.Millisecond)
}

// When its output is closed, the demo ends and cleans up as usual.
func TestDemoOutputClosed(t *testing.T) {
	t.Parallel()
	unread(t, nil, "demo").noTrace(t)
}

func TestDemoNoEtcd(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"demo", "--endpoints", "127.0.0.1:1"}, {"demo"}} {
		r := start(t, []string{"ETCDCTL_ENDPOINTS=127.0.0.1:1"}, args...)
		require.Equal(t, 1, r.wait(t))
		require.Regexp(t, `^etcdlock: no etcd answers at 127.0.0.1:1 within 5s \(dial tcp .*connection refused\): start one there, or remove --endpoints and ETCDCTL_ENDPOINTS to run one inside this process\n$`, r.stderr.String())
	}
	r := start(t, []string{"TMPDIR=/nonexistent"}, "demo")
	require.Equal(t, 1, r.wait(t))
	require.Regexp(t, `^etcdlock: no directory for etcd's data: .*; set TMPDIR to a directory that can be written\n$`, r.stderr.String())
}

// A fault ends the demo with an error: somebody takes the lock away from its holder, or
// kills a worker.
func TestDemoFault(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	endpoints := []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}

	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	section := client.Watch(ctx, "etcdlock-demo/", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	<-section
	r := start(t, endpoints, "demo")
	key, err := holderKey(section)
	require.NoError(t, err)
	_, err = client.Delete(ctx, key)
	require.NoError(t, err)
	require.Equal(t, 1, r.wait(t), r.output())
	require.Regexp(t, `^etcdlock: worker p\d \(pid \d+\) lost the lock while it held it: .*lock lost\n$`, r.stderr.String())
	r.noTrace(t)
	noKeys(t, client)

	r = start(t, endpoints, "demo")
	r.until(t, `p\d +\d+ .* ms  1 p`)
	require.NoError(t, syscall.Kill(r.pids(t)[5], syscall.SIGKILL))
	require.Equal(t, 1, r.wait(t), r.output())
	require.Regexp(t, `^etcdlock: worker p6 \(pid \d+\) ended early: signal: killed\n$`, r.stderr.String())
	r.noTrace(t)
	noKeys(t, client)
}

// holderKey is the key of the first acquisition, which is known when its section has
// begun.
func holderKey(events clientv3.WatchChan) (string, error) {
	entries := make(map[int64]string) // by create revision
	for wr := range events {
		for _, ev := range wr.Events {
			key := string(ev.Kv.Key)
			switch {
			case strings.Contains(key, "/data/mutex/section/"):
				return entries[mustInt(key[strings.LastIndexByte(key, '/')+1:])], nil
			case !strings.Contains(key, "/data/"):
				entries[ev.Kv.CreateRevision] = key
			}
		}
	}
	return "", errors.New("no section began")
}
