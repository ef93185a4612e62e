//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
)

// Nobody reads standard error, and its pipe is full. That keeps nobody from the lock: CMD begins when the lock is there, and
// is asked to end as soon as somebody takes the lock away.
func TestRun_StderrIsBlocked(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	locks := etcdlock.New(client)
	defer func() { _ = locks.Close() }()
	h, err := locks.Mutex("x").Lock(bounded(t))
	require.NoError(t, err)

	read, full, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	require.NoError(t, full.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	filled, err := full.Write(bytes.Repeat([]byte("."), 1<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	r := command(t, []string{"ETCDCTL_ENDPOINTS=" + cluster.Endpoints()[0]}, "run", "x", "--ttl=100s", "--grace=30s", "--",
		"sh", "-c", `exec 2>/dev/null; trap "echo TERM; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	r.cmd.Stderr = full
	r.launch(t)
	require.NoError(t, full.Close())
	waiters(t, client, "x", 2)
	<-time.After(4 * tellAfter) // it says who has the lock
	require.NoError(t, h.Unlock(bounded(t)))
	r.until(t, "^ready$")
	_, err = client.Delete(bounded(t), waiters(t, client, "x", 1)[0])
	require.NoError(t, err)
	r.until(t, "^TERM$")

	said := make(chan string, 1)
	go func() { // ends with the command
		got, _ := io.ReadAll(read)
		said <- string(got[filled:])
	}()
	require.Equal(t, 76, r.wait(t))
	require.Regexp(t, `^etcdlock: x: waiting: .*\n(?s:.*)gets SIGTERM, and SIGKILL in .*\netcdlock: x: the lock was not held all the time`, <-said)
}
